# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The limit of connections, the settings of their transports, and the periodic checks for slow clients."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection
from contextlib import suppress
from fcntl import ioctl
from termios import FIONREAD, TIOCOUTQ
from typing import Protocol

from pyruntime.runtime import descriptors
from pyruntime.runtime.frontends.common.client_timeouts import CHECK_S
from pyruntime.runtime.frontends.common.descriptor_budget import connections_max
from pyruntime.runtime.frontends.common.health_places import HealthPlaces
from pyruntime.runtime.inference.pending_bytes import PendingBytes

# Connections are scarce from this share of the limit on.
CROWDED_SHARE = 0.5
# New connections between two counts of descriptors, which may take as long as some of them. Much less than the
# descriptors that connections leave.
ACCEPTS_PER_COUNT = 16


class OpenConnection(Protocol):
    """Any connection."""

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun for a while, and none is in flight."""

    def close_idle(self) -> None:
        """Close the connection once its requests in flight are answered."""


class ConnectionLimit:
    """How many connections this process may have: `connections_max`, as of the last count of descriptors.

    A new connection takes the place of an idle one, so that clients which do nothing keep nobody out. `idle` are
    connections that may be idle; `health` are places beyond the limit.
    """

    def __init__(self) -> None:
        self.connections_max = connections_max(descriptors.limit(), 0)
        self.idle: list[OpenConnection] = []
        self.health = HealthPlaces()
        self._accepted = 0

    def has_room(self, connections: int) -> bool:
        """Whether there may be one more connection. Closes an idle one for it, and counts descriptors now and then."""
        self._accepted += 1
        descriptors.of_connections = connections
        if self._accepted % ACCEPTS_PER_COUNT == 0:
            self.count(connections)
        return connections < self.connections_max or self.close_idle(1) == 1

    def close_idle(self, count: int) -> int:
        """Close up to `count` idle connections. Returns how many there were."""
        closed = 0
        while closed < count and self.idle:
            connection = self.idle.pop()
            if connection.is_idle:
                connection.close_idle()
                closed += 1
        return closed

    def count(self, connections: int) -> None:
        """Count the descriptors, of which `connections` are open connections."""
        descriptors.of_connections = connections
        try:
            held = descriptors.open_count() - connections
        except OSError:  # there is no descriptor left to count them with
            self.connections_max = min(self.connections_max, connections)
        else:
            self.connections_max = connections_max(descriptors.limit(), held)


# The descriptors are those of the process, and so is their limit.
LIMIT = ConnectionLimit()


def report_unsent(transport: asyncio.BaseTransport) -> None:
    """Have a transport call `pause_writing` whenever it has not sent everything, and `resume_writing` when it has."""
    assert hasattr(transport, "set_write_buffer_limits")
    # A transport with TLS pauses at its limit, all others above it.
    transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether the client has sent something that is not read yet."""
    count = array("i", [0])
    try:
        ioctl(transport.get_extra_info("socket").fileno(), FIONREAD, count)
    except (OSError, ValueError):  # the client is gone
        return False
    return count[0] > 0


def unacknowledged(transport: asyncio.Transport) -> int:
    """The bytes that the client has not acknowledged: those in the transport and those in the kernel.

    They become fewer while the client reads, long before the kernel takes more of the transport's.
    """
    count = array("i", [0])
    with suppress(OSError, ValueError):  # the client is gone
        ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, count)
    return transport.get_write_buffer_size() + count[0]


class CheckedConnection(Protocol):
    """A connection that is checked."""

    def check(self, now: float, crowded: bool) -> None:
        """End the connection if its client is too slow. `crowded`: connections are scarce."""


class ConnectionChecks:
    """Checks all `connections` of one `kind` every few seconds. Connections of other kinds check themselves.

    If there are more than the limit allows, because models hold more descriptors than before, idle ones are closed.
    Whatever waits for room among the `pending` bytes, of any kind, is checked as well.
    """

    def __init__(
        self,
        connections: Collection[OpenConnection],
        kind: type[CheckedConnection],
        pending: PendingBytes,
        limit: ConnectionLimit = LIMIT,
    ) -> None:
        self._pending = pending
        self._connections = connections
        self._kind = kind
        self._limit = limit
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the checks."""
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def end(self) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.begin()
        limit = self._limit
        limit.count(len(self._connections))
        crowded = len(self._connections) >= limit.connections_max * CROWDED_SHARE
        limit.idle = [each for each in self._connections if each.is_idle] if crowded else []
        limit.close_idle(len(self._connections) - limit.connections_max)
        now = asyncio.get_running_loop().time()
        for each in list(self._connections):
            if isinstance(each, self._kind):
                each.check(now, crowded)
        self._pending.check(now)
