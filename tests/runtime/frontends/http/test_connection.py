# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP connections over a transport that notes written data: see conftest.py."""

import json

import numpy as np
import pytest

from pyruntime.runtime.frontends.http import incoming_body, lingering
from pyruntime.runtime.frontends.http.connection import PIPELINED_MAX
from pyruntime.runtime.frontends.http.exchange import JOINED_BYTES_MAX
from pyruntime.runtime.frontends.http.kserve_response import CANCELLED
from pyruntime.runtime.frontends.http.lingering import DISCARDED_BYTES_MAX
from pyruntime.runtime.frontends.http.request_head import HEAD_BYTES_MAX
from pyruntime.utils.errors import Code, InferenceError, OutOfMemoryError

# A body of more bytes than the server of conftest.py accepts.
TOO_LARGE = (1 << 20) + 1


def get(path, version=b"1.1", headers=b""):
    return b"GET %b HTTP/%b\r\nHost: x\r\n%b\r\n" % (path.encode(), version, headers)


def post(body, headers=b"", path=b"/v2/models/m/infer", length=None):
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path, headers, len(body) if length is None else length, body,
    )  # fmt: skip


def infer_json(*values, id="", path=b"/v2/models/m/infer"):
    document = {"id": id, "inputs": [{"name": "IN", "shape": [len(values)], "datatype": "FP32", "data": list(values)}]}
    return post(json.dumps(document).encode(), path=path)


