# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections, the sending half: responses in the order of their requests.

A large response is written from the response region, and its slot released when the transport has sent it, so that
nobody makes a copy. The pieces of a stream are written one by one, and only while the client takes them: whoever makes
them learns from their release how far it has got.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.http.exchange import Exchange

_LOG = logging.getLogger("pyruntime.frontends")

# Responses up to this size are joined and sent with one call; larger ones are sent from where they lie.
JOINED_BYTES_MAX = 32 << 10
# A client that takes nothing for so long, in seconds, while there is something for it, is cut off. What it was sent
# keeps memory, and the sender of a stream waits for it.
STALLED_S_MAX = 30.0


def call_later(delay_s: float, call_back: Callable[[int], None], left: int) -> asyncio.TimerHandle:
    """Have the running event loop call back after a while."""
    return asyncio.get_running_loop().call_later(delay_s, call_back, left)


class HttpSender(asyncio.BaseProtocol):
    """What of a connection has to do with its responses. All methods belong to the event loop's thread."""

    # Defaults stand here, not in __init__: a connection changes few of them in its life.
    _transport: asyncio.Transport | None = None
    _owes_continue = False
    _write_paused = False
    _read_paused = False
    _stall_timer: asyncio.TimerHandle | None = None

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._exchanges: deque[Exchange] = deque()
        self._on_drained: list[Callable[[], None]] = []

    # What the transport tells us.

    def pause_writing(self) -> None:
        self._write_paused = True
        self._watch_stall()
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._end_stall()
        self._release_drained()
        self.answered()
        self._throttle()

    def _watch_stall(self) -> None:
        """Look again after a while whether the client has taken anything."""
        if self._transport is not None:
            left = self._transport.get_write_buffer_size()
            self._stall_timer = call_later(STALLED_S_MAX, self._check_stall, left)

    def _check_stall(self, left: int) -> None:
        self._stall_timer = None
        if self._transport is None or not self._write_paused:
            return
        if self._transport.get_write_buffer_size() < left:
            self._watch_stall()
            return
        _LOG.warning("a client took nothing of its response for %g s and is cut off", STALLED_S_MAX)
        self._transport.abort()

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

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
        if exchange.trace is not None:
            exchange.begin_sending()
        if exchange.length > JOINED_BYTES_MAX:
            transport.writelines(parts)
        else:
            transport.write(b"".join(parts))
        if self._write_paused and exchange.length > JOINED_BYTES_MAX:
            self._on_drained.append(exchange.release)
        else:
            exchange.release()
        self._state.end_request()
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
        self._state.end_request()
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
