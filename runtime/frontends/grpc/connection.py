# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The connection of one gRPC client: passes bytes to HTTP/2, events to calls, and responses to the socket."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import Any

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.connection_limits import LIMIT, has_unread, report_unsent, unacknowledged
from pyruntime.runtime.frontends.common.health_places import peer_of
from pyruntime.runtime.frontends.grpc.call import MESSAGE_BYTES_MAX, Call, Place
from pyruntime.runtime.frontends.grpc.calls import begin_call
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.health_reserve import only_health
from pyruntime.runtime.frontends.grpc.keepalive import Action, Keepalive
from pyruntime.runtime.frontends.grpc.repeated_requests import find_answer
from pyruntime.runtime.frontends.grpc.status import HEAD, OK_TRAILERS, Status
from pyruntime.runtime.frontends.grpc.stream_stall_detector import HALF_MESSAGE_S_MAX, Stalls
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES
from pyruntime.runtime.inference.pending_bytes import PendingBytesError
from pyruntime.runtime.native import _http2
from pyruntime.runtime.native._http2 import Http2Error, Session
from pyruntime.utils.arena import ALIGNMENT

# Concurrent calls of one connection. HTTP/2 refuses more; clients then wait or connect again.
STREAMS_MAX = 1024
# The bytes that a client may send ahead on one stream, and on all of them. The session reopens the windows as it reads.
STREAM_WINDOW = 8 << 20
CONNECTION_WINDOW = 64 << 20
# The limit of the metadata of one call. gRPC's own servers accept 16 KiB as well.
HEADER_LIST_BYTES_MAX = 16 << 10
# The largest accepted frame. Large frames take less work than many small ones.
FRAME_BYTES_MAX = 1 << 20
# The events of one read that may be handled at once: the head and the message of a call. With more of them a connection
# goes on as long as the turn of the event loop has time.
EVENTS_AT_ONCE = 2
# How often a connection is checked, in seconds. Timeouts are noticed up to this much late.
CHECK_S = 5.0
# A connection whose streams had nothing to do for so many checks may be closed when connections are scarce.
QUIET_CHECKS = 3
# How long a client that has to give way has to close its connection, in seconds.
GIVE_WAY_S = 1.0

_ENHANCE_YOUR_CALM = 0xB
_CANCEL = 0x8

_REQUEST = _http2.REQUEST
_MESSAGE = _http2.MESSAGE

# See native/_http2.pyi. What the third is depends on the first.
Event = tuple[int, int, Any, bool]

_LOG = logging.getLogger("pyruntime.frontends")

# One read buffer for all connections: the bytes of a read are handled before the next read starts.
_READ_BUFFER = memoryview(bytearray(256 << 10))


