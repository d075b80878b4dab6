# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the delay of the event loop, by a timer every PROBE_S seconds.

Nearly all work of the server runs on that loop, so whatever delays it delays every request.
"""

from __future__ import annotations

import asyncio
import time

from pyruntime.runtime.observe import built_in
from pyruntime.runtime.observe.families import Histogram

# In seconds. Often enough to notice delays of tens of milliseconds, at a cost too small to measure.
PROBE_S = 0.25
# From the delay of an idle loop to one that clients would consider an outage.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class LoopLag:
    """See the module."""

    def __init__(self) -> None:
        self._histogram = Histogram(built_in.LOOP_LAG.name, "", list(BOUNDS_S))

    def lines(self) -> str:
        """The family."""
        return built_in.LOOP_LAG.lines([self._histogram.lines(built_in.LOOP_LAG.name)])

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            due = time.monotonic() + PROBE_S  # not loop.time(): uvloop caches it during an iteration
            await asyncio.sleep(PROBE_S)
            self._histogram.observe(max(0.0, time.monotonic() - due))
