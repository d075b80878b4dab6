# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies of HTTP and the budget of pending bytes: which count, which wait, and which are refused."""

import gzip
import json

import pytest

from pyruntime.runtime.inference.pending_bytes import PendingBytes
from pyruntime.utils.errors import Code, InferenceError

from .test_connection import get, infer_binary, infer_json, outputs, post

# What one read brings at most in these tests.
READ = 100
LIMIT = 1000


@pytest.fixture
def server(server):
    server.state.pending_bytes = PendingBytes(LIMIT, server.state.turns)
    return server


@pytest.fixture
def big_server(server):
    """With room for the steps of a decompression."""
    server.state.pending_bytes = PendingBytes(64 << 20, server.state.turns)
    return server


def document(*values, size=400):
    text = json.dumps({"inputs": [{"name": "IN", "shape": [len(values)], "datatype": "FP32", "data": list(values)}]})
    return text.encode().ljust(size)


def split(body, chunked, path=b"/v2/models/m/infer"):
    """A request with its head, and the reads of its body."""
    if not chunked:
        return post(b"", path=path, length=len(body)), [body[at : at + READ] for at in range(0, len(body), READ)]
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    parts = [body[at : at + READ] for at in range(0, len(body), READ)]
    return head, [*(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


bodies = pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])


