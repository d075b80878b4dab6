# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Drives the batcher of a model version: gives batches to free instances, and arms one timer.

sequence_scheduler.py does the same for sequences.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.executor import Executor
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.level_statistics import LevelStatistics
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.scheduling.batcher import Batcher, Strategy
from pyruntime.runtime.scheduling.limited_instances import LimitedInstances
from pyruntime.runtime.scheduling.response_order import ResponseOrder
from pyruntime.utils.errors import Code, InferenceError

_EXPIRED = "Request timeout expired"


class JobScheduler(ABC):
    """The interface of schedulers. `on_change` is called when an instance became ready or died.

    `limited` are the instances that execute only when they are granted resources; None in a server without such limits.
    """

    limited: LimitedInstances | None = None

    def __init__(self, spec: ModelSpec, on_change: Callable[[], None], statistics: ModelStatistics) -> None:
        self._spec = spec
        self._on_change = on_change
        self._statistics = statistics
        self._instances: Sequence[Executor] = ()
        # The only instance of most models, which needs no comparison.
        self._only: Executor | None = None
        self._empty: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec.name} [{len(self)} queued | {len(self._instances)} instances]>"

    @abstractmethod
    def __len__(self) -> int:
        """The number of waiting requests."""

    def levels(self) -> Mapping[str, LevelStatistics]:
        """The requests of each priority level, by its name; empty for a model without levels."""
        return {}

    def serve(self, instances: Sequence[Executor]) -> None:
        """Set the instances that execute the requests. Those that are not among them get no new work: see `wait_left`.

        An instance that has left must not come back.
        """
        self._instances = instances
        self._only = instances[0] if len(instances) == 1 else None

    @property
    def executors(self) -> Sequence[Executor]:
        """The instances that requests may go to, also those that go on with sequences until they have left."""
        return self._instances

    @abstractmethod
    async def wait_left(self, instance: Executor) -> None:
        """Wait until no more requests can go to an instance that `serve` has removed. Safe to cancel."""

    def has_left(self, instance: Executor) -> bool:
        """Whether `wait_left` has nothing to wait for."""
        return True

    @abstractmethod
    def hurry(self) -> None:
        """End all calls of `wait_left`, because the instances are about to be stopped anyway."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Queue a job, or start it. Raises InferenceError or QueueFull; `respond` is not called then."""

    def free_instance(self) -> Executor | None:
        """An instance to which a request may go directly, because the queue is empty; None if there is none."""
        return None

    def lone_instance(self) -> Executor | None:
        """The only instance, if requests always may go to it directly; else None."""
        return self.free_instance() if self._only is not None else None

    @abstractmethod
    def take_turn(self, job: Job) -> None:
        """A job is about to be answered without an execution: its responses keep the order, if the model has one."""

    @abstractmethod
    def cancel(self, job: Job) -> None:
        """Cancel a job. If it has not begun, it never will. `respond` is called in any case."""

    async def wait_empty(self, timeout_s: float) -> None:
        """Wait until no request waits, or for `timeout_s` seconds. Safe to cancel."""
        if not len(self):
            return
        self._empty = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        self._empty = None

    @abstractmethod
    def fail_all(self, failure: InferenceError) -> None:
        """Fail all waiting requests."""

    # Notifications of instances: see ExecutorOwner.

    @abstractmethod
    def capacity_freed(self) -> None:
        """An instance can accept another batch."""

    @abstractmethod
    def put_back(self, batch: list[Job]) -> None:
        """Queue a batch again that never started, without its cancelled jobs."""

    @abstractmethod
    def reschedule(self, job: Job) -> None:
        """Queue a job again that its model rescheduled, unless it was cancelled."""

    def executor_changed(self) -> None:
        """An instance became ready, died, or will not restart any more."""
        self._on_change()

    def _note_if_empty(self) -> None:
        if self._empty is not None and not len(self):
            self._empty.set()

    @staticmethod
    def _queues_again(job: Job) -> None:
        if job.turn is not None:
            job.turn.executes = False

    def _drop(self, job: Job) -> None:
        """Answer a cancelled job."""
        self._fail(job, InferenceError("", Code.CANCELLED), FailureReason.CANCELED)

    def _fail(self, job: Job, failure: InferenceError, reason: FailureReason) -> None:
        self._statistics.failure(time.monotonic_ns() - job.arrived_ns, reason)
        job.free()
        job.respond(failure, True)


