# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One connection: actions of its client, its timers, and its limits."""

import struct

import h2.events
import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.common.connection_limits import ConnectionLimit
from pyruntime.runtime.frontends.common.health_places import HEALTH_CONNECTIONS_MAX, TOO_MANY
from pyruntime.runtime.frontends.grpc import calls, connection
from pyruntime.runtime.frontends.grpc.call import MESSAGE_S_MAX
from pyruntime.runtime.frontends.grpc.connection import (
    CHECK_S,
    GIVE_WAY_S,
    HEADER_LIST_BYTES_MAX,
    LARGE_BYTES,
    STREAMS_MAX,
    GrpcConnection,
)
from pyruntime.runtime.frontends.grpc.health_reserve import HEALTH
from pyruntime.runtime.frontends.grpc.keepalive import HANDSHAKE_S_MAX, STALLED_S_MAX
from pyruntime.runtime.settings import Restriction

SERVICE = "/inference.GRPCInferenceService/"
LIVE = f"{SERVICE}ServerLive"
WINDOW = {4: 0}  # SETTINGS_INITIAL_WINDOW_SIZE: the client takes nothing
LARGE = [float(n) for n in range(LARGE_BYTES)]


@pytest.fixture(autouse=True)
def _balanced(server):
    yield
    server.instance.answer()
    assert server.state.in_flight == 0
    assert server.memory.live == 0


def settings(server, **values):
    """Change settings that the server was started with."""
    for name, value in values.items():
        object.__setattr__(server.state.settings, name, value)


