# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches that are with an executor: what is the same wherever they are executed. (pure)

How a batch is posted, how its results come back and how it is cancelled is up to the subclass: a stub's connection and
an instance of the native extension are two such ways.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from pyruntime.runtime.instances.capacity import AdaptiveCapacity
from pyruntime.runtime.instances.deadlock import Waiting
from pyruntime.runtime.instances.executor import Batch, ExecutorOwner
from pyruntime.runtime.observe.statistics import ModelStatistics, reason_of
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import InferenceError

# What is noted of a batch.
B = TypeVar("B")


class InflightBatches(ABC, Generic[B]):
    """See the module. `capacity` is how many more batches may be posted now."""

    def __init__(self, statistics: ModelStatistics, owner: ExecutorOwner, limit: AdaptiveCapacity) -> None:
        self.capacity = 0
        self._statistics = statistics
        self._owner = owner
        self._limit = limit
        # Batches whose execute has not returned, in order, by the serial of their first request.
        self._inflight: dict[int, B] = {}
        self._serial = 1
        self._is_open = False
        self._when_idle: Callable[[], None] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How much is not answered; 0 if nothing is, and nothing is in use."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many requests are with the executor, behind those that it executes."""

    @abstractmethod
    def execute(self, batch: Batch) -> None:
        """Post a batch. There must be capacity. Each job's `respond` will be called, whatever happens."""

    @abstractmethod
    def cancel(self, job: Job) -> None:
        """See scheduling.job.Running. The model may look, or not; it goes on either way."""

    @abstractmethod
    def worker_of(self, job: Job) -> Waiting:
        """See scheduling.job.Running."""

    @property
    def running(self) -> bool:
        """Whether there are batches whose execute has not returned."""
        return bool(self._inflight)

    def open(self) -> None:
        """The model is loaded: batches may be posted from now on."""
        self._is_open = True
        self._update_capacity()

    def close(self, when_idle: Callable[[], None] | None = None) -> None:
        """Nothing more may be posted. `when_idle` is called once, when everything that was posted is over."""
        self._is_open = False
        self.capacity = 0
        self._when_idle = when_idle or self._when_idle  # a stub that hangs up may have been told to stop before
        self._notify_if_idle()

    def expect_calls(self) -> None:
        """The model has called another one."""
        self._limit.expect_calls()
        self._update_capacity()

    def _update_capacity(self) -> None:
        if self._is_open:
            self.capacity = self._limit.total - len(self._inflight)

    def _fail(self, job: Job, failure: InferenceError, now_ns: int) -> None:
        """Answer a job that has no result."""
        if not job.is_padding:
            self._statistics.failure(now_ns - job.arrived_ns, reason_of(failure, job.cancelled))
        job.free()
        job.respond(failure, True)

    def _reschedule(self, job: Job) -> None:
        """The model wants to be given a job again, as it may in an iterative model."""
        job.continue_sequence()
        job.instance = None
        self._owner.reschedule(job)

    def _notify_if_idle(self) -> None:
        if self._when_idle is not None and not len(self):
            when_idle, self._when_idle = self._when_idle, None
            when_idle()
