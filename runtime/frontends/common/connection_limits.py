# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The limit of connections, the settings of their transports, and the periodic checks for slow clients."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Collection
from typing import Protocol

from pyruntime.runtime.frontends.common.client_timeouts import CHECK_S

# Connections at a time. Each takes some 10 KiB here, and more in the kernel.
CONNECTIONS_MAX = 16384
# Connections leave this many descriptors for everything else, or half of all where there are few: a server without free
# descriptors cannot load a model.
DESCRIPTORS_KEPT = 256
# Connections are scarce from this share of the limit on.
CROWDED_SHARE = 0.5


def connections_max() -> int:
    """How many connections this process may have."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(descriptors - DESCRIPTORS_KEPT, descriptors // 2))


def report_unsent(transport: asyncio.BaseTransport) -> None:
    """Have a transport call `pause_writing` whenever it has not sent everything, and `resume_writing` when it has."""
    assert hasattr(transport, "set_write_buffer_limits")
    # A transport with TLS pauses at its limit, all others above it.
    transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)


class CheckedConnection(Protocol):
    """A connection that is checked."""

    def check(self, now: float, crowded: bool) -> None:
        """End the connection if its client is too slow. `crowded`: connections are scarce."""


class ConnectionChecks:
    """Checks all `connections` of one `kind` every few seconds. Connections of other kinds check themselves."""

    def __init__(self, connections: Collection[object], kind: type[CheckedConnection]) -> None:
        self._connections = connections
        self._kind = kind
        self._max = connections_max()
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
        crowded = len(self._connections) >= self._max * CROWDED_SHARE
        now = asyncio.get_running_loop().time()
        for each in list(self._connections):
            if isinstance(each, self._kind):
                each.check(now, crowded)
