# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Inferences whose bodies are compressed, either way, and what is left to a thread: order, memory, clients that leave.

How plain ones come in and go out is in test_http.py.
"""

import asyncio
import gzip
import json
import random
import zlib

import numpy as np
import pytest

from pyruntime.runtime.config.inputs import STRINGS_AT_ONCE_BYTES_MAX
from pyruntime.runtime.frontends.http.kserve_response import CANCELLED
from pyruntime.runtime.inference.threads import ANSWERED_AT_ONCE_MAX, DECOMPRESSED_AT_ONCE_MAX, PARSED_AT_ONCE_MAX

COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}
DECOMPRESS = {"gzip": gzip.decompress, "deflate": zlib.decompress}
# An output of so many elements is put into words by a thread.
MANY = ANSWERED_AT_ONCE_MAX // 4 + 1

encodings = pytest.mark.parametrize("encoding", COMPRESS)


def post(body, path="/v2/models/m/infer", **headers):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines])
    return head.encode() + b"\r\n\r\n" + body


def document(values, binary_size=None, outputs=None):
    tensor = {"name": "IN", "datatype": "FP32", "shape": [len(values)]}
    if binary_size is None:
        tensor["data"] = values
    else:
        tensor["parameters"] = {"binary_data_size": binary_size}
    return json.dumps({"inputs": [tensor], **({"outputs": outputs} if outputs else {})}).encode()


def binary(values):
    """(header, contents) of a request."""
    contents = np.array(values, np.float32).tobytes()
    return document(values, len(contents)), contents


def data_of(response):
    """The output's data in a response in JSON."""
    status, headers, body = response
    assert status == 200
    if "content-encoding" in headers:
        body = DECOMPRESS[headers["content-encoding"]](body)
    return json.loads(body)["outputs"][0]["data"]


def noise(count):
    """Numbers that cannot be compressed by much."""
    rng = random.Random(count)
    return [rng.randrange(1 << 20) for _ in range(count)]


def with_threads(server, act):
    """`act` within an event loop; when this returns, so have all threads."""

    async def main():
        async with asyncio.TaskGroup() as tasks:
            server.state.tasks = tasks
            act()

    asyncio.run(main())


class TestRequests:
    @encodings
    def test_json(self, server, encoding):
        """A body is what it was before it was compressed."""
        transport = server.connect()
        transport.feed(post(COMPRESS[encoding](document([1, 2])), Content_Encoding=encoding))
        assert data_of(transport.responses()[0]) == [1, 2]
        assert server.is_idle()

    @encodings
    @pytest.mark.parametrize("pieces", [False, True])
    def test_binary(self, server, encoding, pieces):
        """The header's length is counted before compression, and so is that of a raw request."""
        transport = server.connect()
        header, contents = binary([1, 2, 3])
        for lead in (header, b""):
            request = post(
                COMPRESS[encoding](lead + contents),
                Content_Encoding=encoding, Inference_Header_Content_Length=len(lead),
            )  # fmt: skip
            for part in [request[at : at + 9] for at in range(0, len(request), 9)] if pieces else [request]:
                transport.feed(part)
        first, (_, headers, body) = transport.responses()
        assert data_of(first) == [1, 2, 3]
        assert body[int(headers["inference-header-content-length"]) :] == contents
        assert server.is_idle()

    def test_identity(self, server):
        """It is no compression."""
        transport = server.connect()
        transport.feed(post(document([1]), Content_Encoding="identity", Accept_Encoding="identity"))
        assert data_of(transport.responses()[0]) == [1]

    @pytest.mark.parametrize(
        "body",
        [b"{}", gzip.compress(b"{}")[:-1], gzip.compress(b" " * (2 << 20))],
        ids=["none", "cut", "bomb"],
    )
    def test_no_good_body(self, server, body):
        """A body that cannot be decompressed, or becomes too large, is refused; the next request is answered."""
        transport = server.connect()

        def act():
            transport.feed(post(body, Content_Encoding="gzip"))
            transport.feed(post(document([1])))

        with_threads(server, act)
        assert transport.statuses() == [400, 200]
        assert server.is_idle()

    @pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/generate", "/v2/repository/index"])
    def test_unknown_encoding(self, server, path):
        """The client is told what it may use."""
        transport = server.connect()
        transport.feed(post(b"any", path, Content_Encoding="br"))
        ((status, headers, body),) = transport.responses()
        assert (status, json.loads(body)) == (501, {"error": "Unsupported compression type"})
        assert headers["accept-encoding"] == "gzip, deflate"

    @encodings
    def test_other_endpoints(self, server, encoding):
        """All of them take compressed bodies; only that of an inference is compressed in return."""
        transport = server.connect()
        how = {"Content_Encoding": encoding, "Accept_Encoding": encoding}
        transport.feed(post(COMPRESS[encoding](b'{"IN": [1, 2]}'), "/v2/models/m/generate", **how))
        transport.feed(post(COMPRESS[encoding](b'{"ready": true}'), "/v2/repository/index", **how))
        generated, index = transport.responses()
        assert json.loads(generated[2])["OUT"] == [1, 2]
        assert json.loads(index[2])[0]["state"] == "READY"

    def test_no_body(self, server):
        """An empty body with a Content-Encoding is accepted where no body is needed."""
        transport = server.connect()
        transport.feed(b"GET /v2/models/m HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n\r\n")
        assert transport.statuses() == [200]


