# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The schedulers of a server with `--rate-limit=execution_count`.

Instances without resources get their work as from other schedulers. The others get it when they are granted theirs:
see limited_instances.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pyruntime.runtime.config.spec import ModelSpec, SequenceBatchingSpec
from pyruntime.runtime.execution.executor import Executor
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.scheduling.batcher import Strategy
from pyruntime.runtime.scheduling.limited_instances import LimitedInstances
from pyruntime.runtime.scheduling.resource_grants import ResourceGrants
from pyruntime.runtime.scheduling.scheduler import Scheduler
from pyruntime.runtime.scheduling.sequence_scheduler import Memory, SequenceScheduler
from pyruntime.utils.errors import InferenceError


class LimitedScheduler(Scheduler):
    """See the module, and Scheduler."""

    def __init__(
        self,
        spec: ModelSpec,
        on_change: Callable[[], None],
        statistics: ModelStatistics,
        strategy: Strategy[Job] | None,
        grants: ResourceGrants,
    ) -> None:
        super().__init__(spec, on_change, statistics, strategy)
        self.limited = self._limited = LimitedInstances(grants, self._has_work, self._begin_granted)
        self._all: Sequence[Executor] = ()

    def serve(self, instances: Sequence[Executor]) -> None:
        """See JobScheduler."""
        self._all = instances
        super().serve(self._limited.serve(instances))

    @property
    def executors(self) -> Sequence[Executor]:
        """See JobScheduler."""
        return self._all

    def cancel(self, job: Job) -> None:
        """See JobScheduler."""
        super().cancel(job)
        self._limited.settle()

    def fail_all(self, failure: InferenceError) -> None:
        """See JobScheduler."""
        super().fail_all(failure)
        self._limited.settle()

    def capacity_freed(self) -> None:
        """See JobScheduler."""
        if self._limited or self._batcher.queue.count:
            self._dispatch()

    def executor_changed(self) -> None:
        """See JobScheduler."""
        self._limited.settle()
        super().executor_changed()

    def _dispatch(self) -> None:
        super()._dispatch()
        if self._limited:
            self._limited.settle()

    def _has_work(self, instance: Executor) -> bool:
        return self._batcher.queue.count > 0 and instance in self._all

    def _begin_granted(self, instance: Executor) -> bool:
        due_s = self._begin(instance)
        if due_s:
            self._arm(due_s)
        if self._empty is not None:
            self._note_if_empty()
        return not due_s


class LimitedSequenceScheduler(SequenceScheduler):
    """See the module, and SequenceScheduler."""

    def __init__(
        self,
        spec: ModelSpec,
        batching: SequenceBatchingSpec,
        on_change: Callable[[], None],
        statistics: ModelStatistics,
        memory: Memory,
        grants: ResourceGrants,
    ) -> None:
        super().__init__(spec, batching, on_change, statistics, memory)
        self.limited = self._limited = LimitedInstances(grants, self._has_offered, self._begin_granted)

    def serve(self, instances: Sequence[Executor]) -> None:
        """See JobScheduler."""
        self._limited.serve(instances)
        super().serve(instances)

    def fail_all(self, failure: InferenceError) -> None:
        """See JobScheduler."""
        super().fail_all(failure)
        self._limited.settle()

    def executor_changed(self) -> None:
        """See JobScheduler."""
        super().executor_changed()
        self._limited.settle()

    def _dispatch(self) -> None:
        self._limited.settle()
        super()._dispatch()

    def _may_begin(self) -> bool:
        """See SequenceScheduler. Resources are requested as soon as there is work."""
        return True

    def _begin(self, instance: Executor, now: float) -> bool:
        return instance not in self._limited and super()._begin(instance, now)

    def _waits_for_time(self, instance: Executor) -> bool:
        """See SequenceScheduler. One that waits for its resources is told when they are free."""
        return super()._waits_for_time(instance) and not self._limited.is_waiting(instance)

    def _has_offered(self, instance: Executor) -> bool:
        return instance in self._seated and self._sequences.due_at(instance) is not None

    def _begin_granted(self, instance: Executor) -> bool:
        if not super()._begin(instance, time.monotonic()):
            self._arm()
            return False
        self._note_progress()
        return True
