# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The instances of one model version that execute only when they are granted resources.

It stands between the version's scheduler and the grants of the server: it requests for instances that have work,
begins their executions, and releases what has ended. How many executions an instance has is read from the instance
itself, so nothing is held for an execution that ended in whatever way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyruntime.runtime.execution.deadlock import FREE, Waiting
from pyruntime.runtime.execution.executor import Executor
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.scheduling.resource_grants import ResourceGrants


class LimitedInstances:
    """See the module. `has_work` says whether there is work for an instance that has capacity.

    `begin` has an instance execute it, and returns whether there was something to execute.
    """

    def __init__(
        self, grants: ResourceGrants, has_work: Callable[[Executor], bool], begin: Callable[[Executor], bool]
    ) -> None:
        self._grants = grants
        self._has_work = has_work
        self._begin = begin
        # The grants of each instance that has not ended, those that wait for one, and the one that begins just now.
        self._held: dict[Executor, int] = {}
        self._waiting: set[Executor] = set()
        self._beginning: Executor | None = None
        # The jobs that running models wait for, and that go before others for that reason.
        self._urgent: set[Job] = set()

    def __contains__(self, instance: Executor) -> bool:
        return instance in self._held

    def __bool__(self) -> bool:
        return bool(self._held)

    def serve(self, instances: Sequence[Executor]) -> list[Executor]:
        """The scheduler serves with these. Returns those that are not limited."""
        for instance in instances:
            if self._grants.limits(instance):
                self._held.setdefault(instance, 0)
        return [instance for instance in instances if instance not in self._held]

    def ended(self, instance: Executor) -> None:
        """An instance has ended: it holds nothing."""
        self._held.pop(instance, None)
        self._waiting.discard(instance)
        self._grants.remove(instance)

    def is_waiting(self, instance: Executor) -> bool:
        """Whether an instance has work and waits for its resources."""
        return instance in self._waiting

    def settle(self) -> None:
        """Executions have ended, or there is other work than before."""
        for instance in self._held:
            self._release(instance)
            self._request(instance)
        self._grants.grant()

    def expedite(self, job: Job) -> list[str]:
        """Let a queued job, and all before it, ignore what others reserve.

        Returns the names of the resources that it waits for nevertheless.
        """
        on_free = job.on_free

        def freed(each: Job) -> None:
            self._urgent.discard(each)
            if on_free is not None:
                on_free(each)

        job.on_free = freed
        self._urgent.add(job)
        self.settle()
        return sorted({name for instance in self._waiting for name in self._grants.lacking(instance)})

    def workers(self, instances: Sequence[Executor]) -> Sequence[Waiting]:
        """The workers of all these instances. One that could execute but for its resources waits for these."""
        return [
            self._grants.wait_of(instance) if worker is FREE and instance in self._waiting else worker
            for instance in instances
            for worker in instance.workers()
        ]

    def _request(self, instance: Executor) -> None:
        if instance.inflight.capacity > 0 and self._has_work(instance):
            self._waiting.add(instance)
            self._grants.request(instance, lambda: self._granted(instance), urgent=bool(self._urgent))
        elif instance in self._waiting:
            self._waiting.discard(instance)
            self._grants.withdraw(instance)

    def _granted(self, instance: Executor) -> bool:
        self._waiting.discard(instance)
        if instance.inflight.capacity <= 0 or not self._has_work(instance):
            return False
        self._held[instance] += 1
        self._beginning = instance
        has_begun = self._begin(instance)
        self._beginning = None
        if not has_begun:
            self._held[instance] -= 1
            return False
        self._release(instance)  # the batch may have failed already
        self._request(instance)
        return True

    def _release(self, instance: Executor) -> None:
        if instance is self._beginning:
            return  # what it begins is not there yet
        ended = self._held[instance] - len(instance.inflight.running)
        for _ in range(ended):
            self._grants.release(instance)
            self._held[instance] -= 1
