# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large answers with JSON go out piece by piece: to clients that read, that wait, and that leave."""

import asyncio
import gzip
import json
import struct

import pytest

from pyruntime.runtime.frontends.http import generate_exchange, infer_exchange, json_pieces, large_answer
from pyruntime.runtime.requests.types import InferResponse, OutputTensor

COUNT = 40_000
VALUES = [index % 8 for index in range(COUNT)]
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Answers of some ten pieces."""
    monkeypatch.setattr(infer_exchange, "LARGE_BYTES", 1000)
    monkeypatch.setattr(generate_exchange, "LARGE_BYTES", 1000)
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(json_pieces, "SLICE_ELEMENTS", 1000)
    monkeypatch.setattr(large_answer, "PIECE_BYTES", 10_000)


TWO = (
    "name: 'm' input { name: 'IN' data_type: TYPE_FP32 dims: -1 } output { name: 'OUT' data_type: TYPE_FP32 dims: -1 } "
    "output { name: 'B' data_type: TYPE_UINT8 dims: -1 }"
)


def request(version=b"1.1", headers=b"", model=b"m", **members):
    contents = struct.pack(f"<{COUNT}f", *VALUES)
    tensor = {"name": "IN", "datatype": "FP32", "shape": [COUNT], "parameters": {"binary_data_size": len(contents)}}
    document = json.dumps({"inputs": [tensor], **members}).encode()
    lengths = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n" % (
        len(document), len(document) + len(contents),
    )  # fmt: skip
    return b"POST /v2/models/%b/infer HTTP/%b\r\nHost: x\r\n%b%b\r\n%b%b" % (
        model, version, headers, lengths, document, contents,
    )  # fmt: skip


def run(server, *acts):
    """Each act within an event loop; it is over when no thread works any more."""

    async def main():
        for act in acts:
            async with asyncio.TaskGroup() as tasks:
                server.state.tasks = tasks
                act()

    asyncio.run(main())


def values_of(body):
    return json.loads(body)["outputs"][0]["data"]


def test_in_chunks(server):
    """The pieces are chunks, and the next request is answered behind them."""
    transport = server.connect()
    run(server, lambda: transport.feed(request() + READY))
    (status, headers, body), (then, _, _) = transport.responses()
    assert (status, headers["transfer-encoding"], then) == (200, "chunked", 200)
    assert "content-length" not in headers
    assert values_of(body) == VALUES
    assert transport.sent.count(b"\r\n") > 20
    assert server.is_idle()
    assert server.instance.released == 1
    assert server.state.pending_bytes.used == 0
    assert not transport.closed


def test_for_a_client_without_chunks(server):
    """The end of the connection is that of the answer."""
    transport = server.connect()
    run(server, lambda: transport.feed(request(b"1.0")))
    head, _, body = transport.sent.partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert b"Transfer-Encoding" not in head
    assert values_of(body) == VALUES
    assert transport.closed


def test_compressed(server):
    """The pieces are those of the compressed body."""
    transport = server.connect()
    run(server, lambda: transport.feed(request(headers=b"Accept-Encoding: gzip\r\n")))
    ((_, headers, body),) = transport.responses()
    assert headers["content-encoding"] == "gzip"
    assert values_of(gzip.decompress(body)) == VALUES


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_with_binary_contents_behind_it(server, encoding):
    """The head says how long the document is; and the body, unless it is compressed."""
    server.instance.waits = True
    server._serve("two", TWO, server.instance)
    transport = server.connect()
    outputs = [{"name": "OUT"}, {"name": "B", "parameters": {"binary_data": True}}]
    contents = bytes(range(256)) * 100

    def answer():
        transport.feed(request(headers=b"Accept-Encoding: %b\r\n" % encoding.encode(), model=b"two", outputs=outputs))
        (job,) = server.instance.jobs
        server.instance.jobs.clear()
        job.free()
        both = [
            OutputTensor("OUT", "FP32", [COUNT], memoryview(struct.pack(f"<{COUNT}f", *VALUES))),
            OutputTensor("B", "UINT8", [len(contents)], memoryview(contents)),
        ]
        job.respond(InferResponse("m", 1, job.id, both, release=server.instance._release), True)

    run(server, answer)
    ((_, headers, body),) = transport.responses()
    assert ("content-length" in headers) is (encoding == "")
    body = gzip.decompress(body) if encoding else body
    length = int(headers["inference-header-content-length"])
    assert values_of(body[:length]) == VALUES
    assert body[length:] == contents
    assert server.instance.released == 1


def test_a_client_that_does_not_read(server):
    """One piece is on its way and one waits; they count as pending bytes. It goes on when the client does."""
    transport = server.connect()
    transport.stalled = True
    run(server, lambda: transport.feed(request()))
    assert 10_000 < len(transport.sent) < 20_000
    assert 20_000 < server.state.pending_bytes.used < 40_000
    assert server.instance.released == 0
    run(server, transport.drain)
    assert values_of(transport.responses()[0][2]) == VALUES
    assert server.state.pending_bytes.used == 0
    assert server.instance.released == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves(server, begun):
    """No further piece is made, and the response is released when no thread reads it."""
    transport = server.connect()
    transport.stalled = True

    def leave():
        transport.lose()

    if begun:
        run(server, lambda: transport.feed(request()), leave)
    else:
        run(server, lambda: (transport.feed(request()), leave()))
    assert len(transport.sent) < 20_000
    assert server.instance.released == 1
    assert server.state.pending_bytes.used == 0
    assert server.is_idle()


def test_contents_that_change(server):
    """An answer that cannot be completed ends with its connection, and not as if it were complete."""
    server.instance.waits = True
    transport = server.connect()
    contents = bytearray(b"".join(struct.pack("<I", 1000) + b"x" * 1000 for _ in range(100)))

    def answer():
        transport.feed(request())
        (job,) = server.instance.jobs
        server.instance.jobs.clear()
        job.free()
        output = OutputTensor("OUT", "BYTES", [100], memoryview(contents))
        job.respond(InferResponse("m", 1, job.id, [output], release=server.instance._release), True)

    transport.stalled = True
    run(server, answer)
    contents[-500] = 0xFF
    run(server, transport.drain)
    assert transport.closed
    assert not transport.sent.endswith(b"0\r\n\r\n")
    assert server.instance.released == 1


def generate(model):
    body = json.dumps({"IN": VALUES}).encode()
    return b"POST /v2/models/%b/generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (model, len(body), body)


def test_generate(server):
    """Its one answer goes the same way."""
    transport = server.connect()
    run(server, lambda: transport.feed(generate(b"m")))
    ((status, headers, body),) = transport.responses()
    assert (status, headers["transfer-encoding"]) == (200, "chunked")
    assert json.loads(body) == {"model_name": "m", "model_version": "1", "OUT": VALUES}
    assert server.instance.released == 1
    assert server.is_idle()


@pytest.mark.parametrize("leaves", [False, True])
def test_generate_of_a_model_with_more_responses(server, leaves):
    """A large response is released, whether another one follows it or the client leaves."""
    transport = server.connect()

    def answer():
        head = b"POST /v2/models/d/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n"
        transport.feed(head + b'{"IN": [1]}')
        (job,) = server.decoupled.jobs
        contents = memoryview(struct.pack(f"<{COUNT}f", *VALUES))
        output = OutputTensor("OUT", "FP32", [COUNT], contents)
        job.respond(InferResponse("d", 1, job.id, [output], release=server.decoupled._release), False)
        assert server.decoupled.released == 0
        if leaves:
            transport.lose()
        else:
            server.decoupled.say(1.0)

    run(server, answer)
    assert server.decoupled.released == (1 if leaves else 2)
    assert leaves or transport.statuses() == [500]
