# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections, the sending half: responses in the order of their requests.

A large response is written from the response region, and its slot released when the transport has sent it, so that
nobody makes a copy. The pieces of a stream are written one by one, and only while the client takes them: whoever makes
them learns from their release how far it has got.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from pyruntime.runtime.core import Core
from pyruntime.runtime.frontends.exchange import Exchange

# Responses up to this size are joined and sent with one call; larger ones are sent from where they lie.
JOINED_BYTES_MAX = 32 << 10


class HttpSender(asyncio.BaseProtocol):
    """What of a connection has to do with its responses. All methods belong to the event loop's thread."""

    # Defaults stand here, not in __init__: a connection changes few of them in its life.
    _transport: asyncio.Transport | None = None
    _owes_continue = False
    _write_paused = False
    _read_paused = False

    def __init__(self, core: Core) -> None:
        self._core = core
        self._exchanges: deque[Exchange] = deque()
        self._on_drained: list[Callable[[], None]] = []

    # What the transport tells us.

    def pause_writing(self) -> None:
        self._write_paused = True
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._release_drained()
        self.answered()
        self._throttle()

    # What exchanges tell us.

    def answered(self) -> None:
        """An exchange has its response, or a piece of it: send all that are due now."""
        exchanges = self._exchanges
        while exchanges:
            exchange = exchanges[0]
            parts = exchange.parts
            if parts is None or self._transport is None:
                if self._send_pieces(exchange):
                    continue
                break
            del exchanges[0]
            self._send(exchange, parts)
        if self._owes_continue and exchanges:
            self._continue()
        if self._read_paused:
            self._throttle()

    def _send(self, exchange: Exchange, parts: list[bytes | memoryview]) -> None:
        transport = self._transport
        assert transport is not None  # `answered` checked it
        if exchange.length > JOINED_BYTES_MAX:
            transport.writelines(parts)
        else:
            transport.write(b"".join(parts))
        if self._write_paused and exchange.length > JOINED_BYTES_MAX:
            self._on_drained.append(exchange.release)
        else:
            exchange.release()
        self._core.end_request()
        if not exchange.keep_alive:
            transport.close()

    def _send_pieces(self, exchange: Exchange) -> bool:
        """Send what there is of a response in pieces, while the client takes it; True if that was all of it."""
        transport = self._transport
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
        del self._exchanges[0]
        self._core.end_request()
        if not exchange.keep_alive:
            transport.close()
        return True

    def _release_drained(self) -> None:
        due, self._on_drained = self._on_drained, []
        for release in due:
            release()

    # What the receiving half does about it.

    @abstractmethod
    def _throttle(self) -> None:
        """Read on only while the client reads its answers and has not too many of them due."""

    @abstractmethod
    def _continue(self) -> None:
        """Tell the client to send its body, once all earlier requests are answered."""