class Scheduler(JobScheduler):
    """The queue of a model version whose requests are independent of each other."""

    def __init__(
        self,
        spec: ModelSpec,
        on_change: Callable[[], None],
        statistics: ModelStatistics,
        strategy: Strategy[Job] | None = None,
    ) -> None:
        super().__init__(spec, on_change, statistics)
        self._batcher: Batcher[Job] = Batcher(spec.max_batch_size, spec.dynamic_batching, strategy)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        batching = spec.dynamic_batching
        is_ordered = batching is not None and batching.preserve_ordering
        self._order = ResponseOrder(self._dispatch) if is_ordered else None
        # Without dynamic batching a request is a batch, and need not go through an empty queue.
        self._is_direct = spec.dynamic_batching is None

    def __len__(self) -> int:
        """See JobScheduler."""
        return len(self._batcher)

    def levels(self) -> Mapping[str, LevelStatistics]:
        """See JobScheduler."""
        return self._batcher.queue.levels()

    def serve(self, instances: Sequence[Executor]) -> None:
        """See JobScheduler."""
        super().serve(instances)
        self._dispatch()

    async def wait_left(self, instance: Executor) -> None:
        """See JobScheduler. Nothing is to be waited for, because no request depends on an earlier one."""

    def hurry(self) -> None:
        """See JobScheduler."""

    def submit(self, job: Job) -> None:
        """See JobScheduler. Raises QueueFull."""
        if self._is_direct and not self._batcher.queue.count:
            instance = self._only or self._freest()
            if instance is not None and (inflight := instance.inflight).capacity > 0:
                inflight.execute([job])
                return
        self._batcher.submit(job)
        self._dispatch()

    def free_instance(self) -> Executor | None:
        """See JobScheduler."""
        return None if self._batcher.queue.count else self._freest()

    def take_turn(self, job: Job) -> None:
        """See JobScheduler."""
        if self._order is not None:
            self._order.begin(job)

    def cancel(self, job: Job) -> None:
        """See JobScheduler."""
        if self._batcher.remove(job):
            self._drop(job)
            self._note_if_empty()

    def fail_all(self, failure: InferenceError) -> None:
        """See JobScheduler."""
        for job in self._batcher.drain():
            self._fail(job, failure, FailureReason.OTHER)
        self._note_if_empty()

    def capacity_freed(self) -> None:
        """See JobScheduler."""
        if self._batcher.queue.count:  # mostly empty, and every request calls this
            self._dispatch()

    def put_back(self, batch: list[Job]) -> None:
        """See JobScheduler."""
        self._batcher.put_back([job for job in batch if not job.cancelled])
        for job in batch:
            self._queues_again(job)
            if job.cancelled:
                self._drop(job)
        self._dispatch()

    def reschedule(self, job: Job) -> None:
        """See JobScheduler. The job goes behind all waiting ones."""
        self._queues_again(job)
        if job.cancelled:
            self._drop(job)
        else:
            self._batcher.requeue(job)
        self._dispatch()

    def _dispatch(self) -> None:
        batcher = self._batcher
        due_s = inf
        has_deadlines = batcher.queue.has_deadlines
        if has_deadlines:
            for job in batcher.expire(time.monotonic()):
                self._fail(job, InferenceError(_EXPIRED, Code.UNAVAILABLE), FailureReason.REJECTED)
        while batcher.queue.count and (instance := self._freest()) is not None:
            due_s = self._begin(instance)
            if due_s:
                break
        if has_deadlines or 0.0 < due_s < inf:
            self._arm(due_s or inf)
        if self._empty is not None:
            self._note_if_empty()

    def _begin(self, instance: Executor) -> float:
        """Give an instance with capacity the next batch. Returns 0; or when one is due, inf if that is unknown."""
        if self._order is not None and self._order.is_full:
            return inf
        batch = self._batcher.take(time.monotonic())
        if batch is None:
            return self._batcher.wake_at() or inf
        if self._order is not None:
            for job in batch:
                self._order.begin(job)
        instance.inflight.execute(batch)
        return 0.0

    def _freest(self) -> Executor | None:
        """The instance with the most capacity: an idle one before one that would only queue the batch."""
        if self._only is not None:
            return self._only if self._only.inflight.capacity > 0 else None
        best = None
        most = 0
        for instance in self._instances:
            capacity = instance.inflight.capacity
            if capacity and instance.inflight.is_idle:
                return instance
            if capacity > most:
                best = instance
                most = capacity
        return best

    def _arm(self, due_s: float) -> None:
        """Set the timer for a batch that is due at `due_s`, or for the next deadline. It may go off too early."""
        deadline_s = self._batcher.queue.deadline()
        if deadline_s is not None:
            due_s = min(due_s, deadline_s)
        if due_s >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_s = inf
        self._dispatch()
