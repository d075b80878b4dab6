# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How late the event loop is."""

import asyncio
import time

from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe import loop_lag
from pyruntime.runtime.observe.loop_lag import LoopLag

BUSY_S = 0.03


def samples(lag):
    (family,) = text_string_to_metric_families(lag.lines())
    assert (family.name, family.type) == ("pyruntime_event_loop_lag_seconds", "histogram")
    return {(sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value for sample in family.samples}


def test_nothing_yet():
    """The family is there from the start."""
    assert samples(LoopLag())["count", None] == 0


def test_a_loop_that_is_held_up(monkeypatch):
    """A callback that blocks the loop makes the next timer late by at least the rest of its duration."""
    monkeypatch.setattr(loop_lag, "PROBE_S", 0.001)
    lag = LoopLag()

    async def check():
        task = asyncio.ensure_future(lag.run())
        await asyncio.sleep(0)
        end = time.monotonic() + BUSY_S
        while time.monotonic() < end:
            pass
        while not samples(lag)["count", None]:  # noqa: ASYNC110 - nobody tells of it but the page
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(check())
    found = samples(lag)
    assert found["bucket", "0.025"] < found["bucket", "+Inf"]
    assert found["sum", None] > 0.025
