# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Drives the rate limiter of a server: grants resources to the instances of all models, and begins their executions.

`limited_instances.py` uses it for the requests of a model version, and the warm-up for an instance that is not ready
yet. Only instances that need resources are added; all others know nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.executor import Executor
from pyruntime.runtime.scheduling.rate_limiter import RateLimiter
from pyruntime.runtime.scheduling.resources import Resource
from pyruntime.runtime.settings import ResourceLimit


class ResourceGrants:
    """See the module. `limits` are the operator's: see Resources."""

    def __init__(self, limits: Iterable[ResourceLimit] = ()) -> None:
        self._limiter: RateLimiter[Executor] = RateLimiter(limits)
        # What begins the execution of an instance that waits, and those that wait outside of a scheduler.
        self._begin: dict[Executor, Callable[[], bool]] = {}
        self._turns: dict[Executor, asyncio.Future[None]] = {}
        # One object for each instance: workers are compared by identity.
        self._waits: dict[Executor, ResourceWait] = {}
        self._is_granting = False

    def __repr__(self) -> str:
        return f"<ResourceGrants {self._limiter}>"

    def limits(self, instance: Executor) -> bool:
        """Whether an instance may only execute when it is granted its resources."""
        return instance in self._limiter

    def add(self, instance: Executor, spec: InstanceSpec, model_name: str) -> None:
        """An instance of a model is being loaded. Raises LoadError if there is not enough for it: see Resources."""
        if spec.needs:
            needs: dict[Resource, int] = {}
            for name, is_global, count in spec.needs:
                # Of a resource that is named twice, the last one counts, as in Triton.
                needs[Resource(name, None if is_global else spec.device_id)] = count
            self._limiter.add(instance, needs, spec.priority)
            self._waits[instance] = ResourceWait(self, instance, model_name)

    def remove(self, instance: Executor) -> None:
        """An instance has ended, or was not loaded: all that it holds is free. Idempotent."""
        if instance in self._limiter:
            self._limiter.remove(instance)
            self._begin.pop(instance, None)
            del self._waits[instance]
            if (waiting := self._turns.get(instance)) is not None:
                waiting.cancel()
            self.grant()

    def request(self, instance: Executor, begin: Callable[[], bool], *, urgent: bool = False) -> None:
        """An instance has work. When it is granted its resources, `begin` is called, which returns whether it began."""
        self._begin[instance] = begin
        self._limiter.request(instance, urgent=urgent)

    def withdraw(self, instance: Executor) -> None:
        """An instance that has requested has no work any more."""
        self._begin.pop(instance, None)
        self._limiter.withdraw(instance)

    def release(self, instance: Executor) -> None:
        """An execution that was granted has ended."""
        self._limiter.release(instance)

    def grant(self) -> None:
        """Begin all that can begin now. The caller calls it after requests and releases, and not from `begin`."""
        if self._is_granting:
            return  # the loop below goes on with what has changed
        self._is_granting = True
        try:
            while (instance := self._limiter.grant()) is not None:
                if not self._begin.pop(instance)():
                    self._limiter.refuse(instance)
        finally:
            self._is_granting = False

    @asynccontextmanager
    async def turn(self, instance: Executor) -> AsyncIterator[None]:
        """Hold the resources of an instance that executes without its scheduler. Safe to cancel.

        Cancels the task if the instance is removed while it waits.
        """
        if instance not in self._limiter:
            yield
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if granted.done():
                return False
            granted.set_result(None)
            return True

        self._turns[instance] = granted
        self.request(instance, begin)
        self.grant()
        try:
            await granted
            yield
        finally:
            del self._turns[instance]
            if instance in self._limiter:  # else it has ended meanwhile
                if granted.cancelled():
                    self.withdraw(instance)
                else:
                    self.release(instance)
                self.grant()

    def wait_of(self, instance: Executor) -> Waiting:
        """The worker that stands for an instance which has requested: see ResourceWait."""
        return self._waits[instance]

    def waits(self, instance: Executor) -> Sequence[tuple[Sequence[Waiting], str]]:
        """What an instance waits for: see ResourceWait."""
        waits: list[tuple[Sequence[Waiting], str]] = []
        for lack in self._limiter.lacks(instance):
            every: list[Waiting] = []
            for holder, count in lack.holders:
                workers = holder.inflight.running
                every += workers
                if workers and count // len(workers) > lack.spare:
                    waits += [([worker], worker.model_name) for worker in workers]
            if every:
                waits.append((every, every[0].model_name))
        before = [self._waits[other] for other in self._limiter.before(instance)]
        return waits + [([wait], wait.model_name) for wait in before]

    def lacking(self, instance: Executor) -> list[str]:
        """The names of the resources that an instance waits for."""
        return [lack.resource.name for lack in self._limiter.lacks(instance)]


class ResourceWait:
    """The worker of an instance that waits for resources: see execution/deadlock.py.

    It is stuck if the workers that hold a resource are stuck, or one of them that holds too much of it; and if an
    instance before it is stuck.
    """

    def __init__(self, grants: ResourceGrants, instance: Executor, model_name: str) -> None:
        self.model_name = model_name
        self._grants = grants
        self._instance = instance

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """See Waiting."""
        return self._grants.waits(self._instance)