def fill(server, nbytes=LIMIT):
    """Claims of other connections that hold so many bytes."""
    pending = server.state.pending_bytes
    claims = []
    while nbytes:
        claims.append(pending.share().claim())
        claims[-1].take(min(nbytes, LIMIT // 2))
        nbytes -= claims[-1].held
    return claims


def test_bodies_in_one_read(server):
    """They need no room."""
    fill(server)
    transport = server.connect()
    transport.feed(infer_json(1, 2) + infer_binary(3) + get("/v2/health/live") + post(b"{}", path=b"/v2/logging"))
    assert transport.statuses() == [200] * 4


def test_bodies_in_request_memory(server):
    """Those that the socket reads into it need none either."""
    fill(server)
    transport = server.connect()
    request = infer_binary(1, 2, 3)
    transport.feed(request[:-20])
    transport.feed(request[-20:])
    assert outputs(transport.responses()[0]) == [1.0, 2.0, 3.0]


@bodies
def test_a_body_counts_as_it_arrives(server, chunked):
    """A body in the heap counts, piece by piece, until its tensors are in request memory."""
    pending = server.state.pending_bytes
    server.instance.waits = True
    transport = server.connect()
    head, reads = split(document(1, 2), chunked)
    transport.feed(head)
    assert pending.used == 0  # an announcement takes nothing
    received = 0
    for read in reads[:-1]:
        transport.feed(read)
        received += len(read)
        assert received <= pending.used + 6 * len(reads)
        assert pending.used <= received
    transport.feed(reads[-1])
    assert len(server.instance.jobs) == 1
    assert pending.used == 0
    server.instance.answer()
    assert outputs(transport.responses()[0]) == [1.0, 2.0]


@bodies
def test_client_that_leaves(server, chunked):
    """What a client leaves behind is given back."""
    head, reads = split(document(1), chunked)
    transport = server.connect()
    transport.feed(head)
    transport.feed(reads[0])
    assert server.state.pending_bytes.used > 0
    transport.lose()
    assert server.state.pending_bytes.used == 0
    assert server.is_idle()


@bodies
def test_a_body_waits(server, chunked):
    """Without room a connection is not read, and its clients of other connections go on; with room it is."""
    claims = fill(server)
    transport, other = server.connect(), server.connect()
    head, reads = split(document(1, 2), chunked)
    transport.feed(head)
    for read in reads:
        transport.feed(read)
    assert transport.is_paused
    assert transport.sent == b""
    other.feed(infer_json(3))
    assert other.statuses() == [200]
    claims[0].end()
    assert not transport.is_paused
    assert outputs(transport.responses()[0]) == [1.0, 2.0]
    assert server.state.pending_bytes.used == LIMIT // 2


@bodies
def test_a_body_waits_in_vain(server, chunked):
    """A body that waits for too long is refused with 503, what is left of it is discarded, and the next one is read."""
    fill(server)
    transport = server.connect()
    head, reads = split(document(1, 2), chunked)
    transport.feed(head)
    for read in reads:
        transport.feed(read)
    server.state.pending_bytes.check(0.0)
    server.state.pending_bytes.check(30.0)
    transport.feed(get("/v2/health/live"))
    (status, _, body), (live, _, _) = transport.responses()
    assert (status, live) == (503, 200)
    assert "--max-pending-bytes" in json.loads(body)["error"]
    assert server.state.pending_bytes.used == LIMIT
    assert server.is_idle()


@bodies
def test_client_that_leaves_while_its_body_waits(server, chunked):
    """It waits no longer."""
    claims = fill(server)
    transport = server.connect()
    head, reads = split(document(1), chunked)
    transport.feed(head)
    transport.feed(reads[0])
    transport.lose()
    claims[0].end()
    assert server.state.pending_bytes.used == LIMIT // 2
    assert transport.sent == b""


@bodies
def test_too_many_bytes_of_one_connection(server, chunked):
    """A body above its connection's share is refused where it passes it."""
    transport = server.connect()
    head, reads = split(document(1, size=800), chunked)
    transport.feed(head)
    for read in reads:
        transport.feed(read)
        assert server.state.pending_bytes.used <= LIMIT // 2
    transport.feed(get("/v2/health/live"))
    assert transport.statuses() == [503, 200]
    assert server.is_idle()


def test_bodies_that_wait_for_each_other(server):
    """Bodies that hold everything between them do not wait for ever: the last one is refused, the others are served."""
    transports = [server.connect() for _ in range(4)]
    requests = [split(document(number), chunked=False) for number in range(4)]
    for transport, (head, _) in zip(transports, requests, strict=True):
        transport.feed(head)
    for reads in zip(*(reads for _, reads in requests), strict=True):
        for transport, read in zip(transports, reads, strict=True):
            transport.feed(read)
    assert sorted(status for transport in transports for status in transport.statuses()) == [200, 200, 200, 503]
    assert server.state.pending_bytes.used == 0
    assert server.is_idle()


def test_slow_clients(server):
    """A client whose body waits is not too slow: the server is."""
    fill(server)
    transport = server.connect()
    head, reads = split(document(1), chunked=False)
    transport.feed(head)
    transport.feed(reads[0])
    (connection,) = server.connections
    for now in range(0, 600, 5):
        connection.check(float(now), crowded=False)
    assert transport.sent == b""


def test_other_endpoints(server):
    """A body above 64 KiB is refused by its head where no tensors and no files are expected, and is not kept."""
    transport = server.connect()
    for path in (b"/v2/logging", b"/v2/trace/setting", b"/v2/repository/index"):
        transport.feed(post(b"", path=path, length=(64 << 10) + 1))
        transport.feed(bytes((64 << 10) + 1))
        transport.feed(post(b"{}".ljust(64 << 10), path=path))
        assert server.state.pending_bytes.used == 0
    assert transport.statuses() == [400, 200] * 3
    assert (
        "exceeds the maximum allowed input size of 65536 bytes of this endpoint"
        in json.loads(transport.responses()[0][2])["error"]
    )


@pytest.mark.parametrize("path", [b"/v2/repository/models/m/load", b"/v2/repository/models/m/unload"])
def test_control_that_is_not_allowed(server, path):
    """Whether models may be loaded is asked before anything is read of the body."""

    class Control:
        def check_explicit(self):
            raise InferenceError("not allowed", Code.UNAVAILABLE)

    server.state.control = Control()
    transport = server.connect()
    transport.feed(post(b"no JSON", path=path))
    transport.feed(post(b"no gzip", b"Content-Encoding: gzip\r\n", path=path))
    transport.feed(post(b"", path=path, length=500))
    transport.feed(bytes(500))
    assert server.state.pending_bytes.used == 0
    assert [(status, json.loads(body)) for status, _, body in transport.responses()] == [
        (503, {"error": "not allowed"})
    ] * 3


class TestGrown:
    """What a compressed body becomes in request memory counts until its slot is freed."""

    def post(self, *values):
        request = infer_binary(*values)
        head, body = request.split(b"\r\n\r\n", 1)
        sent = gzip.compress(body)
        lines = [line for line in head.split(b"\r\n")[1:] if line.lower().startswith(b"inference-header")]
        path = head.split()[1]
        return (
            post(sent, b"".join(line + b"\r\n" for line in [*lines, b"Content-Encoding: gzip"]), path=path),
            body,
            sent,
        )

    def test_until_it_is_executed(self, big_server):
        """Only what it has more than was received; the answer gives it back."""
        server = big_server
        server.instance.waits = True
        transport = server.connect()
        request, body, sent = self.post(*[0.0] * 5000)
        transport.feed(request)
        assert len(server.instance.jobs) == 1
        assert server.state.pending_bytes.used == len(body) - len(sent)
        server.instance.answer()
        assert transport.statuses() == [200]
        assert server.state.pending_bytes.used == 0

    def test_client_that_leaves(self, big_server):
        """The bytes count as long as the model may read them."""
        server = big_server
        server.instance.waits = True
        transport = server.connect()
        request, body, sent = self.post(*[0.0] * 5000)
        transport.feed(request)
        transport.lose()
        assert server.state.pending_bytes.used == (len(body) - len(sent)) * len(server.instance.jobs)
        server.instance.answer()
        assert server.state.pending_bytes.used == 0
        assert server.is_idle()
