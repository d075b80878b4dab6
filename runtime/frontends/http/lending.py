# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Lets native threads use an HTTP connection: send a response over it, or read and answer its requests themselves.

A client that has sent plain requests to a model several times in a row is likely to send more of them. Then its
connection is lent to the model's instance, which reads it until something else arrives or the event loop takes it back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol

from pyruntime.runtime.app.state import LentConnection, ServerState
from pyruntime.runtime.execution.executor import ClientSocket, Loan, PlainRequestExecutor
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.plain_exchange import PlainConnection, PlainExchange
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.inference.model_version import ModelVersion

# A connection is lent after this many plain requests in a row that native threads have answered.
ALIKE_MIN = 4
# The number doubles, up to this limit, each time that something else arrives during a loan, or that a request outlives
# its execution. It is reset after a loan with more requests than the limit.
ALIKE_MAX = 1 << 10
# The share of the connections that may have one more descriptor each, for native threads that answer over them. The
# other descriptors are left for connections, which are more important.
CLIENT_SOCKETS_SHARE = 0.5


class LendableConnection(PlainConnection, LentConnection, Protocol):
    """A connection that can be lent. `exchanges` are the unanswered ones."""

    transport: asyncio.Transport | None
    exchanges: deque[Exchange]

    @property
    def has_spare_descriptor(self) -> bool:
        """Whether enough descriptors are free for a second one of this connection."""

    def go_on(self, data: bytes) -> None:
        """Read the connection again, beginning with `data`, which the instance has read."""


class Lending:
    """See the module. All methods belong to the event loop's thread."""

    __slots__ = ("_alike_min", "_begun", "_client", "_connection", "_lent", "_reader", "_state", "alike")

    def __init__(self, state: ServerState, connection: LendableConnection) -> None:
        self._state = state
        self._connection = connection
        # The plain requests in a row, and the number that is required for a loan.
        self.alike = 0
        self._alike_min = ALIKE_MIN
        # The socket for native threads: None before they need it, False if they cannot have it.
        self._client: ClientSocket | Literal[False] | None = None
        # During a loan: the loan, and the instance that reads. `_begun` is the number of requests at the last `check`.
        self._lent: Loan | None = None
        self._reader: PlainRequestExecutor | None = None
        self._begun = 0

    @property
    def is_lent(self) -> bool:
        """Whether an instance reads the connection."""
        return self._lent is not None

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """See PlainConnection. The socket takes one more descriptor."""
        transport = self._connection.transport
        if self._connection.exchanges or transport is None or transport.get_write_buffer_size():
            return None
        if self._client is None and self._connection.has_spare_descriptor:
            self._client = False
            if transport.get_extra_info("sslcontext") is None:
                with suppress(OSError):
                    self._client = make(transport.get_extra_info("socket").fileno())
        return self._client or None

    def lend(self, model: ModelVersion, head: Head, data: bytes) -> bool:
        """Lend the connection with the request in `data`, if it is plain. Its model is from `find_plain`."""
        connection = self._connection
        if self.alike < self._alike_min or connection.exchanges or not head.is_plain:
            return False
        instance = model.scheduler.lone_instance()
        reader = None if instance is None else instance.plain
        if reader is None or not reader.may_read:
            return False
        lent = reader.lend(self, data)
        if lent is None:
            return False
        assert connection.transport is not None  # there is a socket to send in
        connection.transport.pause_reading()
        self._lent, self._reader = lent, reader
        self._begun = 0
        self._state.lent.add(connection)
        return True

    def check(self) -> bool:
        """Whether the connection is lent and in use. Takes an unused one back, which reveals a gone client."""
        if self._lent is None:
            return False
        self._state.settle()
        lent, reader = self._lent, self._reader
        if lent is not None and reader is not None and lent.begun != self._begun and reader.may_read:
            self._begun = lent.begun
            return True
        self.take_back()
        return False

    def take_back(self) -> None:
        """Read the connection again, if it was lent. A request in flight becomes an exchange."""
        if self._lent is None:
            return
        rest = self._lent.take_back()
        if self._lent is not None:  # its reader has not called `adopt`
            self._is_back(rest)

    def end(self) -> None:
        """The connection is lost."""
        self.take_back()
        if self._client:
            self._client.shut_down()
        self._client = False

    # Called by the reader: see execution.executor.LendableConnection.

    def adopt(self, serial: int, arrived_ns: int, id: str, rows: int) -> PlainExchange:
        """The exchange for a request that arrived during the loan and is not over."""
        assert self._reader is not None  # the connection is lent
        exchange = PlainExchange(self._state, self._connection)
        exchange.begin_sent(arrived_ns, id, rows)
        self._connection.exchanges.append(exchange)
        self._state.in_flight += 1
        self._reader.adopt(exchange, serial)
        self._adapt()
        self._is_back(b"")
        return exchange

    def returned(self) -> None:
        """Take the connection back: another request has arrived, or the client is gone."""
        if self._lent is not None:
            self._adapt()
            self.take_back()

    def _adapt(self) -> None:
        assert self._lent is not None  # the callers look
        was_long = self._lent.begun > ALIKE_MAX
        self._alike_min = ALIKE_MIN if was_long else min(2 * self._alike_min, ALIKE_MAX)

    def _is_back(self, data: bytes) -> None:
        self._lent = self._reader = None  # the model may be unloaded while the client stays
        self.alike = 0
        self._state.lent.discard(self._connection)
        self._connection.go_on(data)
