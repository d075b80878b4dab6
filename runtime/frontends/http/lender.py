# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections, what of them is lent to native threads: a descriptor to answer in, or all of the connection.

A client that has sent the same known request several times in a row is likely to do so again. Then the model's instance
reads the connection by itself, and we hear of sums only, until something else comes or we want to have it back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.connection_limits import connections_max
from pyruntime.runtime.frontends.http.known_exchange import KnownExchange, find_lendable
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.sender import HttpSender

# The share of the connections that may have one more descriptor each, for native threads that answer in them. The rest
# is left for connections, which are more important.
CLIENT_SOCKETS_SHARE = 0.5
# A connection is lent after so many known requests in a row, which native threads have answered.
ALIKE_MIN = 4
# After twice as many each time that something else came after all, or a request was not over at once; but not more. A
# connection over which more came in between begins anew.
ALIKE_MAX = 1 << 10


class HttpLender(HttpSender):
    """What of a connection has to do with native threads. All methods belong to the event loop's thread."""

    # Defaults stand here, not in __init__: a connection changes few of them in its life.
    # The connection as native threads have it; None if they never had, False if they cannot.
    _client: Any = None
    # Known requests in a row, and how many there must be.
    _alike = 0
    _alike_min = ALIKE_MIN
    # The connection as an instance has it that reads it, which one that is, what it is sent, and how many of that when
    # it was looked at.
    _lent: Any = None
    _reader: Any = None
    _plan: Any = None
    _begun = 0
    # The beginning of a head.
    _rest = b""
    # A request has begun since the last `check`.
    _heard = True
    _connections_max = connections_max()

    def __init__(self, state: ServerState, connections: set[Any]) -> None:
        super().__init__(state)
        self._connections = connections

    def client_socket(self, make: Callable[[int], Any]) -> Any | None:
        """See KnownConnection. It takes one more descriptor, which is not to be had for the last ones that connect."""
        transport = self._transport
        if self._exchanges or transport is None or transport.get_write_buffer_size():
            return None
        if self._client is None and len(self._connections) <= self._connections_max * CLIENT_SOCKETS_SHARE:
            self._client = False
            if transport.get_extra_info("sslcontext") is None:
                with suppress(OSError):
                    self._client = make(transport.get_extra_info("socket").fileno())
        return self._client or None

    def sent(self) -> None:
        """The client was sent the response of the first exchange, past us."""
        self._alike += 1
        exchange = self._exchanges.popleft()
        self._state.end_request()
        if not exchange.keep_alive and self._transport is not None:
            self._transport.close()
        if self._exchanges or self._read_paused:
            self.answered()

    # All of the connection.

    def _lend(self, head: Head, data: bytes, at: int) -> bool:
        """Lend the connection together with the request that is all of `data`, if that is known; `at` is its body's."""
        if self._alike < self._alike_min or self._exchanges:
            return False
        found = find_lendable(self._state, head)
        if found is None:
            return False
        plan, reader = found
        lent = reader.lend(plan.known, self, data, at, plan.rows)
        if lent is None:
            return False
        assert self._transport is not None  # there was something to send in
        self._transport.pause_reading()
        self._lent, self._reader, self._plan = lent, reader, plan
        self._begun = 0
        self._state.lent.add(self)
        return True

    def _is_lent(self) -> bool:
        """Whether it is still worth while that it is lent: nobody notices meanwhile that a client hangs up."""
        if self._lent is None:
            return False
        self._state.settle()
        if self._lent is not None and self._lent.begun != self._begun and self._reader.may_read:
            self._begun = self._lent.begun
            return True
        self.take_back()
        return False

    def take_back(self) -> None:
        """Read the connection again, if it was lent. What is under way becomes an exchange."""
        if self._lent is None:
            return
        rest = self._lent.take_back()
        if self._lent is not None:  # it was not adopted
            self._is_back(rest)

    def adopt(self, serial: int, arrived_ns: int) -> KnownExchange:
        """A request that came while it was lent is to be told of as others are: the exchange of it."""
        exchange = KnownExchange(self._state, self, self._plan)
        exchange.begin_sent(arrived_ns)
        self._exchanges.append(exchange)
        self._state.in_flight += 1
        self._reader.adopt(exchange, serial)
        self._note_end()
        self._is_back(b"")
        return exchange

    def returned(self) -> None:
        """Something else has come than its reader knows, or the client is gone."""
        if self._lent is not None:
            self._note_end()
            self.take_back()

    def _note_end(self) -> None:
        """It was worth while to lend it, or was not."""
        was_long = self._lent.begun > ALIKE_MAX
        self._alike_min = ALIKE_MIN if was_long else min(2 * self._alike_min, ALIKE_MAX)

    def _is_back(self, data: bytes) -> None:
        self._lent = self._reader = self._plan = None  # their model may be unloaded before the client leaves
        self._alike = 0
        self._heard = True
        self._state.lent.discard(self)
        if self._transport is None:
            return
        self._rest = data
        self._transport.resume_reading()
        self._go_on()

    def _end_lending(self) -> None:
        """The connection is lost."""
        self.take_back()
        if self._client:
            self._client.shut_down()
        self._client = False

    @abstractmethod
    def discarded(self, nbytes: int) -> None:
        """A refused request sends more of its body; there is a limit to that."""

    @abstractmethod
    def _go_on(self) -> None:
        """Take apart what was left when too many requests were due."""
