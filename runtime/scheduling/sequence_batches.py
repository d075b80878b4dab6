# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which requests of an instance's sequences form a batch, by Triton's two strategies. (pure)

A sequence offers at most one request at any time, so no batch has two requests of one sequence.

*Oldest*: requests are batched in the order in which they were offered, up to a preferred size, as `dynamic_batching`
does: see batcher.py.

*Direct*: a batch has a row for each slot. It is due when enough slots have a request, or when the oldest request has
waited for the delay; without a minimum of slots it is due at once. Requests with other shapes than the oldest one wait
for the next batch. A model that keeps state by row needs to know which rows are valid, by a control input of kind
READY; only for such a model, slots without a request are padded. There is no padding after the last request.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Protocol

from pyruntime.runtime.config.spec import DynamicBatchingSpec, SequenceBatchingSpec
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.scheduling.batcher import Batcher

_arrived_s = attrgetter("arrived_s")


class Strategy(Protocol):
    """The interface of both strategies, for one instance. None in a batch means padding."""

    def offer(self, job: Job, slot: int) -> None:
        """The next request of the sequence in a slot."""

    def withdraw(self, job: Job, slot: int) -> None:
        """Withdraw an offered job. No effect if it is not offered."""

    def take(self, now: float) -> list[Job | None] | None:
        """Remove and return the next batch; None if none is due yet. `now` is in seconds."""

    def wake_at(self) -> float | None:
        """The latest time at which `take` returns a batch, in seconds; None if nothing is offered."""


class Oldest:
    """See the module."""

    def __init__(self, max_batch_size: int, batching: SequenceBatchingSpec) -> None:
        dynamic = DynamicBatchingSpec(batching.preferred_batch_sizes, batching.max_queue_delay_us)
        self._batcher: Batcher[Job] = Batcher(max_batch_size, dynamic)

    def offer(self, job: Job, slot: int) -> None:
        """See Strategy."""
        self._batcher.submit(job)

    def withdraw(self, job: Job, slot: int) -> None:
        """See Strategy."""
        self._batcher.remove(job)

    def take(self, now: float) -> list[Job | None] | None:
        """See Strategy."""
        batch = self._batcher.take(now)
        return None if batch is None else [*batch]

    def wake_at(self) -> float | None:
        """See Strategy."""
        return self._batcher.wake_at()


class Direct:
    """See the module."""

    def __init__(self, batching: SequenceBatchingSpec) -> None:
        self._offered: dict[int, Job] = {}
        self._least = batching.minimum_slot_utilization * batching.slots
        self._delay_s = batching.max_queue_delay_us / 1e6 if self._least else 0.0
        self._pads = any(control.kind == "READY" for control in batching.controls)

    def offer(self, job: Job, slot: int) -> None:
        """See Strategy."""
        self._offered[slot] = job

    def withdraw(self, job: Job, slot: int) -> None:
        """See Strategy."""
        self._offered.pop(slot, None)

    def take(self, now: float) -> list[Job | None] | None:
        """See Strategy."""
        offered = self._offered
        if not offered:
            return None
        oldest = min(offered.values(), key=_arrived_s)
        if self._delay_s and len(offered) < self._least and now < oldest.arrived_s + self._delay_s:
            return None
        slots = sorted(slot for slot, job in offered.items() if job.signature == oldest.signature)
        rows = range(slots[-1] + 1) if self._pads else slots
        return [offered.pop(slot) if slot in slots else None for slot in rows]

    def wake_at(self) -> float | None:
        """See Strategy."""
        return min(map(_arrived_s, self._offered.values())) + self._delay_s if self._offered else None


def strategy_of(max_batch_size: int, batching: SequenceBatchingSpec) -> Strategy:
    """The configured strategy, for one instance."""
    return Oldest(max_batch_size, batching) if batching.oldest else Direct(batching)