def binary_body(*values):
    contents = np.array(values, np.float32).tobytes()
    document = {
        "inputs": [
            {
                "name": "IN",
                "shape": [len(values)],
                "datatype": "FP32",
                "parameters": {"binary_data_size": len(contents)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    header = json.dumps(document).encode()
    return header, contents


def infer_binary(*values, headers=b""):
    header, contents = binary_body(*values)
    return post(header + contents, headers + b"Inference-Header-Content-Length: %d\r\n" % len(header))


def infer_chunked(*values, sizes=(7,)):
    header, contents = binary_body(*values)
    body, chunks, index = header + contents, b"", 0
    while body:
        size = sizes[index % len(sizes)]
        chunks += b"%x\r\n%b\r\n" % (len(body[:size]), body[:size])
        body, index = body[size:], index + 1
    return (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n%b0\r\n\r\n" % (len(header), chunks)
    )


STREAM = b"".join(
    [
        get("/v2/health/live"),
        infer_binary(1, 2, 3),
        infer_json(4, 5, id="7"),
        get("/v2/models/nobody"),
        post(b"", path=b"/v2/repository/index"),
        post(np.array([6, 7], np.float32).tobytes(), b"Inference-Header-Content-Length: 0\r\n"),
        post(b"{", path=b"/v2/models/m/infer"),
        infer_binary(8),
        infer_chunked(9, 10),
    ]
)
STATUSES = [200, 200, 200, 404, 200, 200, 400, 200, 200]


def outputs(response):
    """The values of a response to an inference."""
    status, headers, body = response
    assert status == 200
    length = int(headers.get("inference-header-content-length", len(body)))
    (output,) = json.loads(body[:length])["outputs"]
    return output["data"] if "data" in output else np.frombuffer(body[length:], np.float32).tolist()


class TestAnySplit:
    def whole(self, server):
        transport = server.connect()
        transport.feed(STREAM)
        return transport

    def test_whole(self, shared):
        """Requests in one piece are answered in order."""
        transport = self.whole(shared)
        assert transport.statuses() == STATUSES
        found = transport.responses()
        assert [outputs(found[index]) for index in (1, 2, 5, 7, 8)] == [
            [1.0, 2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0], [9.0, 10.0],
        ]  # fmt: skip
        assert shared.is_idle()
        assert not transport.closed

    def test_one_byte_at_a_time(self, shared):
        """Requests that arrive byte by byte have the same responses."""
        transport = shared.connect()
        for at in range(len(STREAM)):
            transport.feed(STREAM[at : at + 1])
        assert transport.sent == self.whole(shared).sent
        assert shared.is_idle()

    def test_every_split(self, shared):
        """Requests that arrive in two pieces have the same responses, wherever the cut is."""
        expected = self.whole(shared).sent
        for at in range(1, len(STREAM)):
            transport = shared.connect()
            transport.feed(STREAM[:at])
            transport.feed(STREAM[at:])
            assert transport.sent == expected, at
        assert shared.is_idle()

    def test_every_split_behind_chunks(self, shared):
        """A request after a chunked body is answered, wherever the data is split."""
        stream = infer_chunked(1, 2) + get("/v2/health/live")
        for at in range(1, len(stream)):
            transport = shared.connect()
            transport.feed(stream[:at])
            transport.feed(stream[at:])
            assert transport.statuses() == [200, 200], at

    def test_every_loss(self, shared):
        """Wherever a client is lost nothing of its requests is left."""
        for at in range(1, len(STREAM), 3):
            transport = shared.connect()
            transport.feed(STREAM[:at])
            transport.lose()
            assert shared.is_idle(), at
        assert transport._connection not in shared.connections

    @pytest.mark.parametrize("sizes", [(1,), (3, 1, 50), (10_000,)])
    def test_any_chunks(self, shared, sizes):
        """A body in chunks is the same, however they are cut."""
        transport = shared.connect()
        transport.feed(infer_chunked(1, 2, sizes=sizes))
        assert outputs(transport.responses()[0]) == [1.0, 2.0]


class TestOrder:
    def test_of_pipelined_answers(self, server):
        """Answers come in the order of their requests, whichever is ready first."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer_json(1) + get("/v2/health/live") + infer_json(2))
        assert transport.sent == b""
        first, second = server.instance.jobs
        server.instance.jobs = [second]
        server.instance.answer()
        assert transport.sent == b""
        server.instance.jobs = [first]
        server.instance.answer()
        found = transport.responses()
        assert (outputs(found[0]), found[1][0], outputs(found[2])) == ([1.0], 200, [2.0])
        assert server.is_idle()

    def test_too_many(self, server):
        """More than so many requests wait in the socket."""
        server.instance.waits = True
        transport = server.connect()
        for _ in range(PIPELINED_MAX + 10):
            transport.feed(infer_json(1))
        assert len(server.instance.jobs) <= PIPELINED_MAX
        while server.instance.jobs:
            server.instance.answer()
        assert transport.statuses() == [200] * (PIPELINED_MAX + 10)
        assert server.is_idle()

    def test_too_many_at_once(self, server):
        """The same holds for requests that come in one read."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer_json(1) * (PIPELINED_MAX + 10))
        assert len(server.instance.jobs) <= PIPELINED_MAX
        while server.instance.jobs:
            server.instance.answer()
        assert transport.statuses() == [200] * (PIPELINED_MAX + 10)

    def test_client_that_does_not_read(self, server):
        """The connection stops reading while the client does not read its responses."""
        transport = server.connect()
        transport.stalled = True
        transport.feed(infer_json(1))
        assert transport.is_paused
        transport.feed(infer_json(2))
        assert len(transport.responses()) == 1
        transport.drain()
        assert not transport.is_paused
        assert len(transport.responses()) == 2


class TestRelease:
    def test_of_small_responses(self, server):
        """A small response is copied out, so its memory is free at once."""
        transport = server.connect()
        transport.stalled = True
        transport.feed(infer_json(1))
        assert server.instance.released == 1

    def test_of_large_responses(self, server):
        """A large one is written from where it lies, which is free once it was sent."""
        transport = server.connect()
        transport.stalled = True
        transport.feed(infer_binary(*range(JOINED_BYTES_MAX)))
        assert server.instance.released == 0
        transport.drain()
        assert server.instance.released == 1
        assert outputs(transport.responses()[0]) == list(range(JOINED_BYTES_MAX))
        assert server.is_idle()

    def test_of_a_lost_client(self, server):
        """Its memory is free as well."""
        transport = server.connect()
        transport.stalled = True
        transport.feed(infer_binary(*range(JOINED_BYTES_MAX)))
        transport.lose()
        assert server.instance.released == 1
        assert server.is_idle()

    def test_of_a_response_that_comes_too_late(self, server):
        """A response whose client is gone is released and dropped."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer_json(1))
        transport.lose()
        assert server.state.in_flight == 0
        server.instance.answer()
        assert server.instance.released == 1
        assert transport.sent == b""
        assert server.memory.live == 0

    def test_of_one_that_waits_for_its_turn(self, server):
        """A response that waits for an earlier one is released, too."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer_json(1) + infer_json(2))
        server.instance.jobs.reverse()
        server.instance.answer(1)
        transport.lose()
        assert server.instance.released == 1
        server.instance.answer()
        assert server.instance.released == 2
        assert server.is_idle()


class TestClosing:
    @pytest.mark.parametrize("request_", [get("/v2", b"1.0"), get("/v2", headers=b"Connection: close\r\n")])
    def test_when_the_client_wants_it(self, server, request_):
        """A connection ends when its client says so, or speaks HTTP/1.0."""
        transport = server.connect()
        transport.feed(request_)
        assert transport.closed
        assert transport.responses()[0][1]["connection"] == "close"

    def test_nothing_behind_it(self, server):
        """A request behind the last one is neither executed nor answered."""
        transport = server.connect()
        transport.feed(get("/v2", headers=b"Connection: close\r\n") + infer_json(1))
        assert transport.statuses() == [200]
        assert server.instance.released == 0

    def test_nothing_behind_it_while_it_runs(self, server):
        """Not even while the last one is still under way."""
        server.instance.waits = True
        transport = server.connect()
        last = infer_json(1).replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n")
        transport.feed(last + infer_json(2))
        transport.feed(infer_json(3))
        assert len(server.instance.jobs) == 1
        server.instance.answer()
        assert transport.statuses() == [200]
        assert transport.closed
        assert server.is_idle()

    def test_client_that_stopped_sending(self, server):
        """A client that shut down its end still gets its answers."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer_json(1) + infer_json(2))
        assert transport._connection.eof_received()
        server.instance.answer()
        assert transport.statuses() == [200, 200]
        assert transport.closed

    def test_what_has_not_begun_when_a_client_stops_sending(self, server):
        """It never will: the client is most likely gone."""
        server.instance.waits = True
        server.instance.capacity = 0
        transport = server.connect()
        transport.feed(infer_json(1))
        assert transport._connection.eof_received()
        assert server.instance.jobs == []
        ((status, _, body),) = transport.responses()
        assert (status, json.loads(body)) == (400, {"error": CANCELLED})
        assert transport.closed
        assert server.is_idle()

    def test_client_that_stopped_in_the_middle(self, server):
        """The connection closes if the client's data ends before or within a request."""
        transport = server.connect()
        assert not transport._connection.eof_received()
        transport.feed(infer_binary(1, 2)[:-1])
        assert not transport._connection.eof_received()
        transport.lose()
        assert server.is_idle()

    def test_idle(self, server):
        """An idle connection ends at once, a busy one with its last answer."""
        idle, busy = server.connect(), server.connect()
        server.instance.waits = True
        busy.feed(infer_json(1))
        for transport in (idle, busy):
            transport._connection.close_idle()
        assert (idle.closed, busy.closed) == (True, False)
        server.instance.answer()
        assert busy.closed
        assert busy.statuses() == [200]


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (b"hello\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
            (b"G" * (HEAD_BYTES_MAX + 1), 431),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        ],
        ids=["no-http", "length", "lengths", "chunks", "long", "endless", "tls"],
    )
    def test_no_request(self, server, data, status):
        """Malformed data is refused after the earlier responses, and the connection reads no further."""
        transport = server.connect()
        transport.feed(get("/v2/health/live") + data + get("/v2/health/live"))
        assert transport.statuses() == [200, status]
        assert transport.closed
        assert "error" in json.loads(transport.responses()[1][2])
        assert server.is_idle()

    @pytest.mark.parametrize("length", [0, 5, 10_000])
    def test_chunks_and_a_length(self, server, length):
        """The request is served by its chunks, wherever they are cut, and is the last one of the connection."""
        stream = infer_chunked(1, 2).replace(b"\r\nTransfer", b"\r\nContent-Length: %d\r\nTransfer" % length, 1)
        for cut in range(1, len(stream), 7):
            transport = server.connect()
            transport.feed(stream[:cut])
            transport.feed(stream[cut:] + get("/v2/health/live"))
            assert transport.statuses() == [200], transport.responses()
            assert transport.responses()[0][1]["connection"] == "close"
            assert transport.closed
        assert server.is_idle()

    def test_behind_one_that_runs(self, server):
        """The refusal waits for the answers before it."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer_json(1) + b"hello\r\n\r\n")
        assert transport.sent == b""
        server.instance.answer()
        assert transport.statuses() == [200, 400]
        assert transport.closed

    def test_bad_chunk_in_the_middle(self, server):
        """A body that goes wrong in the middle fails its request."""
        transport = server.connect()
        transport.feed(infer_chunked(1, 2)[:-30])
        transport.feed(b"\xff\xff\xff\xff\xff\xff\r\n" * 5)
        assert transport.statuses() == [400]
        assert transport.closed
        assert server.is_idle()

    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (infer_json(1, path=b"/v2/models/nobody/infer"), 404),
            (infer_json(1, path=b"/v2/models/m/versions/9/infer"), 404),
            (infer_json(1, path=b"/v2/models/d/infer"), 501),
            (post(b"x" * 10, b"Content-Encoding: br\r\n"), 501),
            (post(b"x" * TOO_LARGE), 400),
            (post(b"x" * TOO_LARGE, b"Inference-Header-Content-Length: 5\r\n"), 400),
            (post(b"{}", b"Inference-Header-Content-Length: 3\r\n"), 400),
            (post(b"{}", b"Inference-Header-Content-Length: x\r\n"), 400),
            (post(b"{}"), 400),
            (post(b""), 400),
            (get("/v2/models/m/infer"), 405),
        ],
        ids=[
            "model",
            "version",
            "decoupled",
            "encoding",
            "size",
            "binary-size",
            "header",
            "no-header",
            "empty",
            "none",
            "get",
        ],
    )
    def test_no_good_request(self, server, data, status):
        """A request that is refused leaves its connection as it was: the next one is answered."""
        transport = server.connect()
        transport.feed(data)
        transport.feed(infer_json(1))
        assert transport.statuses() == [status, 200]
        assert server.is_idle()

    def test_too_large_in_chunks(self, server):
        """A body of unknown length is refused once it is too large, and no more of it is kept."""
        transport = server.connect()
        chunk = b"%x\r\n%b\r\n" % (1 << 16, b"x" * (1 << 16))
        transport.feed(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            transport.feed(chunk)
        transport.feed(b"0\r\n\r\n")
        assert transport.statuses() == [400]
        assert server.is_idle()

    @pytest.mark.parametrize(
        "head",
        [
            post(b"", length=DISCARDED_BYTES_MAX + 1),
            b"POST /nowhere HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (DISCARDED_BYTES_MAX + 1),
        ],
        ids=["too large", "unknown"],
    )
    def test_body_that_is_too_long_to_wait_for(self, server, head, monkeypatch):
        """A request with a long body is refused before it has come; what comes is discarded, within limits."""
        monkeypatch.setattr(lingering, "LINGER_BYTES_MAX", 1 << 20)
        transport = server.connect()
        transport.feed(head + b"x" * HEAD_BYTES_MAX)
        ((status, headers, _),) = transport.responses()
        assert (status in (400, 404), headers["connection"]) == (True, "close")
        assert transport.half_closed
        for _ in range(16):
            transport.feed(b"x" * (1 << 16))
        assert not transport.closed
        transport.feed(get("/v2"))
        assert transport.aborted
        assert len(transport.responses()) == 1
        transport.lose()
        assert server.is_idle()

    def test_chunks_without_an_end(self, server, monkeypatch):
        """A refused request whose chunks go on is answered after DISCARDED_BYTES_MAX of them."""
        monkeypatch.setattr(incoming_body, "DISCARDED_BYTES_MAX", 1 << 20)
        transport = server.connect()
        transport.feed(b"POST /nowhere HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for sent in range(20):
            transport.feed(b"%x\r\n%b\r\n" % (1 << 16, b"x" * (1 << 16)))
            assert transport.statuses() == ([404] if sent >= 16 else [])
        assert transport.half_closed
        assert not transport.closed
        transport.feed(b"0\r\n\r\n")
        assert transport.statuses() == [404]
        assert not transport._connection.eof_received()
        transport.lose()
        assert server.is_idle()

    @pytest.mark.parametrize("code", Code)
    def test_failure_of_the_model(self, server, code):
        """A failed request has the status of its code, and the message."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer_json(1))
        server.instance.jobs[0].free()
        server.instance.jobs[0].respond(InferenceError("no", code), True)
        ((status, _, body),) = transport.responses()
        assert status in (400, 404, 500, 501, 503, 504)
        assert json.loads(body) == {"error": "no"}
        assert server.is_idle()


class TestContinue:
    HEADERS = b"Expect: 100-continue\r\n"

    def test_asked_for(self, server):
        """A client that expects it gets a 100 Continue before its body."""
        transport = server.connect()
        data = infer_binary(1, headers=self.HEADERS)
        at = data.index(b"\r\n\r\n") + 4
        transport.feed(data[:at])
        assert transport.statuses() == [100]
        transport.feed(data[at:])
        assert transport.statuses() == [100, 200]

    def test_body_is_there_already(self, server):
        """A client that does not wait for it gets no 100 Continue."""
        transport = server.connect()
        transport.feed(infer_binary(1, headers=self.HEADERS))
        assert transport.statuses() == [200]

    def test_refused(self, server):
        """A request that cannot succeed is refused at once, without a 100 Continue."""
        transport = server.connect()
        data = infer_json(1, path=b"/v2/models/nobody/infer").replace(b"Host: x\r\n", b"Host: x\r\n" + self.HEADERS)
        at = data.index(b"\r\n\r\n") + 4
        transport.feed(data[:at])
        assert transport.statuses() == [404]

    def test_refused_with_part_of_the_body(self, server):
        """A part of a refused body is not read as a request."""
        transport = server.connect()
        data = infer_json(1, path=b"/v2/models/nobody/infer").replace(b"Host: x\r\n", b"Host: x\r\n" + self.HEADERS)
        transport.feed(data[:-1])
        transport.feed(data[-1:])
        assert transport.statuses() == [404]

    def test_behind_another(self, server):
        """The 100 Continue of a request is sent after the response to the request before it."""
        server.instance.waits = True
        transport = server.connect()
        data = infer_binary(2, headers=self.HEADERS)
        at = data.index(b"\r\n\r\n") + 4
        transport.feed(infer_json(1) + data[:at])
        assert transport.sent == b""
        server.instance.answer()
        assert transport.statuses() == [200, 100]
        transport.feed(data[at:])
        server.instance.answer()
        assert transport.statuses() == [200, 100, 200]


class TestDirect:
    def test_body_is_read_into_its_place(self, server):
        """The socket reads a binary body straight into the request region."""
        transport = server.connect()
        data = infer_binary(*range(1000))
        transport.feed(data[:300])
        buffer = transport._connection.get_buffer(-1)
        assert len(buffer) == len(data) - 300
        assert server.memory.live == 1
        transport.feed(data[300:])
        assert outputs(transport.responses()[0]) == list(range(1000))
        assert server.is_idle()

    def test_no_memory_for_it(self, server, monkeypatch):
        """Without memory the request is UNAVAILABLE, and the connection goes on."""

        def allocate(size, lead=0):
            raise InferenceError("no room", Code.UNAVAILABLE)

        transport = server.connect()
        data = infer_binary(*range(1000))
        with monkeypatch.context() as patch:
            patch.setattr(server.memory, "allocate_growing", allocate)
            transport.feed(data[:300])
            transport.feed(data[300:])
        assert transport.statuses() == [503]
        transport.feed(infer_json(1))
        assert transport.statuses() == [503, 200]


class TestGrowingBody:
    """Memory for a large body exists as far as the body has come."""

    COUNT = 250_000
    DATA = infer_binary(*range(COUNT))

    def test_body_in_parts(self, server):
        """The socket reads part after part of it into the request region."""
        transport = server.connect()
        transport.feed(self.DATA[:300])
        used, rest = server.memory.region.used_bytes, len(self.DATA) - 300
        assert len(transport._connection.get_buffer(-1)) < rest / 4
        transport.feed(self.DATA[300 : 300 + rest // 3])
        assert used < server.memory.region.used_bytes < used + rest
        transport.feed(self.DATA[300 + rest // 3 :])
        assert outputs(transport.responses()[0]) == list(range(self.COUNT))
        assert server.is_idle()

    @pytest.mark.parametrize("size", [1000, 100_000, 400_000])
    def test_beginning_that_comes_with_the_head(self, server, size):
        """However much of it is read with the head."""
        transport = server.connect()
        transport._incoming = self.DATA[:size]
        transport._pump()
        transport.feed(self.DATA[size:])
        transport.feed(get("/v2/health/live"))
        assert outputs(transport.responses()[0]) == list(range(self.COUNT))
        assert transport.statuses() == [200, 200]
        assert server.is_idle()

    def test_clients_that_announce(self, server):
        """Bodies that are announced take no memory, and leave none behind."""
        before = server.memory.region.used_bytes
        transports = [server.connect() for _ in range(20)]
        for transport in transports:
            transport.feed(self.DATA[:300])
        assert server.memory.live == 20
        assert server.memory.region.used_bytes - before < 20 * len(self.DATA) / 4
        for transport in transports:
            transport.lose()
        assert server.memory.region.used_bytes <= before
        assert server.is_idle()

    def test_no_memory_for_the_rest(self, server, monkeypatch):
        """When memory runs out the request is UNAVAILABLE, and the connection goes on behind its body."""

        def commit(offset, size):
            raise OutOfMemoryError("no shared memory left")

        transport = server.connect()
        transport.feed(self.DATA[:300])
        with monkeypatch.context() as patch:
            patch.setattr(server.memory.region, "commit", commit)
            transport.feed(self.DATA[300:])
        assert transport.statuses() == [503]
        transport.feed(infer_json(1))
        assert transport.statuses() == [503, 200]
        assert server.is_idle()

    def test_slow_client(self, server):
        """Each byte of it is progress."""
        transport = server.connect()
        taken = []
        for at in range(0, len(self.DATA), 10_000):
            transport.feed(self.DATA[at : at + 10_000])
            taken.append(transport._connection._progress())
        assert taken[:-1] == sorted(set(taken[:-1]))


class TestExiting:
    def test_refuses(self, server):
        """A server that exits takes no more requests."""
        server.state.exiting = True
        transport = server.connect()
        transport.feed(infer_json(1) + get("/v2/health/ready"))
        assert transport.statuses() == [503, 503]
        assert json.loads(transport.responses()[0][2]) == {"error": "Server exiting"}


def test_repr(server):
    """A connection shows how many requests it has."""
    server.instance.waits = True
    transport = server.connect()
    transport.feed(infer_json(1))
    assert repr(transport._connection) == "<HttpConnection [1 exchanges]>"


@pytest.mark.parametrize("begun", [0, 1, 200])
def test_model_that_goes_while_a_body_comes_in(server, begun):
    """The request is refused, whether its header is remembered or not, instead of waiting for the model."""
    transport = server.connect()
    transport.feed(infer_binary(1, 2))  # the header is remembered from here on
    request = infer_binary(1, 2)
    head = request.index(b"\r\n\r\n") + 4
    transport.feed(request[: head + min(begun, len(request) - head - 1)])
    server.instance.down = "it died"
    server.model.review_instances()
    transport.feed(request[head + min(begun, len(request) - head - 1) :])
    assert transport.statuses() == [200, 503]
    assert b"Stub process 'm_0' is not healthy." in transport.responses()[1][2]
    assert server.is_idle()
