# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How late the event loop is: a timer every PROBE_S, and by how much each one came too late.

Everything of the server happens on that loop; what makes it late makes every request late.
"""

from __future__ import annotations

import asyncio
import time

from pyruntime.runtime.observe import built_in
from pyruntime.runtime.observe.families import Histogram

# Often enough to meet what holds the loop up for tens of milliseconds now and then, at a cost that cannot be measured.
PROBE_S = 0.25
# From what an idle loop has to what clients take for an outage.
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
            due = time.monotonic() + PROBE_S  # the loop's own clock stands still while it is busy
            await asyncio.sleep(PROBE_S)
            self._histogram.observe(max(0.0, time.monotonic() - due))