class GrpcConnection(asyncio.BufferedProtocol):
    """See the module. All methods belong to the event loop's thread."""

    # Defaults are class attributes: a connection changes few of them in its life.
    _transport: asyncio.Transport | None = None
    _write_paused = False
    _flush_due = False
    # Whether the client was told to open no more calls.
    _shut_down = False
    _limit = LIMIT
    # The checks since the last event of a call.
    _quiet = 0
    # What the client had not acknowledged at the last check, while the transport cannot send.
    _unacknowledged = 0
    # Whether bytes wait for the client to read them.
    _unsent = False
    # The session cannot send while it parses received bytes. Responses of that time, and those of the calls whose
    # events are handled, are sent together afterwards.
    _receiving = False
    _timer: asyncio.TimerHandle | None = None
    # The packed head of the last call that was answered by its message, until a message with this head has no answer.
    _repeated: bytes | None = None
    # `_kept` or `_rest` is handled in a later turn of the event loop.
    _waits_for_turn = False

    def __init__(self, state: ServerState, connections: set[object], read_head: Callable[[bytes], CallHead]) -> None:
        """`read_head`: see HeadReader.read."""
        self._state = state
        self._read_head = read_head
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Call] = {}
        self._on_drained: list[Callable[[], None]] = []
        # What is handled in a later turn of the event loop: events of a read, and bytes behind them.
        self._kept: list[Event] = []
        self._rest = b""
        settings = state.settings
        self._keepalive = Keepalive(settings, self._loop.time(), random.uniform(-1, 1))
        self._stalls = Stalls()
        self.share = state.pending_bytes.share()
        # For the bytes of incomplete messages in the heap.
        self._gathered = self.share.claim()
        self.unread = self.share.claim()
        self.session = Session(
            self._place,
            max_streams=STREAMS_MAX,
            stream_window=STREAM_WINDOW,
            connection_window=CONNECTION_WINDOW,
            header_list_bytes=HEADER_LIST_BYTES_MAX,
            message_bytes=MESSAGE_BYTES_MAX,
            large_bytes=LARGE_BYTES,
            frame_bytes=FRAME_BYTES_MAX,
            alignment=ALIGNMENT,
        )

    def __repr__(self) -> str:
        return f"<GrpcConnection [{len(self._calls)} calls]>"

    # Events of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # what a server's connections have
        if not self._limit.has_room(len(self._connections)) and not self._use_reserve(transport):
            transport.abort()  # type: ignore[attr-defined]
            return
        # A paused transport still has bytes to send.
        report_unsent(transport)
        self._connections.add(self)
        self._timer = self._loop.call_later(CHECK_S, self._check)
        self._flush()

    def _use_reserve(self, transport: asyncio.BaseTransport) -> bool:
        """Take one of the places that are kept for a question about health. Returns whether there is one."""
        if not self._limit.health.take(self, peer_of(transport.get_extra_info("peername"))):
            return False
        self._read_head = only_health(self._read_head, self._asks)
        return True

    def _asks(self) -> None:
        """A call begins on a connection beyond the limit, which may be the only one."""
        if not self._shut_down:
            self.close_idle()

    @property
    def is_silent(self) -> bool:
        """See SilentConnection."""
        asked = self._waits_for_turn or not all(call.waits_for_client for call in self._calls.values())
        return not asked and self._transport is not None and not has_unread(self._transport)

    def give_way(self) -> None:
        """See SilentConnection. The client connects again, or says that the server is unavailable."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.health.leave(self)
        self._transport = None
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self._calls.values()):
            call.cancelled()
        self._calls.clear()
        self._kept.clear()
        self._rest = b""
        if self._unsent:
            self._count_unsent()
        self.session.close()
        self._gathered.end()
        _, releases = self.session.send()
        for release in [*self._on_drained, *releases]:
            release()  # type: ignore[operator]  # what calls gave
        self._on_drained.clear()
        self.unread.end()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ_BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        rounds = self._state.rounds
        if self._waits_for_turn:  # TLS may bring more although reading is paused
            self._rest += _READ_BUFFER[:nbytes]
            return
        if rounds.at_once > 0:
            rounds.at_once -= 1
        elif self._must_wait():
            self._rest = _READ_BUFFER[:nbytes].tobytes() + self._rest
            self._pause()
            return
        self._receiving = True
        try:
            events = self.session.receive(_READ_BUFFER[:nbytes])
        except Http2Error:
            self._receiving = False
            self._close()
            return
        self._keepalive.received(self._loop.time())
        self._handle(events)

    def _handle(self, events: list[Event]) -> None:
        """Handle events, and keep those for which the turn of the event loop has no time."""
        gathered, session, state = self._gathered, self.session, self._state
        if session.gathered < gathered.held:  # calls take room for the messages that are complete
            gathered.give_back(gathered.held - session.gathered)
        calls = self._calls
        self._receiving = True
        if events and events[-1][0] != _http2.PING:
            self._quiet = 0
        for at, (kind, stream, value, ended) in enumerate(events):
            call = calls.get(stream)
            waits = at >= EVENTS_AT_ONCE or (call is not None and not call.is_prompt)
            if waits and monotonic() >= state.rounds.until and self._must_wait():
                self._kept = events[at:]
                break
            if kind == _REQUEST:
                if self._repeated is not None and self._is_answered(stream, value, events[at + 1 : at + 2]):
                    continue  # the event of its message is that of an unknown stream
                packed, timeout_ns = value
                begun = begin_call(state, self, stream, self._read_head(packed))
                if isinstance(begun, bytes):
                    session.refuse(stream, begun)
                    continue
                calls[stream] = begun
                if timeout_ns != -1:
                    self._begin_deadline(begun, timeout_ns)
                # The end of a request without messages may come in the same read as its head.
                if ended and stream in calls:
                    calls[stream].ended()
            elif call is None:
                if kind == _http2.PING and not value:
                    self._client_pinged()
            else:
                try:
                    if kind == _MESSAGE:
                        call.message(value, ended)
                    else:
                        self._tell(call, kind, value, ended)
                except Exception:  # a bug of the server fails this call only
                    _LOG.exception("a call of %s failed", call.path)
                    call.fail(Status.INTERNAL, "the server failed to handle the request")
        if session.gathered > gathered.held:
            self._make_room()
        self._receiving = False
        self._flush()
        if self._kept:
            gathered.count(sum(len(message) for _, _, message, _ in self._kept if isinstance(message, bytes)))
            self._pause()

    def take_slice(self) -> None:
        """See WaitingConnection."""
        self._waits_for_turn = False
        if self._transport is None:
            return
        if self._kept:
            events, self._kept = self._kept, []
            self._handle(events)
        while self._rest and not self._waits_for_turn:
            part, self._rest = self._rest[: len(_READ_BUFFER)], self._rest[len(_READ_BUFFER) :]
            _READ_BUFFER[: len(part)] = part
            self.buffer_updated(len(part))
        if not self._waits_for_turn and not self._transport.is_closing():
            self._transport.resume_reading()

    def _must_wait(self) -> bool:
        """Whether what is to be done next waits for a later turn of the event loop: see Rounds."""
        rounds = self._state.rounds
        self._waits_for_turn = monotonic() >= rounds.until and not rounds.admits(self)
        return self._waits_for_turn

    def _pause(self) -> None:
        """Read no more until a slice of a later turn."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        due, self._on_drained = self._on_drained, []
        for release in due:
            release()
        self._flush()

    # Events.

    def _begin_deadline(self, call: Call, timeout_ns: int) -> None:
        if timeout_ns < 0:
            call.fail(Status.INTERNAL, "the header grpc-timeout cannot be read")
        else:
            call.begin_deadline(timeout_ns / 1e9)

    def _is_answered(self, stream: int, request: Any, following: list[Event]) -> bool:
        """Answer a call without making one, if the next event is its message, and there is an answer to it."""
        packed, timeout_ns = request
        if not following or packed != self._repeated or timeout_ns < -1:
            return False
        ((kind, of, message, _),) = following
        if kind != _MESSAGE or of != stream:
            return False
        parts = find_answer(self._state, message)
        if parts is None:
            self._repeated = None
            return False
        self.session.respond(stream, HEAD, parts, OK_TRAILERS)
        self._keepalive.said()
        return True

    def _tell(self, call: Call, kind: int, value: Any, ended: bool) -> None:
        """Handle an event that is rarer than a message. The type of `value` depends on `kind`: see _http2.pyi."""
        if kind == _http2.END:
            call.ended()
        elif kind == _http2.RESET:
            call.cancelled()
        elif kind == _http2.PLACED:
            meta, raws = value
            call.placed(meta, raws, ended)
        elif kind == _http2.COMPRESSED:
            call.compressed(value, ended)
        elif kind == _http2.TOO_LARGE:
            call.fail_too_large(value)
        elif kind == _http2.MALFORMED:
            call.fail(Status.INTERNAL, f"what came is no message of gRPC: {value}")

    def _make_room(self) -> None:
        """Count the bytes of incomplete messages. While there is no room for them, end the call with most of them."""
        session, gathered = self.session, self._gathered
        while session.gathered > gathered.held:
            try:
                gathered.take(session.gathered - gathered.held)
            except PendingBytesError as exc:
                stream = session.largest()
                call = self._calls.get(stream)
                if call is None:
                    session.reset(stream, _CANCEL)
                else:
                    call.fail(Status.RESOURCE_EXHAUSTED, exc.message)
        if session.gathered < gathered.held:
            gathered.give_back(gathered.held - session.gathered)

    def _client_pinged(self) -> None:
        if self._keepalive.client_pinged(self._loop.time(), bool(self._calls)):
            self.session.terminate(_ENHANCE_YOUR_CALM, b"too_many_pings")
            self._close()

    def _place(self, stream: int, meta: bytes, left: int) -> Place:
        call = self._calls.get(stream)
        if call is None:
            return False
        try:
            return call.place(meta, left)
        except Exception:  # a bug of the server fails this call only
            _LOG.exception("a call of %s failed", call.path)
            call.fail(Status.INTERNAL, "the server failed to handle the request")
            return False

    # Requests of calls.

    def said(self) -> None:
        """See call.Connection. Responses of several calls are written together."""
        self._keepalive.said()
        if self._receiving:
            return
        if not self._calls:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def over(self, stream: int) -> None:
        """See call.Connection."""
        self._calls.pop(stream, None)

    def answered(self, stream: int) -> None:
        """See call.Connection."""
        self._calls.pop(stream, None)
        self.said()

    def repeats(self, head: bytes) -> None:
        """See call.Connection."""
        self._repeated = head

    def call_later(self, delay_s: float, call_back: Callable[[], None]) -> Callable[[], None]:
        """See call.Connection."""
        return self._loop.call_later(delay_s, call_back).cancel

    # Sending.

    def _flush(self) -> None:
        self._flush_due = False
        transport = self._transport
        if transport is None or self._write_paused or transport.is_closing():
            return
        parts, given = self.session.send()
        releases: list[Callable[[], None]] = given  # type: ignore[assignment]  # they are what calls gave
        if parts:
            if len(parts) == 1:
                transport.write(parts[0])
            else:
                # Several parts mean a large message, and clients ping while they receive one: pings count from here.
                transport.writelines(parts)
                self._keepalive.said()
            if self._unsent:
                self._keepalive.took()
        if self._write_paused:
            self._on_drained += releases
        else:
            for release in releases:
                release()
            if not self.session.wants_io:
                transport.close()
        if (self._write_paused or self.session.blocked) is not self._unsent:
            self._count_unsent()

    def _count_unsent(self) -> None:
        """Count unsent bytes as a request in flight: a server that stops waits for clients to read."""
        self._unsent = not self._unsent
        if self._unsent:
            self._state.in_flight += 1
        else:
            self._state.end_request()

    def _close(self) -> None:
        """Send what is left, such as the reason, and close the connection."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # Closing.

    def shut_down(self) -> None:
        """Tell the client to open no more calls. Calls in flight go on."""
        if not self._shut_down:
            self._shut_down = True
            self.session.shut_down()
            self._flush()

    @property
    def is_idle(self) -> bool:
        """See OpenConnection. A client that is about to begin a call is told so by HTTP/2, and connects again."""
        if self._shut_down:
            return False
        if self._calls and self._quiet < QUIET_CHECKS:
            return False
        return all(call.is_idle for call in self._calls.values())

    def close_idle(self) -> None:
        """Accept no more calls, and close the connection once the calls in flight are answered."""
        self.shut_down()
        for call in list(self._calls.values()):
            call.drain()
        self._flush()
        if not self._state.exiting:
            self._loop.call_later(GIVE_WAY_S, self._give_way)

    def _give_way(self) -> None:
        """Cut the connection of a client that has no calls, and does not close it."""
        if not self._calls:
            self.abort()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _check(self) -> None:
        now = self._loop.time()
        self._quiet += 1
        self._timer = self._loop.call_later(CHECK_S, self._check)
        for call in list(self._calls.values()):
            call.check(now)
        moves = self._moves()
        if moves:
            self._keepalive.took()
        self._end_stalled(now, moves)
        session = self.session
        match self._keepalive.due(
            now,
            begun=session.begun,
            has_calls=bool(self._calls),
            blocked=self._write_paused,
            waits=session.blocked,
        ):
            case Action.CUT:
                self.abort()
            case Action.PING:
                self.session.ping()
            case Action.SHUT_DOWN:
                self.shut_down()
            case Action.NOTHING:
                pass
        self._flush()

    def _moves(self) -> bool:
        """Whether the client has acknowledged some of what the transport could not send."""
        transport, before = self._transport, self._unacknowledged
        if transport is None or not self._write_paused:
            self._unacknowledged = 0
            return False
        self._unacknowledged = unacknowledged(transport)
        return self._unacknowledged < before

    def _end_stalled(self, now: float, moves: bool) -> None:
        """End calls whose client stopped within a message, or reads none of its responses."""
        silent, stuck = self._stalls.look(now, self.session.waiting(), moves=moves)
        for stream in silent:
            call = self._calls.get(stream)
            if call is not None:
                call.fail(Status.DEADLINE_EXCEEDED, f"nothing of a message came for {HALF_MESSAGE_S_MAX:.0f} s")
        for stream in stuck:
            call = self._calls.get(stream)
            self.session.reset(stream, _CANCEL)
            if call is not None:
                call.cancelled()
