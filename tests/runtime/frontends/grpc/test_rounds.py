# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Many events of one read, and of many connections, are handled in several turns of the event loop."""

from contextlib import contextmanager
from itertools import count, pairwise

import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime import rounds as app_rounds
from pyruntime.runtime.inference.pending_bytes import PendingBytes
from pyruntime.runtime.rounds import Rounds

SERVICE = "/inference.GRPCInferenceService/"
METADATA = SERVICE + "ServerMetadata"
LIVE = SERVICE + "ServerLive"


# The reads of a turn that are handled at once: fewer than in a real server, so that the tests need fewer clients.
AT_ONCE = 16


@pytest.fixture
def rounds(server, monkeypatch):
    """What is due in the next turn. There is time for nothing but what must be done at once."""
    due = []
    monkeypatch.setattr(app_rounds, "AT_ONCE_MAX", AT_ONCE)
    # A second passes with each look at the clock. It is far behind the real one, so that `until` is always over.
    server.state.rounds = Rounds(count(-(10**9)).__next__, due.append)
    return due


def turn(due):
    """Do what is due; whether there was anything."""
    now, due[:] = due[:], []
    for call_back in now:
        call_back()
    return bool(now)


@contextmanager
def one_read(peer):
    """All that a client says meanwhile comes in one read."""
    peer.pump = lambda: None
    yield
    del peer.pump
    peer.pump()


def at_once(peer, calls):
    """Begin calls, (path, message) each, and send all of them in one read. Returns their streams."""
    with one_read(peer):
        return [peer.call(path, message) for path, message in calls]


def over(peer, streams):
    return sum(peer[stream].is_over for stream in streams)


def test_calls_of_one_read(dial, ask, rounds, server):
    """Each turn handles some of them, in order; reading is paused meanwhile."""
    peer = dial()
    streams = at_once(peer, [(METADATA, b""), (peer.INFER, ask(1.0))] * 5)
    counts = [over(peer, streams)]
    assert peer.transport.is_paused
    while turn(rounds):
        peer.pump()
        counts.append(over(peer, streams))
    assert counts[-1] == 10
    assert max(after - before for before, after in pairwise(counts)) <= 2
    assert all(peer[stream].status[0] == 0 for stream in streams)
    assert not peer.transport.is_paused
    assert server.is_idle()


def test_one_call(dial, ask, rounds):
    """A call of its own is answered at once, however busy the turn is, if it takes little time."""
    busy, peer = dial(), dial()
    at_once(busy, [(METADATA, b"")] * 5)
    for path, message in [(peer.INFER, ask(1.0)), (LIVE, b""), (METADATA, b"")]:
        stream = peer.call(path, message)
        assert peer[stream].is_over is (path != METADATA)


def test_messages_of_one_stream(dial, ask, rounds):
    """Many requests of one call are handled in several turns, too, and keep their order."""
    peer = dial()
    requests = [ask(float(number), id=str(number)) for number in range(10)]
    with one_read(peer):
        stream = peer.call(peer.STREAM, *requests)
    assert len(peer[stream].messages) < 5
    while turn(rounds):
        peer.pump()
    found = [service_pb2.ModelStreamInferResponse.FromString(message) for _, message in peer[stream].messages]
    assert [each.infer_response.id for each in found] == [request.id for request in requests]
    assert peer[stream].status == (0, "")


def test_more_that_is_read(dial, ask, rounds):
    """What TLS brings although reading is paused is handled after what waits."""
    peer = dial()
    streams = at_once(peer, [(METADATA, b"")] * 3)
    peer.transport.is_paused = False
    streams += at_once(peer, [(peer.INFER, ask(1.0))] * 3)
    while turn(rounds):
        peer.pump()
    assert [peer[stream].status for stream in streams] == [(0, "")] * 6


def test_waiting_messages_count(dial, rounds, server):
    """Messages that wait for a turn are pending bytes, whether there is room for them or not."""
    pending = server.state.pending_bytes = PendingBytes(100, server.state.turns)
    peer = dial()
    request = service_pb2.ModelMetadataRequest(name="x" * 500)
    streams = at_once(peer, [(SERVICE + "ModelMetadata", request)] * 3)
    assert pending.used > 500
    while turn(rounds):
        peer.pump()
    assert pending.used == 0
    assert over(peer, streams) == 3


def test_client_that_leaves(dial, rounds, server):
    """The calls that wait are dropped with their client."""
    peer = dial()
    at_once(peer, [(METADATA, b"")] * 10)
    peer.hang_up()
    while turn(rounds):
        pass
    assert server.is_idle()
    assert server.state.pending_bytes.used == 0


@pytest.mark.parametrize("path", ["ModelInfer", "ServerLive", "Nothing"])
def test_crowd(dial, ask, rounds, server, path):
    """A turn handles a limited number of reads, however many connections have one, and the rest in order."""
    peers = [dial() for _ in range(3 * AT_ONCE)]
    while turn(rounds):
        pass
    assert server.state.rounds.at_once == AT_ONCE
    message = ask(1.0) if path == "ModelInfer" else b""
    streams = [(peer, at_once(peer, [(SERVICE + path, message)])[0]) for peer in peers]
    counts = [sum(peer[stream].is_over for peer, stream in streams)]
    while turn(rounds):
        for peer in peers:
            peer.pump()
        counts.append(sum(peer[stream].is_over for peer, stream in streams))
    # The first one that finds no more to be handled at once begins to look at the clock.
    assert counts[0] == AT_ONCE + 1
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert counts[-1] == len(peers)
    assert not any(peer.transport.is_paused for peer in peers)
    assert server.is_idle()


def test_crowd_that_leaves(dial, ask, rounds, server):
    """Reads that wait are dropped with their clients."""
    peers = [dial() for _ in range(AT_ONCE + 9)]
    for peer in peers:
        at_once(peer, [(peer.INFER, ask(1.0))])
    for peer in peers:
        peer.hang_up()
    while turn(rounds):
        pass
    assert server.is_idle()
