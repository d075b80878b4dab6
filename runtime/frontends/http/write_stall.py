# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Cuts off a client that reads nothing of its response, which occupies memory or makes the model of a stream wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pyruntime.runtime.frontends.common.connection_limits import unacknowledged

# A client that reads nothing for this long, in seconds, while a response waits for it, is cut off. A client's kernel
# acknowledges nothing for as long as it takes to read up to 64 KiB, so one that reads 500 bytes a second goes on.
STALLED_S_MAX = 150.0

_LOG = logging.getLogger("pyruntime.frontends")


def call_later(delay_s: float, call_back: Callable[[int], None], left: int) -> asyncio.TimerHandle:
    """Have the running event loop call back after `delay_s` seconds."""
    return asyncio.get_running_loop().call_later(delay_s, call_back, left)


class WriteStall:
    """Watches a transport from when it cannot send all that was written, until `end`: when it has."""

    __slots__ = ("_timer", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer = call_later(STALLED_S_MAX, self._check, unacknowledged(transport))

    def end(self) -> None:
        """Everything is sent, or the connection is lost."""
        self._timer.cancel()

    def _check(self, left: int) -> None:
        """Cut the connection, unless fewer than `left` bytes are unacknowledged: then check again later."""
        waiting = unacknowledged(self._transport)
        if waiting < left:
            self._timer = call_later(STALLED_S_MAX, self._check, waiting)
            return
        _LOG.warning("a client took nothing of its response for %g s and is cut off", STALLED_S_MAX)
        self._transport.abort()
