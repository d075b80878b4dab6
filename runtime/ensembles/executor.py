# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Executes the requests to one version of an ensemble. It has no process and no thread: its steps have them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import partial

from pyruntime.runtime.ensembles.ensemble import Ensemble
from pyruntime.runtime.ensembles.request import EnsembleRequest, WaitingStart
from pyruntime.runtime.execution.deadlock import FREE, Waiting
from pyruntime.runtime.execution.executor import Batch, CallBack, ExecutorOwner, PlainRequestExecutor, check_all
from pyruntime.runtime.execution.job import Job
from pyruntime.utils.errors import Code, InferenceError

# How many requests to one ensemble are under way; further ones queue. Far more than its models can have instances.
REQUESTS_MAX = 10_000


class EnsembleRequests:
    """The requests under way, as ExecutorBatches. `capacity` is how many more there may be."""

    waiting = 0

    def __init__(self, ensemble: Ensemble[WaitingStart], owner: ExecutorOwner) -> None:
        self.capacity = REQUESTS_MAX
        self._ensemble = ensemble
        self._owner = owner
        self._requests: dict[Job, EnsembleRequest] = {}
        self._idle: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_idle(self) -> bool:
        """See ExecutorBatches."""
        return not self._requests

    @property
    def running(self) -> Sequence[Waiting]:
        """See ExecutorBatches."""
        return list(self._requests.values())

    def execute(self, batch: Batch) -> None:
        """See ExecutorBatches."""
        for job in batch:
            self.capacity -= 1
            job.instance = self
            request = self._requests[job] = EnsembleRequest(self._ensemble, job, self._ended)
            request.begin()

    def warm_up(self, batch: Batch) -> None:
        """See WarmingBatches."""
        self.execute(batch)

    def cancel(self, job: Job) -> None:
        """See execution.job.Running."""
        request = self._requests.get(job)
        if request is not None:
            request.cancel()

    def worker_of(self, job: Job) -> Waiting:
        """See execution.job.Running."""
        return self._requests.get(job, FREE)

    def workers(self) -> Sequence[Waiting]:
        """See Executor."""
        return (FREE,) if self.capacity > 0 else list(self._requests.values())

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until no request is under way, or for `timeout_s` seconds. Safe to cancel."""
        if self._requests:
            self._idle = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()

    def give_up(self, failure: InferenceError) -> None:
        """Answer all requests with a failure."""
        for request in list(self._requests.values()):
            request.give_up(failure)

    def _ended(self, job: Job) -> None:
        del self._requests[job]
        self.capacity += 1
        if self._idle is not None and not self._requests:
            self._idle.set()
        self._owner.capacity_freed()


class EnsembleExecutor:
    """See the module, and Executor."""

    down = ""
    signature: Hashable = ()
    restarts = 0
    response_bytes = 0
    plain: PlainRequestExecutor | None = None

    def __init__(self, ensemble: Ensemble[WaitingStart], owner: ExecutorOwner) -> None:
        self.name = ensemble.spec.name
        self.inflight = EnsembleRequests(ensemble, owner)
        self._ensemble = ensemble

    @property
    def is_ready(self) -> bool:
        """Whether the models of all steps are ready."""
        return all(self._ensemble.is_step_ready(step) for step in self._ensemble.graph.steps)

    def check_ready(self, call_back: CallBack) -> None:
        """See Executor: asks the models of all steps."""
        ensemble = self._ensemble
        check_all([partial(ensemble.check_step_ready, step) for step in ensemble.graph.steps], call_back)

    def drop_sequences(self, ids: Sequence[int | str]) -> None:
        """See Executor. An ensemble has no sequences of its own: the schedulers of its steps have them."""

    def workers(self) -> Sequence[Waiting]:
        """See Executor."""
        return self.inflight.workers()

    async def stop(self, timeout_s: float) -> None:
        """See Executor."""
        await self.inflight.wait_idle(timeout_s)
        self.kill()

    def kill(self) -> None:
        """See Executor."""
        self.inflight.give_up(InferenceError(f"Model '{self.name}' was unloaded", Code.UNAVAILABLE))