class TestCalls:
    def test_many_at_a_time(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        streams = [peer.call(peer.INFER, ask(float(n))) for n in range(STREAMS_MAX)]
        assert server.state.in_flight == STREAMS_MAX
        server.instance.jobs.reverse()
        server.instance.answer()
        peer.pump()
        for number, stream in enumerate(streams):
            ((_, message),) = peer[stream].messages
            assert service_pb2.ModelInferResponse.FromString(message).raw_output_contents == [struct.pack("<f", number)]

    def test_what_several_say_at_once_is_written_at_once(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        for number in range(10):
            peer.call(peer.INFER, ask(float(number)))
        writes = []
        peer.transport.write = lambda data: writes.append(data)
        server.instance.answer()
        peer.loop.turn()
        assert len(writes) == 1

    def test_unknown_methods(self, dial):
        peer = dial()
        for path in ("/inference.GRPCInferenceService/Nothing", "/", "/a" * 2000, "/é%00"):
            assert peer[peer.call(path, b"")].status[0] == 12

    def test_what_is_no_call(self, dial):
        """An HTTP/2 request that is not a gRPC call gets an HTTP status."""
        peer = dial()
        stream = peer.h2.get_next_available_stream_id()
        peer.answers[stream] = type(peer[peer.call(LIVE, b"")])()
        stream = peer.h2.get_next_available_stream_id()
        peer.answers[stream] = type(peer.answers[1])()
        head = [(":method", "GET"), (":scheme", "http"), (":path", LIVE), (":authority", "a")]
        peer.h2.send_headers(stream, head, end_stream=True)
        peer.pump()
        assert peer[stream].head == {":status": "405"}

    @pytest.mark.parametrize(("method", "status"), [("ModelStreamInfer", 0), ("ModelInfer", 13), ("ServerLive", 13)])
    def test_no_message_at_all(self, dial, method, status):
        """The end of the client's stream counts, whether it comes with the head, at once behind it, or later."""
        peer, path = dial(), f"/inference.GRPCInferenceService/{method}"
        later = peer.call(path)
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a")]
        head += [("content-type", "application/grpc"), ("te", "trailers")]
        streams = [later]
        for with_head in (True, False):
            stream = peer.h2.get_next_available_stream_id()
            peer.answers[stream] = type(peer[later])()
            peer.h2.send_headers(stream, head, end_stream=with_head)
            if not with_head:
                peer.h2.send_data(stream, b"", end_stream=True)
            peer.pump()
            streams.append(stream)
        assert [peer[stream].status[0] for stream in streams] == [peer[later].status[0]] * 3
        assert peer[later].status[0] == status

    def test_metadata_that_is_too_long(self, dial):
        peer = dial()
        stream = peer.call(LIVE, b"", x="y" * (HEADER_LIST_BYTES_MAX // 2))
        assert peer[stream].status == (0, "")
        stream = peer.call(LIVE, x="y" * HEADER_LIST_BYTES_MAX)
        assert peer[stream].reset == 11
        assert peer[peer.call(LIVE, b"")].status == (0, "")

    def test_restricted(self, dial, ask, server):
        settings(server, grpc_restricted_protocols={"inference": Restriction("triton-grpc-protocol-key", "secret")})
        peer = dial()
        refused = peer[peer.call(peer.INFER, ask(1.0))]
        assert refused.status == (14, "This protocol is restricted, expecting header 'triton-grpc-protocol-key'")
        assert peer[peer.call(peer.STREAM, ask(1.0), **{"triton-grpc-protocol-key": "wrong"})].status[0] == 14
        assert peer[peer.call(LIVE, b"")].status == (0, "")
        assert peer[peer.call(peer.INFER, ask(1.0), **{"triton-grpc-protocol-key": "secret"})].status == (0, "")

    def test_what_opens_an_api_may_be_any_text(self, dial, server):
        """It is compared as bytes, as over HTTP."""
        settings(server, grpc_restricted_protocols={"health": Restriction("triton-grpc-protocol-key", "schlüssel")})
        peer = dial()
        assert peer[peer.call(LIVE, b"")].status[0] == 14
        assert peer[peer.call(LIVE, b"", **{"triton-grpc-protocol-key": "schlüssel"})].status == (0, "")

    def test_a_bug_costs_one_call(self, dial, ask, server, monkeypatch, caplog):
        peer = dial()
        for name, contents in (("allocate", [1.0]), ("allocate_growing", LARGE)):
            monkeypatch.setattr(server.model.memory, name, lambda *_: 1 / 0)
            answer = peer[peer.call(peer.INFER, ask(*contents))]
            assert answer.status == (13, "the server failed to handle the request")
        monkeypatch.undo()
        assert "ZeroDivisionError" in caplog.text
        assert peer[peer.call(LIVE, b"")].status == (0, "")

    def test_a_client_that_is_no_client(self, dial):
        peer = dial()
        peer.transport.feed(b"\xff" * 100)
        assert peer.transport.closed
        peer.hang_up()

    def test_http1(self, server, loop, dial):
        peer = dial()
        other = type(peer)(server, loop, type(peer.transport))
        other.transport.lose()
        connection = type(peer.connection)(server.state, server.connections, peer.connection._read_head)
        transport = type(peer.transport)(connection)
        transport.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert transport.closed
        transport.lose()


class TestWriting:
    def test_a_client_that_takes_nothing(self, dial, ask, server):
        """A response is released when the client has taken it, or when the client is gone."""
        for gone in (False, True):
            peer = dial()
            before = server.instance.released
            peer.transport.stalled = True
            for _ in range(3):
                peer.call(peer.INFER, ask(*LARGE))
            peer.pump()
            assert server.instance.released == before
            peer.hang_up() if gone else peer.transport.drain()
            peer.pump()
            assert server.instance.released == before + 3

    def test_closing_while_the_client_takes_nothing(self, dial, ask, server):
        peer = dial()
        peer.transport.stalled = True
        stream = peer.call(peer.INFER, ask(*LARGE))
        peer.connection.close_idle()
        peer.pump()
        assert not peer.transport.closed
        peer.transport.drain()
        peer.pump()
        assert peer[stream].status == (0, "")
        assert peer.transport.closed


class TestTime:
    def wait(self, peer, seconds):
        """Some time, in which the client does nothing."""
        peer.loop.advance(seconds)

    def test_a_client_that_says_nothing(self, server, dial, loop):
        peer = dial()
        for data in (b"", b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", peer.transport.sent[:0]):
            connection = type(peer.connection)(server.state, server.connections, peer.connection._read_head)
            transport = type(peer.transport)(connection)
            if data:
                transport.feed(data)
            loop.advance(HANDSHAKE_S_MAX - CHECK_S)
            assert not transport.closed
            loop.advance(2 * CHECK_S)
            assert transport.aborted
            transport.lose()
        assert not peer.transport.closed

    @pytest.mark.parametrize("raw", [b"", b"\0\0", b"\0\0\0\1\0abc"])
    def test_a_request_that_does_not_come(self, dial, raw):
        for path in (LIVE, "/inference.GRPCInferenceService/ModelInfer"):
            peer = dial()
            stream = peer.call(path, ended=False, raw=raw)
            self.wait(peer, MESSAGE_S_MAX + 2 * CHECK_S)
            peer.pump()
            assert peer[stream].status[0] == 4

    def test_half_a_message_in_a_stream(self, dial, ask):
        peer = dial()
        idle = peer.call(peer.STREAM, ask(1.0), ended=False)
        half = peer.call(peer.STREAM, ask(1.0), ended=False, raw=b"\0\0\0")
        self.wait(peer, STALLED_S_MAX + 2 * CHECK_S)
        peer.pump()
        assert peer[idle].status is None
        assert peer[half].status[0] == 4
        peer.send(idle, ended=True)
        assert peer[idle].status == (0, "")

    def test_half_a_large_message(self, dial, ask, server):
        """Its memory is not kept."""
        peer = dial()
        message = ask(*LARGE).SerializeToString()
        stream = peer.call(peer.INFER, ended=False, raw=b"\0" + len(message).to_bytes(4, "big") + message[:-1])
        assert server.memory.live == 1
        self.wait(peer, STALLED_S_MAX + 2 * CHECK_S)
        assert server.memory.live == 0
        peer.pump()
        assert peer[stream].status[0] == 4

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_opens_no_window(self, dial, ask, server, stream):
        """Its calls end, though its connection is alive, and other calls are answered."""
        peer = dial(settings=WINDOW)
        stream = peer.call(peer.STREAM if stream else peer.INFER, ask(*LARGE), ended=not stream)
        assert server.instance.released == 0
        for _ in range(int((STALLED_S_MAX + 2 * CHECK_S) / CHECK_S)):
            peer.h2.ping(b"12345678")
            peer.connection._keepalive.said()
            other = peer.call(LIVE, b"")
            peer.h2.increment_flow_control_window(100, other)
            peer.pump()
            assert peer[other].status == (0, "")
            self.wait(peer, CHECK_S)
        peer.pump()
        assert server.instance.released == 1
        assert peer[stream].reset == 8
        assert not peer.transport.closed
        assert not peer.connection._calls

    def test_silence_is_pinged(self, dial, ask, server):
        settings(server, grpc_keepalive_time_ms=10_000, grpc_keepalive_timeout_ms=5_000)
        server.instance.waits = True
        peer = dial()
        peer.call(peer.INFER, ask(1.0))
        self.wait(peer, 12)
        peer.pump()
        assert peer.saw(h2.events.PingReceived)
        self.wait(peer, 12)
        assert not peer.transport.closed
        self.wait(peer, 12)
        assert peer.transport.aborted
        peer.hang_up()

    def test_too_many_pings(self, dial):
        peer = dial()
        for _ in range(4):
            peer.h2.ping(b"12345678")
            peer.pump()
        (end,) = [event for event in peer.events if isinstance(event, h2.events.ConnectionTerminated)]
        assert (int(end.error_code), end.additional_data) == (11, b"too_many_pings")
        assert peer.transport.closed

    def test_pings_while_a_large_response_is_taken(self, dial, ask, server):
        """Clients measure the line with them."""
        window = 16 * 1024
        peer = dial(settings={4: window})
        peer.opens_windows = False
        stream = peer.call(peer.INFER, ask(*LARGE))
        while not peer[stream].ended:
            peer.h2.ping(b"12345678")
            peer.h2.increment_flow_control_window(window, stream)
            peer.h2.increment_flow_control_window(window)
            peer.pump()
            assert not peer.saw(h2.events.ConnectionTerminated)
        assert peer[stream].status == (0, "")

    def test_pings_while_a_large_response_is_not_taken(self, dial, ask):
        """Pings still count while a response waits for flow control."""
        peer = dial(settings=WINDOW)
        peer.call(peer.INFER, ask(*LARGE))
        for _ in range(4):
            peer.h2.ping(b"12345678")
            peer.pump()
        assert peer.saw(h2.events.ConnectionTerminated)
        peer.hang_up()

    def test_old_age(self, dial, ask, server):
        settings(server, grpc_max_connection_age_ms=100_000, grpc_max_connection_age_grace_ms=50_000)
        peer = dial()
        server.instance.waits = True
        stream = peer.call(peer.INFER, ask(1.0))
        self.wait(peer, 80)
        peer.pump()
        assert not peer.saw(h2.events.ConnectionTerminated)
        self.wait(peer, 40)
        peer.pump()
        assert peer.saw(h2.events.ConnectionTerminated)
        assert peer[stream].status is None
        server.instance.answer()
        peer.pump()
        assert peer[stream].status == (0, "")
        assert peer.transport.closed

    def test_old_age_without_end(self, dial, ask, server):
        settings(server, grpc_max_connection_age_ms=100_000, grpc_max_connection_age_grace_ms=50_000)
        peer = dial()
        server.instance.waits = True
        peer.call(peer.INFER, ask(1.0))
        self.wait(peer, 200)
        assert peer.transport.aborted
        peer.hang_up()


def test_every_path_is_some_api(server):
    """Every method belongs to an API, by which it can be restricted."""
    assert {method.api for method in [*calls.METHODS.values(), *calls.STREAMS.values()]} >= {"health", "metadata"}


def test_what_is_not_taken_yet_is_in_flight(dial, ask, server):
    """A response that is not sent yet counts as in flight, whether the window or the socket delays it."""
    peer = dial(settings=WINDOW)
    stream = peer.call(peer.INFER, ask(*LARGE))
    assert server.state.in_flight == 1
    peer.h2.increment_flow_control_window(1 << 20, stream)
    peer.h2.increment_flow_control_window(1 << 20)
    peer.pump()
    assert peer[stream].status == (0, "")
    assert server.state.in_flight == 0
    for gone in (False, True):
        peer = dial()
        peer.transport.stalled = True
        peer.call(LIVE, b"")
        assert server.state.in_flight == 1
        peer.hang_up() if gone else peer.transport.drain()
        peer.pump()
        assert server.state.in_flight == 0


@pytest.fixture
def full(dial, monkeypatch):
    """The limit of connections, which is reached: one is open."""
    dial()
    limit = ConnectionLimit()
    limit.connections_max = 1
    monkeypatch.setattr(limit, "count", lambda connections: None)
    monkeypatch.setattr(GrpcConnection, "_limit", limit)
    return limit


class TestBeyondTheLimitOfConnections:
    @pytest.mark.parametrize("path", sorted(HEALTH))
    def test_each_may_ask_once_about_health(self, dial, full, path):
        """It is answered and told to open no more calls, and cut if it does not go."""
        peer = dial()
        assert peer[peer.call(path, b"")].status == (0, "")
        assert peer.saw(h2.events.ConnectionTerminated)
        peer.loop.advance(GIVE_WAY_S)
        assert peer.transport.aborted
        peer.hang_up()
        assert len(full.health) == 0

    @pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Watch", f"{SERVICE}ModelReady", f"{SERVICE}ModelInfer"])
    def test_other_calls_are_refused(self, dial, full, path):
        """The client is told why, and to go."""
        peer = dial()
        assert peer[peer.call(path, b"", ended=False)].status == (14, TOO_MANY)
        assert peer.transport.closed

    def test_the_silent_ones_give_way(self, dial, full, monkeypatch):
        """One that is connected, or has begun a call and sent no message, is silent."""
        unread = set()
        monkeypatch.setattr(connection, "has_unread", unread.__contains__)
        peers = [dial() for _ in range(HEALTH_CONNECTIONS_MAX)]
        peers[0].call(LIVE, ended=False)
        unread.add(peers[1].transport)
        late = [dial() for _ in range(2)]
        assert [peer.transport.aborted for peer in peers] == [True, False, True] + [False] * (len(peers) - 3)
        unread.update(peer.transport for peer in [*peers, *late])
        assert dial().transport.aborted
        assert peers[1][peers[1].call(LIVE, b"")].status == (0, "")

    def test_who_waits_for_an_answer_is_not_silent(self, dial, full, server, monkeypatch):
        monkeypatch.setattr(connection, "has_unread", lambda transport: False)
        peer = dial()
        assert peer.connection.is_silent
        replies = []
        method = calls.METHODS[LIVE]
        later = method._replace(act=lambda state, request, reply: replies.append(reply))
        monkeypatch.setitem(calls.METHODS, LIVE, later)
        stream = peer.call(LIVE, b"")
        peer.loop.advance(GIVE_WAY_S)
        assert not peer.transport.aborted
        assert not peer.connection.is_silent
        replies[0](service_pb2.ServerLiveResponse(live=True))
        peer.pump()
        assert peer[stream].status == (0, "")
        assert peer.connection.is_silent


def test_a_server_that_stops_says_so_at_once(dial, ask, server):
    """GOAWAY is sent once, and the call under way is answered."""
    peer = dial()
    server.instance.waits = True
    stream = peer.call(peer.INFER, ask(1.0))
    for _ in range(2):
        peer.connection.shut_down()
        peer.pump()
    assert any(isinstance(event, h2.events.ConnectionTerminated) for event in peer.events)
    server.instance.answer()
    peer.pump()
    assert peer[stream].status[0] == 0
