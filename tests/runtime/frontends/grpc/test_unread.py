# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers that a client does not read: they count, and too many of them end calls."""

import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc import call
from pyruntime.runtime.frontends.grpc.schema import POOL, class_of
from pyruntime.runtime.inference.intake import ID_LENGTH_MAX
from pyruntime.runtime.inference.pending_bytes import PendingBytes

SERVICE = "/inference.GRPCInferenceService/"
CONFIG = SERVICE + "ModelConfig"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
# SETTINGS_INITIAL_WINDOW_SIZE: the client takes nothing.
CLOSED = {4: 0}
MODEL = service_pb2.ModelConfigRequest(name="m")
QUESTION = class_of(POOL.FindMessageTypeByName("grpc.reflection.v1.ServerReflectionRequest"))(
    file_containing_symbol="inference.GRPCInferenceService"
)
EXHAUSTED = 8


@pytest.fixture
def pending(server):
    return server.state.pending_bytes


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """The limit of a connection is low."""
    monkeypatch.setattr(call, "UNREAD_BYTES_MAX", 1000)


def read(peer, stream):
    """Let the client read all that waits on a stream."""
    if not peer[stream].is_over:
        peer.h2.increment_flow_control_window(1 << 20, stream)
        peer.pump()


def test_answers_count(dial, pending):
    """Unread answers of all calls of a connection count among the pending bytes until they are read."""
    peer = dial(settings=CLOSED)
    held = [pending.used]
    streams = []
    for _ in range(3):
        streams.append(peer.call(CONFIG, MODEL))
        held.append(pending.used)
    assert held[0] == 0
    assert held[3] == 3 * held[1] > 0
    for stream in streams:
        read(peer, stream)
        assert peer[stream].status == (0, "")
    assert pending.used == 0


def test_answers_that_are_read(dial, pending):
    """They count no longer, however many there are."""
    peer = dial()
    for _ in range(100):
        assert peer[peer.call(CONFIG, MODEL)].status == (0, "")
    assert pending.used == 0


def test_too_many_calls(dial, pending):
    """When too many answers of a connection wait, further calls fail at once; those about health do not."""
    peer = dial(settings=CLOSED)
    streams = [peer.call(CONFIG, MODEL) for _ in range(100)]
    refusal = EXHAUSTED, "more than 1000 bytes wait for the client"
    failed = [stream for stream in streams if peer[stream].status == refusal]
    assert failed == streams[-len(failed) :]
    assert 50 < len(failed) < 100
    live = peer.call(SERVICE + "ServerLive", b"")
    read(peer, live)
    assert peer[live].status == (0, "")
    for stream in streams:
        if stream not in failed:
            read(peer, stream)
    assert pending.used == 0
    later = peer.call(CONFIG, MODEL)
    read(peer, later)
    assert peer[later].status == (0, "")


def test_too_many_questions(dial, pending):
    """The answers of several streams count together, and the questions behind them are not answered."""
    peer = dial(settings=CLOSED)
    streams = [peer.call(REFLECTION, *[QUESTION] * 10, ended=False) for _ in range(10)]
    used = pending.used
    assert 1000 < used < 100_000
    for stream in streams:
        read(peer, stream)
    assert all(peer[stream].status[0] == EXHAUSTED for stream in streams)
    assert len(peer[streams[0]].messages) == 1
    assert pending.used == 0


def test_other_connections(dial, pending, server):
    """Each connection has its own limit, and all of them share the budget."""
    server.state.pending_bytes = pending = PendingBytes(3000, server.state.turns)
    peers = [dial(settings=CLOSED) for _ in range(20)]
    streams = [(peer, peer.call(CONFIG, MODEL)) for peer in peers for _ in range(10)]
    assert 2000 < pending.used <= 3000
    assert all(peer[stream].status[0] == EXHAUSTED for peer, stream in streams if peer[stream].status is not None)
    assert peers[-1][streams[-1][1]].status is not None
    for peer in peers:
        peer.hang_up()
    assert pending.used == 0
    assert server.is_idle()


def test_errors_of_a_stream(dial, ask, pending, server):
    """Errors that a client does not read count, too, and end the call without room for them."""
    server.state.pending_bytes = pending = PendingBytes(2000, server.state.turns)
    peer = dial(settings=CLOSED)
    stream = peer.call(peer.STREAM, *[ask(1.0, model="nobody") for _ in range(100)], ended=False)
    assert 0 < pending.used <= 2000
    read(peer, stream)
    assert peer[stream].status[0] == EXHAUSTED
    assert 0 < len(peer[stream].messages) < 100
    assert pending.used == 0


def test_client_that_leaves(dial, pending, server):
    """Nothing counts any more."""
    peer = dial(settings=CLOSED)
    peer.call(CONFIG, MODEL)
    cancelled = peer.call(CONFIG, MODEL)
    used = pending.used
    peer.cancel(cancelled)
    assert pending.used == used / 2
    peer.hang_up()
    assert pending.used == 0
    assert server.is_idle()


def test_long_ids(dial, ask, server):
    """A request whose id is too long to be kept for a client that does not read is refused; its stream goes on."""
    peer = dial()
    long = ask(1.0, id="x" * (ID_LENGTH_MAX + 1))
    stream = peer.call(peer.STREAM, ask(1.0), long, ask(2.0, id="y" * ID_LENGTH_MAX))
    events = [service_pb2.ModelStreamInferResponse.FromString(message) for _, message in peer[stream].messages]
    assert ["has 4097 characters" in event.error_message for event in events] == [False, True, False]
    assert events[2].infer_response.id == "y" * ID_LENGTH_MAX
    assert server.is_idle()
