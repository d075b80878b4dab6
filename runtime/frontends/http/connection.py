# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections: split what is read into requests, and pass their bytes to exchanges.

The socket reads a binary request body directly into its model's request region, once the head has announced the length.
Pipelined requests are executed at the same time, except that one for a stream begins after all requests before it.
response_writer.py has the other direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.execution.executor import ClientSocket
from pyruntime.runtime.frontends.common.client_timeouts import ClientTimeouts, Phase
from pyruntime.runtime.frontends.common.connection_limits import LIMIT, has_unread, report_unsent
from pyruntime.runtime.frontends.common.health_places import peer_of
from pyruntime.runtime.frontends.common.restrictions import is_loopback
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.exchanges import UNREADABLE, exchange_of
from pyruntime.runtime.frontends.http.health_reserve import HEALTH, only_health, refuse_place
from pyruntime.runtime.frontends.http.incoming_body import IncomingBody
from pyruntime.runtime.frontends.http.infer_exchange import InferExchange
from pyruntime.runtime.frontends.http.lending import CLIENT_SOCKETS_SHARE, Lending
from pyruntime.runtime.frontends.http.lingering import DISCARDED_BYTES_MAX, Lingering
from pyruntime.runtime.frontends.http.plain_exchange import begin_plain, find_plain
from pyruntime.runtime.frontends.http.repeated_requests import find_answer
from pyruntime.runtime.frontends.http.request_head import HEAD_BYTES_MAX, HEAD_END, BadRequest, Head, too_long
from pyruntime.runtime.frontends.http.response_head import CONTINUE
from pyruntime.runtime.frontends.http.response_writer import ResponseWriter
from pyruntime.runtime.frontends.http.routes import Endpoint
from pyruntime.runtime.inference.pending_bytes import Claim, Share

# Concurrent requests of one connection. More wait in the socket.
PIPELINED_MAX = 64
# The bytes that are read while a stream's request waits for its turn. More wait in the socket; while it is not read, a
# client that leaves is found only when something is sent to it.
READ_AHEAD_BYTES_MAX = 64 << 10
# TLS begins with these bytes. No request does.
_TLS = b"\x16\x03"
# Local names spare the hot path a lookup.
_INFER, _STREAM = Endpoint.MODEL_INFER, Endpoint.MODEL_GENERATE_STREAM
# The first request of a read may be handled at once if it is to one of these. All others make documents, or do more.
_PROMPT = frozenset({*HEALTH, Endpoint.MODEL_READY, Endpoint.MODEL_GENERATE, Endpoint.MODEL_GENERATE_STREAM})
# A read that begins like this is handled at once however many others there are.
_HEALTH_REQUESTS = (b"GET /v2/health/live ", b"GET /v2/health/ready ")

# One read buffer for all connections: the bytes of a read are handled before the next read starts.
_READ_BUFFER = memoryview(bytearray(128 << 10))