class TestResponses:
    @encodings
    def test_json(self, server, encoding):
        """A response is compressed as the client wants it, however small."""
        transport = server.connect()
        transport.feed(post(document([1]), Accept_Encoding=encoding))
        ((_, headers, _),) = responses = transport.responses()
        assert headers["content-encoding"] == encoding
        assert data_of(responses[0]) == [1]
        assert server.is_idle()
        assert server.instance.released == 1

    @encodings
    def test_binary(self, server, encoding):
        """Where the document ends is said of what was compressed."""
        header, contents = binary([1, 2, 3])
        request = header.replace(b'"inputs"', b'"parameters": {"binary_data_output": true}, "inputs"') + contents
        transport = server.connect()
        transport.feed(
            post(request, Inference_Header_Content_Length=len(request) - len(contents), Accept_Encoding=encoding)
        )
        ((_, headers, body),) = transport.responses()
        assert headers["content-type"] == "application/octet-stream"
        assert DECOMPRESS[encoding](body)[int(headers["inference-header-content-length"]) :] == contents
        assert server.instance.released == 1

    def test_errors_are_not_compressed(self, server):
        """Clients take them as they are."""
        transport = server.connect()
        transport.feed(post(b"{}", Accept_Encoding="gzip"))
        ((status, headers, body),) = transport.responses()
        assert (status, "content-encoding" in headers) == (400, False)
        assert "error" in json.loads(body)

    def test_classes(self, server):
        """The largest elements with their indexes, and an error where there are none."""
        transport = server.connect()
        outputs = [{"name": "OUT", "parameters": {"classification": 2}}]
        transport.feed(post(document([5, 7, 6], outputs=outputs)))
        assert data_of(transport.responses()[0]) == ["7.000000:1", "6.000000:2"]
        assert server.is_idle()
        assert server.instance.released == 1


