# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections: bytes in, exchanges out, responses back in the order of their requests.

A binary request body is received straight into its model's request region: the parser sees its head, and once the head
says how long the body is, the socket reads into the slot itself. A large response is written from the response region,
and its slot released when the transport has sent it. In between nobody makes a copy.

httptools parses; it keeps no limits of its own, so they are all here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import httptools

from pyruntime.runtime.core import Core
from pyruntime.runtime.frontends.exchange import Exchange
from pyruntime.runtime.frontends.http_head import CONTINUE

# A head longer than this is no client of ours: URL and headers together. (Apache takes 8 KiB, nginx 32 KiB.)
HEAD_BYTES_MAX = 64 << 10
# Requests of one connection that are answered at a time; more wait in the socket.
PIPELINED_MAX = 64
# Bodies with this much still to come are read into shared memory directly; below it the parser's copy is cheaper.
DIRECT_BYTES_MIN = 16 << 10
# Responses up to this size are joined and sent with one call; larger ones are sent from where they lie.
JOINED_BYTES_MAX = 32 << 10
# What a refused request may still send before its connection is cut: clients read an answer only after they sent all.
DISCARDED_BYTES_MAX = 1 << 30

# One read buffer for all connections: a read is parsed before the next one starts.
_READ_BUFFER = memoryview(bytearray(256 << 10))


class HttpConnection(asyncio.BufferedProtocol):
    """One client. All methods belong to the event loop's thread."""

    def __init__(self, core: Core, connections: set[HttpConnection]) -> None:
        self._core = core
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchanges: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._head_bytes = 0
        self._url = b""
        self._direct: memoryview | None = None
        self._discarded = 0
        self._write_paused = False
        self._read_paused = False
        self._on_drained: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<HttpConnection [{len(self._exchanges)} exchanges]>"

    # What the transport tells us.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # With no tolerance for unsent bytes, being told to pause says that a response is still on its way.
        transport.set_write_buffer_limits(0)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        self._direct = None
        for exchange in self._exchanges:
            exchange.abandon()
        self._exchanges.clear()
        self._current = None
        self._release_drained()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._release_drained()
        self._throttle()

    def eof_received(self) -> bool:
        """A client may stop sending and still wait for its answers."""
        if self._current is not None or not self._exchanges:
            return False
        self._exchanges[-1].keep_alive = False
        return True

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ_BUFFER if self._direct is None else self._direct

    def buffer_updated(self, nbytes: int) -> None:
        if self._direct is not None:
            self._direct = self._direct[nbytes:]
            if not self._direct:
                self._direct = None
                # The parser knows nothing of the body that went past it; a new one starts at the next request.
                self._parser = httptools.HttpRequestParser(self)
                self.on_message_complete()
            return
        if self._current is None:
            self._head_bytes += nbytes
        try:
            self._parser.feed_data(_READ_BUFFER[:nbytes])
        except httptools.HttpParserUpgrade:
            self._refuse(400, "protocol upgrades are not supported")
        except httptools.HttpParserError as exc:
            self._refuse(400, f"malformed HTTP request: {exc}")
        else:
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431, f"the request's head is longer than {HEAD_BYTES_MAX} bytes")
            elif self._current is not None:
                self._direct = self._current.direct_body(DIRECT_BYTES_MIN)

    # What the parser tells us.

    def on_message_begin(self) -> None:
        self._url = b""
        self._current = Exchange(self._core, self)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._current is not None  # a header follows on_message_begin
        self._current.header(name, value)

    def on_headers_complete(self) -> None:
        exchange = self._current
        assert exchange is not None  # heads follow on_message_begin
        self._head_bytes = 0
        parser = self._parser
        exchange.keep_alive = parser.should_keep_alive() and parser.get_http_version() == "1.1"
        self._exchanges.append(exchange)
        exchange.begin(parser.get_method().decode("latin-1"), self._url)
        if exchange.expects_continue and self._transport is not None and self._exchanges[0] is exchange:
            self._transport.write(CONTINUE)
        self._throttle()

    def on_body(self, body: bytes) -> None:
        assert self._current is not None  # a body follows a head
        self._current.body(body)

    def on_message_complete(self) -> None:
        exchange, self._current = self._current, None
        assert exchange is not None  # nothing completes that did not begin
        exchange.finish()

    # What exchanges ask of us.

    def answered(self) -> None:
        """An exchange has its response: send all that are due now."""
        while self._exchanges and self._exchanges[0].parts is not None and self._transport is not None:
            exchange = self._exchanges[0]
            if exchange is self._current:
                return  # refused before it was read to the end: it is answered then
            self._exchanges.popleft()
            self._send(exchange)
        self._throttle()

    def discarded(self, nbytes: int) -> None:
        """A refused request sends more of its body; there is a limit to that."""
        self._discarded += nbytes
        if self._discarded > DISCARDED_BYTES_MAX and self._transport is not None:
            self._transport.abort()

    def close_idle(self) -> None:
        """Close the connection once what is under way is answered."""
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, exchange: Exchange) -> None:
        transport, parts = self._transport, exchange.parts
        assert transport is not None  # `answered` checked both
        assert parts is not None
        if exchange.length <= JOINED_BYTES_MAX:
            transport.write(b"".join(parts))
            exchange.release()
        else:
            transport.writelines(parts)
            if self._write_paused:
                self._on_drained.append(exchange.release)
            else:
                exchange.release()
        self._core.end_request()
        if not exchange.keep_alive:
            transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot be read as a request, after everything before it, and hang up."""
        if self._transport is None:
            return
        self._transport.pause_reading()
        if self._current is not None and self._current not in self._exchanges:
            self._current = None
        exchange = self._current or Exchange(self._core, self)
        if self._current is None:
            self._exchanges.append(exchange)
            self._core.begin_request()
        self._current = None
        exchange.keep_alive = False
        exchange.refuse(status, message)

    def _throttle(self) -> None:
        """Read on only while the client reads its answers and has not too many of them due."""
        if self._transport is None or self._transport.is_closing():
            return
        wanted = self._write_paused or len(self._exchanges) >= PIPELINED_MAX
        if wanted and self._current is not None:
            return  # its body must come in, or it will never be answered
        if wanted and not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()
        elif not wanted and self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def _release_drained(self) -> None:
        due, self._on_drained = self._on_drained, []
        for release in due:
            release()
