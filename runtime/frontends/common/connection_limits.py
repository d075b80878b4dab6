# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""All connections of a server: how many there may be, and who looks after those that wait for clients."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Collection
from typing import Protocol

from pyruntime.runtime.frontends.common.client_timeouts import LOOK_S

# Connections at a time. Each takes some 10 KiB here, and more in the kernel.
CONNECTIONS_MAX = 16384
# They leave descriptors for everything else, or half of them where there are few: a server that has none can load no
# model.
DESCRIPTORS_KEPT = 256
# From this share on connections are scarce.
CROWDED_SHARE = 0.5


def connections_max() -> int:
    """How many connections this process may have."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(descriptors - DESCRIPTORS_KEPT, descriptors // 2))


class Watched(Protocol):
    """A connection."""

    def check(self, now: float, crowded: bool) -> None:
        """Every now and then: end the connection if its client takes too long."""


class Watch:
    """Has those of `everybody` that are of one `kind` checked every few seconds; the others see to themselves."""

    def __init__(self, everybody: Collection[object], kind: type[Watched]) -> None:
        self._everybody = everybody
        self._kind = kind
        self._max = connections_max()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Look after them, until `end`."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.begin()
        crowded = len(self._everybody) >= self._max * CROWDED_SHARE
        now = asyncio.get_running_loop().time()
        for each in list(self._everybody):
            if isinstance(each, self._kind):
                each.check(now, crowded)
