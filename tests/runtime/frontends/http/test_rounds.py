# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Many requests of one read, and of many connections, are handled in several turns of the event loop."""

from itertools import count, pairwise

import pytest

from pyruntime.runtime import rounds as app_rounds
from pyruntime.runtime.frontends.http.request_head import CHUNK_STEPS_MAX
from pyruntime.runtime.rounds import Rounds

from .test_connection import STATUSES, STREAM, get, infer_binary, infer_chunked, infer_json, outputs, post


class Loop:
    """Turns in which there is time for nothing but what must be done at once."""

    def __init__(self):
        self.due = []

    def turn(self):
        due = self.due[:]
        del self.due[:]
        for call_back in due:
            call_back()
        return bool(due)


# The reads of a turn that are handled at once: fewer than in a real server, so that the tests need fewer clients.
AT_ONCE = 4


@pytest.fixture
def loop(server, monkeypatch):
    made = Loop()
    monkeypatch.setattr(app_rounds, "AT_ONCE_MAX", AT_ONCE)
    # A second passes with each look at the clock. It is far behind the real one, so that `until` is always over.
    server.state.rounds = Rounds(count(-(10**9)).__next__, made.due.append)
    return made


@pytest.fixture
def busy(server, loop):
    """`busy()` begins a turn that has no time left."""

    def busy():
        server.connect().feed(get("/v2") * 2)

    return busy


BINARY, JSON = infer_binary(1), infer_json(1)
# (what each client of a crowd has sent already, what it sends now, the status of the answer).
CROWDS = {
    "infer": (b"", JSON, 200),
    "the last byte of a document": (JSON[:-1], JSON[-1:], 200),
    "the last byte of a tensor": (BINARY[:-1], BINARY[-1:], 200),
    "the last byte of a head": (get("/v2/models/m/ready")[:-1], b"\n", 200),
    "generate": (b"", post(b"{}", path=b"/v2/models/m/generate"), 400),
    "malformed": (b"", b"nonsense\r\n\r\n", 400),
    "TLS": (b"", b"\x16\x03\x01", 400),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_crowd(server, loop, crowd):
    """A turn handles a limited number of requests, however many connections have one; health is answered between."""
    before, now, status = CROWDS[crowd]
    clients = [server.connect() for _ in range(3 * AT_ONCE)]
    for client in clients:
        client.feed(before)
    while loop.turn():
        pass
    assert server.state.rounds.at_once == AT_ONCE
    for client in clients:
        client.feed(now)
    counts = [sum(len(client.responses()) for client in clients)]
    while True:
        for path in ("/v2/health/live", "/v2/health/ready"):
            probe = server.connect()
            probe.feed(get(path))
            assert probe.statuses() == [200]
        if not loop.turn():
            break
        counts.append(sum(len(client.responses()) for client in clients))
    # The first one that finds no more to be handled at once begins to look at the clock.
    assert counts[0] == AT_ONCE + 1
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert [client.statuses() for client in clients] == [[status]] * len(clients)
    assert not any(client.is_paused for client in clients if not client.closed)
    assert server.is_idle()


def test_crowd_that_leaves(server, loop):
    """Complete bodies that wait are dropped with their clients."""
    clients = [server.connect() for _ in range(AT_ONCE + 9)]
    for client in clients:
        client.feed(BINARY[:-1])
    for client in clients:
        client.feed(BINARY[-1:])
    for client in clients:
        client.lose()
    while loop.turn():
        pass
    assert server.is_idle()


def test_one_request(server, loop):
    """A request of its own is answered at once, however busy the turn is, and so are questions about health."""
    server.connect().feed(get("/v2") * 5)
    for request in (infer_json(1), infer_binary(1), get("/v2/health/live"), get("/v2/health/ready")):
        transport = server.connect()
        transport.feed(request)
        assert transport.statuses() == [200]


def test_requests_of_one_read(server, loop):
    """Each turn answers some, in order; reading is paused meanwhile."""
    transport = server.connect()
    transport.feed(STREAM * 3)
    counts = [len(transport.responses())]
    assert transport.is_paused
    while loop.turn():
        counts.append(len(transport.responses()))
    assert transport.statuses() == STATUSES * 3
    assert max(after - before for before, after in pairwise(counts)) <= 3
    assert not transport.is_paused
    assert server.is_idle()


def test_documents_of_many_connections(server, loop):
    """Requests that are not prompt wait even if each is the only one of its read."""
    transports = [server.connect() for _ in range(10)]
    for transport in transports:
        transport.feed(get("/v2/models/stats"))
    answered = [sum(len(each.responses()) for each in transports)]
    while loop.turn():
        answered.append(sum(len(each.responses()) for each in transports))
    assert answered[0] == 1
    assert answered[-1] == 10


def test_chunks(server, loop, busy):
    """A body in very many chunks is read in several turns."""
    values = range(CHUNK_STEPS_MAX)
    other, transport = server.connect(), server.connect()
    busy()
    transport.feed(infer_chunked(*values, sizes=(1,)) + get("/v2/health/live"))
    other.feed(infer_json(1))
    assert transport.statuses() == []
    assert other.statuses() == [200]
    turns = 0
    while loop.turn():
        turns += 1
    assert turns > 5
    assert transport.statuses() == [200, 200]
    assert outputs(transport.responses()[0]) == list(values)


def test_more_that_is_read(server, loop):
    """What TLS brings although reading is paused is handled after what waits."""
    transport = server.connect()
    transport.feed(infer_json(1) * 4)
    assert transport.is_paused
    transport.is_paused = False
    transport.feed(infer_json(2) * 3)
    while loop.turn():
        pass
    assert [outputs(response) for response in transport.responses()] == [[1.0]] * 4 + [[2.0]] * 3


def test_client_that_leaves(server, loop):
    """The requests that wait are dropped with their client."""
    transport = server.connect()
    transport.feed(infer_json(1) * 10)
    transport.lose()
    answered = len(transport.responses())
    while loop.turn():
        pass
    assert len(transport.responses()) == answered < 10
    assert server.is_idle()


def test_client_that_does_not_read(server, loop):
    """A turn does nothing for a client that does not read its answers; it goes on when the client does."""
    transport = server.connect()
    transport.stalled = True
    transport.feed(get("/v2") * 5)
    while loop.turn():
        pass
    assert len(transport.responses()) == 1
    transport.drain()
    while loop.turn():
        pass
    assert transport.statuses() == [200] * 5


def test_malformed_request_behind_others(server, loop):
    """It is refused in its turn, and nothing behind it is read."""
    transport = server.connect()
    transport.feed(get("/v2") * 4 + b"nonsense\r\n\r\n" + get("/v2"))
    while loop.turn():
        pass
    assert transport.statuses() == [200] * 4 + [400]
    assert transport.closed


def test_body_behind_others(server, loop):
    """A request that waits may have a body of which only a part has come."""
    body = b"{}"
    request = post(body, path=b"/v2/logging")
    transport = server.connect()
    transport.feed(get("/v2") * 4 + request[:-1])
    while loop.turn():
        pass
    transport.feed(request[-1:])
    while loop.turn():
        pass
    assert transport.statuses() == [200] * 5
