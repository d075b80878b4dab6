# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the responses of an HTTP/1.1 connection, in the order of its requests.

A large response is written from the response region, and its slot released when the transport has sent it. The pieces
of a stream are written one by one, while the client reads them, and each is released afterwards, which paces the model.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.http.exchange import JOINED_BYTES_MAX, Exchange
from pyruntime.runtime.frontends.http.write_stall import WriteStall


class ResponseWriter(asyncio.BufferedProtocol):
    """See the module. The connection, which reads, is a subclass: a call to another object would cost each request."""

    # Defaults are class attributes: a connection changes few of them in its life.
    transport: asyncio.Transport | None = None
    # The client waits for a `100 Continue`.
    _owes_continue = False
    _write_paused = False
    _read_paused = False
    # A request for a stream has been read, which is handled once all requests before it are answered.
    _waits_for_answers = False
    _stall: WriteStall | None = None

    def __init__(self, state: ServerState) -> None:
        self._state = state
        # The unanswered ones, in the order of their requests.
        self.exchanges: deque[Exchange] = deque()
        self._on_drained: list[Callable[[], None]] = []

    @abstractmethod
    def _continue(self) -> None:
        """Tell the client to send its body, once all earlier requests are answered."""

    @abstractmethod
    def _throttle(self) -> None:
        """Read, or do not: how many responses are due, or whether the client reads them, has changed."""

    @abstractmethod
    def _close(self, transport: asyncio.Transport) -> None:
        """Close the connection after its last response."""

    def answered(self) -> None:
        """See exchange.Connection. Send all responses that are due now."""
        exchanges = self.exchanges
        while exchanges:
            exchange = exchanges[0]
            parts, transport = exchange.parts, self.transport
            if parts is None or transport is None:
                if self._send_pieces(exchange):
                    continue
                break
            del exchanges[0]
            if exchange.trace is not None:
                exchange.begin_sending()
            if exchange.length > JOINED_BYTES_MAX:
                transport.writelines(parts)
                if self._write_paused:
                    self._on_drained.append(exchange.release)
                else:
                    exchange.release()
            else:
                transport.write(b"".join(parts))
                exchange.release()
            self._state.end_request()
            if not exchange.keep_alive:
                self._close(transport)
        if self._owes_continue and exchanges:
            self._continue()
        if self._read_paused or self._waits_for_answers:
            self._throttle()

    def _send_pieces(self, exchange: Exchange) -> bool:
        """Send the available pieces of a response, while the client reads them. Returns True at its end."""
        transport = self.transport
        if transport is None:
            return False
        while not self._write_paused and (piece := exchange.next_piece()) is not None:
            transport.write(piece.data)
            if self._write_paused:
                self._on_drained.append(piece.release)
            else:
                piece.release()
        if not exchange.ended:
            return False
        del self.exchanges[0]
        self._state.end_request()
        if not exchange.keep_alive:
            transport.close()
        return True

    def pause_writing(self) -> None:
        self._write_paused = True
        if self.transport is not None:
            self._stall = WriteStall(self.transport)
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._end_stall()
        self._release_drained()
        self.answered()
        self._throttle()

    def _release_drained(self) -> None:
        due, self._on_drained = self._on_drained, []
        for release in due:
            release()

    def _end_stall(self) -> None:
        stall, self._stall = self._stall, None
        if stall is not None:
            stall.end()

    def _sent(self) -> None:
        """A native thread has sent the response of the only exchange that was due."""
        exchange = self.exchanges.popleft()
        self._state.end_request()
        if not exchange.keep_alive and self.transport is not None:
            self.transport.close()
        if self.exchanges or self._read_paused:
            self.answered()