class HttpConnection(ResponseWriter):
    """One client. All methods belong to the event loop's thread."""

    # Defaults are class attributes: a connection changes few of them in its life.
    # The body that is arriving.
    _body: IncomingBody | None = None
    # All that comes is discarded: the last request is refused, and its body was still arriving.
    _lingering: Lingering | None = None
    # The beginning of a head, or bytes that were read while too many requests were due, or wait for a turn.
    _rest = b""
    # A request has begun since the last `check`.
    _heard = True
    # A request announced that it is the last one.
    _ended = False
    # The head of the last request that was answered by its bytes. Its body is short, and comes as it is.
    _repeated: Head | None = None
    # It is beyond the limit of connections: see HealthPlaces.
    _is_reserved = False
    # A piece of a body is in `_rest` because there is no room for it yet.
    _waits_for_room = False
    # `_rest` begins with a request, or a part of one, that is handled in a later turn of the event loop.
    _waits_for_turn = False
    _share: Share | None = None
    _limit = LIMIT

    def __init__(self, state: ServerState, connections: set[object], read_head: Callable[[bytes], Head]) -> None:
        """`connections` are those of all ports; the connection adds and removes itself."""
        super().__init__(state)
        self._connections = connections
        self._read_head = read_head
        self._timeouts = ClientTimeouts()
        self._lending = Lending(state, self)

    def __repr__(self) -> str:
        return f"<HttpConnection [{len(self.exchanges)} exchanges]>"

    @property
    def is_local(self) -> bool:
        return self.transport is not None and is_loopback(self.transport.get_extra_info("peername"))

    # Events of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._has_room() and not self._use_reserve(transport):
            refuse_place(transport)
            return
        # TLS reports at once that the end of its handshake is not sent, and never sends it if reading pauses then.
        report_unsent(transport)
        self.transport = transport  # type: ignore[assignment]  # what a server's connections have
        self._connections.add(self)

    def _has_room(self) -> bool:
        """Whether there may be one more connection."""
        return self._limit.has_room(len(self._connections))

    def _use_reserve(self, transport: asyncio.BaseTransport) -> bool:
        """Take one of the places that are kept for a question about health. Returns whether there is one."""
        self._is_reserved = self._limit.health.take(self, peer_of(transport.get_extra_info("peername")))
        if self._is_reserved:
            self._read_head = only_health(self._read_head)
        return self._is_reserved

    @property
    def is_silent(self) -> bool:
        """See SilentConnection."""
        return not self.exchanges and self.transport is not None and not has_unread(self.transport)

    def give_way(self) -> None:
        """See SilentConnection."""
        if self.transport is not None:
            refuse_place(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.health.leave(self)
        self._state.settle()
        self.transport = None
        self._lending.end()
        self._end_stall()
        self._connections.discard(self)
        self._body = None
        for exchange in self.exchanges:
            exchange.abandon()
        self.exchanges.clear()
        self._release_drained()

    def eof_received(self) -> bool:
        """The client sends no more. Most such clients are gone, so all requests are cancelled.

        Those that their models still answer are answered.
        """
        self._settle()
        if self._body is not None or not self.exchanges:
            return False
        self.exchanges[-1].keep_alive = False
        for exchange in list(self.exchanges):
            exchange.cancel()
        return True

    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._body
        return _READ_BUFFER if body is None or body.direct is None else body.direct

    def buffer_updated(self, nbytes: int) -> None:
        body = self._body
        if body is not None and body.direct is not None:
            body.fill(nbytes)
            if body.is_complete:
                rounds = self._state.rounds
                if rounds.at_once > 0:
                    rounds.at_once -= 1
                elif self._must_wait(b""):
                    return
                self._complete(body)
            return
        if self._lingering is not None:
            if not self._lingering.take(nbytes):
                self.abort()
            return
        data = _READ_BUFFER[:nbytes].tobytes()
        if self.exchanges:
            self._state.settle()
        try:  # as `_read`, which costs a call
            self._received(data)
        except BadRequest as exc:
            self._refuse(exc.status, str(exc))

    def _settle(self) -> None:
        """Process the answers of native threads, and have these threads answer nothing more on this connection."""
        self._lending.take_back()
        self._state.settle()
        if self.exchanges:
            self.exchanges[0].take_back()

    # Requests.

    def _received(self, data: bytes) -> None:
        """Split `data` into heads and bodies."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if self._waits_for_room or self._waits_for_turn or self._waits_for_answers:
            self._rest = data  # TLS may bring more although reading is paused
            self._throttle()
            return
        rounds = self._state.rounds
        # The first request of a read is handled at once: whatever it is if the read is admitted, else if it is prompt.
        is_first, is_admitted = True, False
        if rounds.at_once > 0:
            rounds.at_once -= 1
        elif not data.startswith(_HEALTH_REQUESTS):
            if self._must_wait(data):
                return
            is_admitted = True
        while data and self.transport is not None:
            if self._body is not None:
                data = self._take_body(self._body, data)
                continue
            if self._write_paused or len(self.exchanges) >= PIPELINED_MAX:
                self._rest = data  # no longer than one read; `answered` goes on with it
                self._throttle()
                return
            if self._ended:
                return  # an earlier request was the last one
            end = data.find(HEAD_END) + len(HEAD_END)
            if end < len(HEAD_END):
                if len(data) > HEAD_BYTES_MAX:
                    raise too_long()
                if data.startswith(_TLS):
                    raise BadRequest("this port speaks HTTP without TLS")
                self._rest = data
                return
            head = self._read_head(data[:end])
            endpoint = head.route.endpoint
            if endpoint is _STREAM and self._must_wait_for_answers():
                self._rest = data  # `answered` goes on with it
                self._throttle()
                return
            is_prompt = is_admitted or (is_first and (endpoint is _INFER or endpoint in _PROMPT))
            if not is_prompt and self._must_wait(data):
                return
            is_first = is_admitted = False
            stop = end + head.content_length
            plain = find_plain(self._state, head) if endpoint is _INFER else None
            if stop > len(data) and (plain is not None or head == self._repeated):
                self._rest = data  # such requests are short: the rest is about to come
                return
            self._heard = True
            if not (head.keep_alive or head.asks_to_stay):
                self._ended = True
            if self.exchanges:
                self.exchanges[0].take_back()
            if plain is not None and stop <= len(data):
                if stop == len(data) and self._lending.lend(plain, head, data):
                    return
                begun = begin_plain(self._state, self, plain, head, data, end)
                if begun is not None:
                    self.exchanges.append(begun)
                    data = data[stop:] if stop < len(data) else b""
                    continue
            self._lending.alike = 0
            if head == self._repeated and not self.exchanges:
                answer = find_answer(self._state, head, data[end:stop])
                if answer is not None:
                    data = data[stop:] if stop < len(data) else b""
                    self.transport.write(b"".join(answer))
                    continue
            kind = InferExchange if endpoint is _INFER else exchange_of(endpoint)
            exchange = kind(self._state, self, head)
            self.exchanges.append(exchange)
            if stop <= len(data) and not head.chunked:  # the whole body is here, as nearly always
                body = data[end:stop]
                data = data[stop:] if stop < len(data) else b""
                exchange.finish(body)
                if exchange.is_repeated:
                    self._repeated = head
            else:
                self._begin_body(exchange, head)
                data = data[end:]

    def _begin_body(self, exchange: Exchange, head: Head) -> None:
        self._body = body = IncomingBody(exchange, head)
        if not exchange.check_head() and (head.expects_continue or head.content_length > DISCARDED_BYTES_MAX):
            self._refuse_early(exchange)
            return
        self._owes_continue = head.expects_continue
        self._continue()
        body.seek_memory()

    def _refuse_early(self, exchange: Exchange) -> None:
        """Answer a refused request whose body is still to come, or not: its client may have waited for the answer."""
        self._body = None
        self._ended = True
        self._owes_continue = False
        self._lingering = Lingering()
        exchange.keep_alive = False
        exchange.finish(b"")

    def _continue(self) -> None:
        """Tell the client to send its body, once all earlier requests are answered."""
        if not self._owes_continue or self._body is None or self.transport is None:
            return
        if self.exchanges[0] is self._body.exchange:
            self._owes_continue = False
            self.transport.write(CONTINUE)

    def _take_body(self, body: IncomingBody, data: bytes) -> bytes:
        """Give a body its part of `data`. Returns the rest."""
        if not body.admits(len(data)):
            self._rest = data  # no longer than one read; `has_room` goes on with it
            self._waits_for_room = True
            self._throttle()
            return b""
        rest = body.take(data)
        if self._body is not body:  # the request is refused, and the body much too long to be read to its end
            return b""
        if body.is_complete:
            self._complete(body)
        elif rest and body.direct is None and self._must_wait(rest):
            return b""
        return rest

    def _complete(self, body: IncomingBody) -> None:
        self._body = None
        self._owes_continue = False  # the client has not waited for it
        exchange = body.exchange
        exchange.finish(b"")
        if exchange.is_repeated:
            self._repeated = exchange.head
        self._throttle()

    def _refuse(self, status: int, message: str) -> None:
        """Refuse bytes that are no valid request, after the responses to earlier requests, and close the connection."""
        if self.transport is None:
            return
        self.transport.pause_reading()
        self._ended = True
        self._waits_for_room = False
        self._rest = b""
        self._owes_continue = False
        body, self._body = self._body, None
        if body is not None:
            exchange = body.exchange
        else:
            exchange = exchange_of(Endpoint.REFUSED)(self._state, self, UNREADABLE)
            self.exchanges.append(exchange)
        exchange.keep_alive = False
        exchange.refuse(status, message)

    def go_on(self, data: bytes) -> None:
        """See LendableConnection."""
        self._heard = True
        if self.transport is not None:
            self._rest = data
            self.transport.resume_reading()
            self._read_rest()

    def _read_rest(self) -> None:
        """Handle the bytes that were left when too many requests were due."""
        rest, self._rest = self._rest, b""
        self._read(rest)

    def _read(self, data: bytes) -> None:
        try:
            self._received(data)
        except BadRequest as exc:
            self._refuse(exc.status, str(exc))

    def _must_wait(self, rest: bytes) -> bool:
        """Whether `rest` waits for a later turn of the event loop: see Rounds."""
        rounds = self._state.rounds
        if monotonic() < rounds.until or rounds.admits(self):
            return False
        self._rest = rest  # no longer than one read; `take_slice` goes on with it
        self._waits_for_turn = True
        self._throttle()
        return True

    def _must_wait_for_answers(self) -> bool:
        """Whether a stream's request waits until all requests before it are answered.

        Its responses could not be sent before that, so they would stop the model, which may still have to answer one of
        those requests.
        """
        if self.exchanges:
            self.exchanges[0].take_back()  # otherwise nobody would tell us that it is answered
        self._waits_for_answers = bool(self.exchanges)
        return self._waits_for_answers

    def take_slice(self) -> None:
        """See WaitingConnection."""
        self._waits_for_turn = False
        if self._body is not None and self._body.is_complete:
            self._complete(self._body)
        else:
            self._throttle()

    def claim(self) -> Claim:
        """See exchange.Connection."""
        if self._share is None:
            self._share = self._state.pending_bytes.share()
        return self._share.claim()

    def has_room(self) -> None:
        """See exchange.Connection."""
        if self._waits_for_room:
            self._waits_for_room = False
            self._throttle()

    def discarded(self, nbytes: int) -> None:
        """Count the discarded bytes of a refused request. It is answered now if there are too many."""
        body = self._body
        if body is not None and not body.discard(nbytes):
            self._refuse_early(body.exchange)

    def check(self, now: float, crowded: bool) -> None:
        """End the connection if its client is too slow. Called every few seconds; `now` is in seconds, of any clock."""
        if self._lending.check():
            return
        if self.exchanges:
            self._state.settle()
        if self._lingering is not None and not self.exchanges:
            if self._lingering.is_over(now):
                self.abort()
            return
        phase = self._phase()
        heard, self._heard = self._heard, False
        if not self._timeouts.are_exceeded(now, phase, anew=heard, taken=self._progress(), crowded=crowded):
            return
        if phase is Phase.REQUEST:
            self.close_idle()
        else:
            what = Phase.BODY if HEAD_END in self._rest else phase
            self._refuse(408, f"the request's {what.name.lower()} takes too long to come in")

    def _phase(self) -> Phase:
        if self._read_paused or self._owes_continue or self._waits_for_answers:
            return Phase.SERVER
        if self.transport is None or self.transport.is_closing():
            return Phase.SERVER
        if self._body is not None:
            return Phase.BODY
        if self._rest:
            return Phase.HEAD
        return Phase.SERVER if self.exchanges else Phase.REQUEST

    def _progress(self) -> int:
        """A number that grows by the received bytes of a body."""
        return 0 if self._body is None else self._body.progress

    def shut_down(self) -> None:
        """Do nothing: HTTP/1.1 cannot announce the shutdown. The next request is answered with 503."""

    @property
    def is_idle(self) -> bool:
        """See OpenConnection. A while is the time since the last `check`."""
        if self._lingering is not None:
            return not self.exchanges
        return not self._heard and not self._lending.is_lent and self._phase() is Phase.REQUEST

    def close_idle(self) -> None:
        """Close the connection once its requests in flight are answered."""
        self._settle()
        if self.exchanges:
            self.exchanges[-1].keep_alive = False
        elif self.transport is not None:
            self.transport.close()

    def _close(self, transport: asyncio.Transport) -> None:
        """Close the connection after its last response, or its half while the client still sends."""
        if self._lingering is None or self._is_reserved:
            transport.close()
        elif transport.can_write_eof():  # TLS cannot; its clients are told by the response
            transport.write_eof()

    def abort(self) -> None:
        """Cut the connection."""
        if self.transport is not None:
            self.transport.abort()

    def _throttle(self) -> None:
        """Pause reading while requests wait, the client does not read its responses, or too many of them are due."""
        if self.transport is None or self.transport.is_closing():
            return
        goes_on = self._waits_for_answers and not self.exchanges
        if goes_on:
            self._waits_for_answers = False
        # A body is read whenever there is room for it: otherwise its request would never be answered.
        due = self._write_paused or len(self.exchanges) >= PIPELINED_MAX
        ahead = self._waits_for_answers and len(self._rest) > READ_AHEAD_BYTES_MAX
        full = self._waits_for_room or self._waits_for_turn or ahead or (self._body is None and due)
        if full and not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()
        elif not full and (self._read_paused or goes_on):
            if self._read_paused:
                self._read_paused = False
                self.transport.resume_reading()
            if self._rest:
                self._read_rest()

    # Native threads.

    @property
    def has_spare_descriptor(self) -> bool:
        """See LendableConnection. Not so once many connections are open."""
        return len(self._connections) <= self._limit.connections_max * CLIENT_SOCKETS_SHARE

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """See PlainConnection."""
        return self._lending.client_socket(make)

    def sent(self) -> None:
        """See PlainConnection."""
        self._lending.alike += 1
        self._sent()

    def take_back(self) -> None:
        """See LentConnection."""
        self._lending.take_back()