class TestThreads:
    def test_large_bodies(self, server):
        """They are decompressed and compressed elsewhere, and answered in the order in which they came."""
        transport = server.connect()
        large = noise(2 * MANY)
        body = gzip.compress(document(large))
        assert len(body) > DECOMPRESSED_AT_ONCE_MAX

        def act():
            transport.feed(post(body, Content_Encoding="gzip", Accept_Encoding="deflate"))
            transport.feed(post(document([1])))
            assert transport.sent == b""

        with_threads(server, act)
        first, second = transport.responses()
        assert first[1]["content-encoding"] == "deflate"
        assert (data_of(first), data_of(second)) == (large, [1])
        assert server.is_idle()
        assert server.instance.released == 2

    def test_large_response_in_json(self, server):
        """Its contents are put into words elsewhere."""
        header, contents = binary(noise(MANY))
        transport = server.connect()

        def act():
            transport.feed(post(header + contents, Inference_Header_Content_Length=len(header)))
            assert transport.sent == b""

        with_threads(server, act)
        assert data_of(transport.responses()[0]) == noise(MANY)

    def test_large_body_that_is_no_good(self, server):
        """It is refused."""
        transport = server.connect()
        body = gzip.compress(bytes(random.Random(1).randbytes(2 * DECOMPRESSED_AT_ONCE_MAX)))[:-1]
        with_threads(server, lambda: transport.feed(post(body, Content_Encoding="gzip")))
        assert transport.statuses() == [400]
        assert server.is_idle()

    @pytest.mark.parametrize("encoding", ["", "gzip"])
    def test_client_leaves_while_the_request_is_decompressed(self, server, encoding):
        """A request whose client leaves meanwhile does not reach the model."""
        transport = server.connect()
        body = gzip.compress(document(noise(2 * MANY)))
        server.instance.waits = True

        def act():
            transport.feed(post(body, Content_Encoding="gzip", Accept_Encoding=encoding))
            transport.lose()

        with_threads(server, act)
        assert (transport.sent, server.instance.jobs) == (b"", [])
        assert server.is_idle()

    def test_a_body_is_decompressed_no_further_once_its_client_sends_no_more(self, server):
        """Most such clients are gone. It is answered like other requests that are cancelled before they execute."""
        transport = server.connect()
        body = gzip.compress(bytes(64 << 20))
        assert len(body) > DECOMPRESSED_AT_ONCE_MAX

        def act():
            transport.feed(post(body, Content_Encoding="gzip"))
            assert transport._connection.eof_received()
            # In this turn of the event loop: no step follows the one that a thread may have begun.
            assert json.loads(transport.responses()[0][2]) == {"error": CANCELLED}
            assert server.state.pending_bytes.used == 0

        with_threads(server, act)
        assert transport.statuses() == [400]
        assert server.is_idle()

    def test_a_document_is_parsed_no_further_once_its_client_sends_no_more(self, server):
        transport = server.connect()

        def act():
            transport.feed(post(document(noise(2 * MANY))))
            assert transport._connection.eof_received()

        with_threads(server, act)
        ((status, _, body),) = transport.responses()
        assert (status, json.loads(body), server.instance.jobs) == (400, {"error": CANCELLED}, [])
        assert server.is_idle()

    @pytest.mark.parametrize("encoding", ["", "gzip"])
    def test_client_leaves_while_the_response_is_made(self, server, encoding):
        """The response's memory is given back, once nobody reads it."""
        header, contents = binary(noise(MANY))
        transport = server.connect()

        def act():
            transport.feed(
                post(header + contents, Inference_Header_Content_Length=len(header), Accept_Encoding=encoding)
            )
            transport.lose()
            assert server.instance.released == 0

        with_threads(server, act)
        assert transport.sent == b""
        assert server.is_idle()
        assert server.instance.released == 1

    def test_large_document(self, server):
        """It is parsed elsewhere, whether it is all of the body or not."""
        values = noise(2 * MANY)
        whole = document(values)
        assert len(whole) > PARSED_AT_ONCE_MAX
        _, contents = binary([1, 2])
        padded = document([1, 2], len(contents)) + b" " * PARSED_AT_ONCE_MAX
        transport = server.connect()

        def act():
            transport.feed(post(whole))
            transport.feed(post(padded + contents, Inference_Header_Content_Length=len(padded)))
            assert transport.sent == b""

        with_threads(server, act)
        assert [data_of(response) for response in transport.responses()] == [values, [1, 2]]
        assert server.is_idle()

    @pytest.mark.parametrize("mistake", [b"", b"]", b'{"inputs": []}'])
    def test_large_document_that_is_no_good(self, server, mistake):
        """It is refused, and the next request is answered."""
        transport = server.connect()

        def act():
            transport.feed(post(mistake + b" " * PARSED_AT_ONCE_MAX))
            transport.feed(post(document([1])))

        with_threads(server, act)
        assert transport.statuses() == [400, 200]
        assert server.is_idle()

    @pytest.mark.parametrize("lead", [False, True])
    def test_client_leaves_while_the_document_is_parsed(self, server, lead):
        """A request whose client leaves meanwhile does not reach the model."""
        transport = server.connect()
        body, contents = document([1], 4) + b" " * PARSED_AT_ONCE_MAX, bytes(4)
        headers = {"Inference_Header_Content_Length": len(body)} if lead else {}

        def act():
            transport.feed(post(body + contents, **headers))
            transport.lose()

        server.instance.waits = True
        with_threads(server, act)
        assert (transport.sent, server.instance.jobs) == (b"", [])
        assert server.is_idle()


STRINGS = (
    "name: 's' input { name: 'IN' data_type: TYPE_STRING dims: -1 } output { name: 'OUT' data_type: TYPE_INT8 dims: 1 }"
)
MANY_STRINGS = STRINGS_AT_ONCE_BYTES_MAX // 4 + 1


class TestStrings:
    """Many of them are counted elsewhere."""

    def ask(self, server, contents, then=lambda transport: None):
        server.instance.waits = True
        server._serve("s", STRINGS, server.instance)
        tensor = {"name": "IN", "datatype": "BYTES", "shape": [MANY_STRINGS]}
        header = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(contents)}}]}).encode()
        transport = server.connect()

        def act():
            transport.feed(post(header + contents, "/v2/models/s/infer", Inference_Header_Content_Length=len(header)))
            assert server.instance.jobs == []
            then(transport)

        with_threads(server, act)
        return transport

    def test_counted(self, server):
        """The model gets them then."""
        self.ask(server, bytes(4 * MANY_STRINGS))
        (job,) = server.instance.jobs
        assert job.tensors[0][:3] == ("IN", "BYTES", [MANY_STRINGS])
        job.free()

    def test_wrong(self, server):
        """Too many are as wrong as ever."""
        transport = self.ask(server, bytes(4 * MANY_STRINGS + 4))
        assert transport.statuses() == [400]
        assert server.is_idle()

    def test_client_leaves(self, server):
        """Their memory is free when they are counted."""
        self.ask(server, bytes(4 * MANY_STRINGS), lambda transport: transport.lose())
        assert server.instance.jobs == []
        assert server.is_idle()
