# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches of an executor: the part that all kinds of executors share. (pure)

Subclasses post batches, receive their results and cancel their jobs: one over a stub's connection, another with an
instance of the native extension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.executor import Batch, ExecutorOwner
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.capacity import AdaptiveCapacity
from pyruntime.runtime.observe.statistics import ModelStatistics, reason_of
from pyruntime.utils.errors import InferenceError

# The inflight value: what a subclass keeps for a batch.
B = TypeVar("B")


class InflightBatches(ABC, Generic[B]):
    """See the module. `capacity` is how many more batches the executor takes now."""

    def __init__(self, statistics: ModelStatistics, owner: ExecutorOwner, limit: AdaptiveCapacity) -> None:
        self.capacity = 0
        self._statistics = statistics
        self._owner = owner
        self._limit = limit
        # Batches whose execute has not returned, in order, by the serial of their first request.
        self._inflight: dict[int, B] = {}
        self._serial = 1
        self._is_open = False
        self._is_warming = False
        self._when_idle: Callable[[], None] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How many batches and requests have not ended; 0 if no memory is in use any more."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many requests of the executor wait behind those that it executes."""

    @abstractmethod
    def execute(self, batch: Batch) -> None:
        """Post a batch. There must be capacity. Each job's `respond` is called in any case."""

    @abstractmethod
    def cancel(self, job: Job) -> None:
        """See execution.job.Running. The model need not notice; it continues either way."""

    @abstractmethod
    def worker_of(self, job: Job) -> Waiting:
        """See execution.job.Running."""

    @property
    def is_idle(self) -> bool:
        """See ExecutorBatches."""
        return not self._inflight

    def open(self) -> None:
        """The model is loaded: batches may be posted from now on."""
        self._is_open = True
        self._is_warming = False
        self._update_capacity()

    def warm_up(self, batch: Batch) -> None:
        """Execute a batch before `open`: see WarmingBatches."""
        self._is_warming = True
        self.execute(batch)
        self.capacity = 0

    def close(self, when_idle: Callable[[], None] | None = None) -> None:
        """Take no more batches. `when_idle` is called once, when all that were posted have ended."""
        self._is_open = False
        self.capacity = 0
        self._when_idle = when_idle or self._when_idle  # a stub that hangs up may be stopping already
        self._notify_if_idle()

    def expect_calls(self) -> None:
        """The model has called another model."""
        self._limit.expect_calls()
        self._update_capacity()

    def _update_capacity(self) -> None:
        if self._is_open:
            self.capacity = self._limit.total - len(self._inflight)

    def _fail(self, job: Job, failure: InferenceError, now_ns: int) -> None:
        """Answer a job with a failure."""
        if not job.is_padding:
            self._statistics.failure(now_ns - job.arrived_ns, reason_of(failure, job.cancelled))
        job.free()
        job.respond(failure, True)

    def _reschedule(self, job: Job) -> None:
        """Return a job to the queue, because an iterative model wants to execute it again.

        One execution is enough to warm up, and no queue is served then.
        """
        if self._is_warming:
            job.free()
            job.respond(None, True)
            return
        job.continue_sequence()
        job.instance = None
        self._owner.reschedule(job)

    def _notify_if_idle(self) -> None:
        if self._when_idle is not None and not len(self):
            when_idle, self._when_idle = self._when_idle, None
            when_idle()
