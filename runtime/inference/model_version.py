# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One version of one model that is served: accepts requests, queues their jobs, and executes them.

It owns the version's request memory, its scheduler, its instances and its statistics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.caching.requests import CachedRequests
from pyruntime.runtime.calls.call_request import ValidatedSignatures
from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.executor import Executor, check_all
from pyruntime.runtime.execution.job import Job, Respond, place_refs, request_options, tensor_refs
from pyruntime.runtime.execution.signature import signature_of
from pyruntime.runtime.gpus.placement import spread
from pyruntime.runtime.gpus.tensor_places import TensorPlaces, places_of_model
from pyruntime.runtime.inference.first_responses import FirstResponse
from pyruntime.runtime.inference.plain_requests import PlainRequests
from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.requests.types import InferRequest, request_failure
from pyruntime.runtime.scheduling.batcher import Strategy
from pyruntime.runtime.scheduling.factory import create_scheduler
from pyruntime.runtime.scheduling.policy_queue import QueueFull
from pyruntime.runtime.scheduling.resource_grants import ResourceGrants
from pyruntime.utils.errors import Code, InferenceError

_LOG = logging.getLogger("pyruntime.inference")

_TIMEOUT_WITHOUT_EFFECT = (
    "a request to model '{}' has a timeout, which does not limit how long it waits (this is said once): the model's "
    "dynamic_batching has no queue policy with default_timeout_microseconds and allow_timeout_override. Its own code "
    "can read the timeout"
)

# The time for finalize when the accepted requests have used up all of the timeout, in seconds.
FINALIZE_S_MIN = 2.0


async def nothing_to_finalize() -> None:
    """Finalize nothing: a model in a stub ends with the stub."""


def _nowhere() -> None:
    """All tensors are in main memory."""


class ModelVersion:
    """See the module. `on_lost` is called with the reason when the last instance is down, and with "" when one is
    ready again.

    `cache` answers requests that were answered before. `strategy` decides with the dynamic batcher which requests are
    executed together. `finalize` is awaited when all instances have stopped. `grants` are those of a server with a rate
    limiter. `load_s` is the duration of the load, in seconds, and `since_ms` when the version began to serve, in
    milliseconds since the epoch. `placement` says why its instances are on their GPUs, if the server chose those.
    """

    def __init__(
        self,
        spec: ModelSpec,
        version: int,
        memory: RequestMemory,
        on_lost: Callable[[ModelVersion, str], None],
        statistics: ModelStatistics | None = None,
        cache: ResponseCache | None = None,
        strategy: Strategy[Job] | None = None,
        finalize: Callable[[], Awaitable[None]] = nothing_to_finalize,
        grants: ResourceGrants | None = None,
    ) -> None:
        self.spec = spec
        self.version = version
        self.memory = memory
        self.statistics = statistics or ModelStatistics()
        self.load_s = 0.0
        self.since_ms = 0
        self.placement = ""
        self.plain = PlainRequests(spec)
        # Whether its instances read plain requests by themselves: those of C++ backends in the server.
        self.reads_plain = False
        self.validated = ValidatedSignatures()
        # Where tensors may lie on GPUs, None if all of them are in main memory; and what decides that.
        self.on_gpus: TensorPlaces | None = None
        self._find_places: Callable[[], TensorPlaces | None] = _nowhere
        self._cached = None if cache is None else CachedRequests(cache, self)
        # What answers repeated requests before they are decoded; None for most models.
        self.answers = None if self._cached is None else self._cached.answers
        self.is_batched = spec.is_batched
        self.scheduler = create_scheduler(spec, self.review_instances, self.statistics, memory, strategy, grants)
        self._instances: Sequence[Executor] = ()
        # The instances that leave, with what tells that they have ended.
        self._leaving: dict[Executor, asyncio.Event] = {}
        self._active: Sequence[Executor] = ()
        self._on_lost = on_lost
        self._expected = 0
        self._all_arrived: asyncio.Event | None = None
        # Whether requests can no longer be served, and the reason.
        self.is_gone = False
        self._gone: InferenceError | None = None
        self._is_lost = False
        # Whether to say that the next timeout of a request has no effect.
        self._warns_of_timeouts = not _takes_timeouts(spec)
        self._finalize = finalize

    def __repr__(self) -> str:
        return f"<ModelVersion {self.spec.name} {self.version} {self.scheduler}>"

    @property
    def is_ready(self) -> bool:
        """Whether an instance takes requests now. While one restarts, requests queue and the model is not ready."""
        return any(instance.is_ready for instance in self._instances)

    @property
    def problem(self) -> str:
        """The instances that are down, with the reasons; "" if there are none."""
        return "; ".join(
            f"instance {instance.name} is down: {instance.down}" for instance in self._instances if instance.down
        )

    @property
    def instances(self) -> Sequence[Executor]:
        """All instances but those that leave; empty until they are loaded."""
        return self._instances

    @property
    def leaving(self) -> Sequence[Executor]:
        """The instances that `exchange` has removed and that have not ended yet."""
        return list(self._leaving)

    @property
    def pending(self) -> int:
        """How many accepted requests wait for their execution."""
        looked_up = 0 if self._cached is None else len(self._cached)
        every = (*self._instances, *self._leaving)
        return looked_up + len(self.scheduler) + sum(instance.inflight.waiting for instance in every)

    @property
    def gpus(self) -> Mapping[str, int]:
        """The numbers of the GPUs by the names of the instances that are on one."""
        return {each.name: each.device_id for each in self.spec.instances if each.kind == "GPU"}

    def share_gpu(self) -> None:
        """Let tensors of this version stay on the GPU that all its instances are on, while there is one such GPU."""
        self.leave_on_gpus(lambda: places_of_model(self.spec))

    def leave_on_gpus(self, find_places: Callable[[], TensorPlaces | None]) -> None:
        """Let tensors of this version lie on GPUs. A cache has its answers in main memory."""
        if self._cached is None:
            self._find_places = find_places
            self.review_places()

    def review_places(self) -> bool:
        """Find out again where tensors may lie on GPUs. Returns whether that has changed."""
        before, self.on_gpus = self.on_gpus, self._find_places()
        return self.on_gpus != before

    def serve(self, instances: Sequence[Executor], load_s: float = 0.0) -> None:
        """Serve with these instances, which are ready. The load took `load_s` seconds."""
        self.load_s = load_s
        self.since_ms = time.time_ns() // 1_000_000
        self._serve(instances)

    def exchange(self, spec: ModelSpec, instances: Sequence[Executor]) -> list[Executor]:
        """Serve with these instances from now on; `spec` differs from the former one in them only.

        Returns those that leave: they get no new work, and the caller lets each of them end with `release`.
        """
        leaving = [instance for instance in self._instances if instance not in instances]
        self._leaving.update((instance, asyncio.Event()) for instance in leaving)
        self.spec = spec
        self.review_places()
        self._serve(instances)
        self.review_instances()
        return leaving

    def show(self, config: Config) -> None:
        """Show this configuration, which differs from the former one in nothing that requests depend on."""
        self.spec = replace(self.spec, json=render(config))

    def has_sequences(self, instance: Executor) -> bool:
        """Whether an instance that leaves goes on for sequences, which may take as long as their clients like."""
        return not self.scheduler.has_left(instance)

    async def release(self, instance: Executor, timeout_s: float) -> None:
        """Wait until the sequences on an instance that leaves have ended, then stop it.

        It is killed if it takes longer than `timeout_s` seconds for the requests that it has then. Cancelling it leaves
        the instance stopping.
        """
        ended = self._leaving[instance]
        try:
            await self.scheduler.wait_left(instance)
            await instance.stop(timeout_s)
        finally:
            self._forget(instance)
            del self._leaving[instance]
            ended.set()

    def _serve(self, instances: Sequence[Executor]) -> None:
        self._instances = instances
        passive = {instance.name for instance in self.spec.instances if instance.passive}
        active = [instance for instance in instances if instance.name not in passive]
        self._active = spread(active, self.gpus)
        self.reads_plain = self._cached is None and any(instance.plain is not None for instance in self._active)
        self.scheduler.serve(self._active)

    def expect(self) -> None:
        """A request is arriving in this version's memory."""
        self._expected += 1

    def arrived(self) -> None:
        """An expected request has arrived, or will not arrive."""
        self._expected -= 1
        if not self._expected and self._all_arrived is not None:
            self._all_arrived.set()

    def check_serving(self) -> None:
        """Raise InferenceError if requests can no longer be served: there is no request memory then."""
        if self._gone is not None:
            # A new one each time, because a raised exception keeps the frames that it has passed.
            raise InferenceError(self._gone.message, self._gone.code)

    def accept(self, request: InferRequest, respond: Respond) -> Job:
        """Check a request and copy its tensors to the request region. The caller gives the job to `start`.

        Raises InferenceError if the request is refused: its memory is free then, and `respond` is not called.
        """
        arrived_ns = time.monotonic_ns()
        try:
            self.check_serving()
            check_request(self.spec, request)
            self.memory.place(request)
        except InferenceError:
            self.statistics.failure(time.monotonic_ns() - arrived_ns, FailureReason.OTHER)
            request.free()
            raise
        signature = (
            signature_of(self.spec, ((each.name, each.shape) for each in request.inputs)) if self.is_batched else None
        )
        slots, request.slots = request.slots, []
        options, tensors = request_options(request), tensor_refs(request.inputs)
        rows, context = request.batch_size, request.trace
        client = ClientUse.of(request, respond)
        if client is None:
            job = Job(request.id, options, tensors, rows, signature, slots, respond, arrived_ns, context)
            job.priority = request.priority
            return job
        slots.append(client.inputs)
        places = place_refs(client.places)
        job = Job(request.id, options, tensors, rows, signature, slots, client.respond, arrived_ns, context, places)
        job.priority, job.client, job.regions = request.priority, client, client.regions
        return job

    def start(self, job: Job) -> None:
        """Queue a job. Its `respond` is called with the response or the failure.

        Raises InferenceError UNAVAILABLE if the queue is full, and INVALID_ARG if its sequence does not permit the
        request now. The job's memory is free then, and `respond` is not called.
        """
        if self._warns_of_timeouts and job.options.timeout_us:
            self._warns_of_timeouts = False
            _LOG.warning("%s", _TIMEOUT_WITHOUT_EFFECT.format(self.spec.name))
        if self.statistics.first_responses is not None:
            job.respond = FirstResponse(job, self.statistics)
        if self._cached is not None:
            self._cached.start(job)
            return
        try:
            if self.is_gone:
                self.check_serving()
            self.scheduler.submit(job)
        except (QueueFull, InferenceError) as exc:
            failure = self._refuse(job, exc)
            if job.client is not None:
                job.client.end()
            if job.trace is not None:
                job.trace.refused(failure)
            raise failure from exc.__cause__

    def queue(self, job: Job) -> None:
        """Queue a job that the cache cannot answer. Raises InferenceError; the memory of the job is free then."""
        try:
            self.check_serving()
            self.scheduler.submit(job)
        except (QueueFull, InferenceError) as exc:
            raise self._refuse(job, exc) from exc.__cause__

    def take_turn(self, job: Job) -> None:
        """A job is about to be answered by the cache: see JobScheduler."""
        self.scheduler.take_turn(job)

    def _refuse(self, job: Job, cause: QueueFull | InferenceError) -> InferenceError:
        """Count the failure of a job that cannot be queued, and free its memory. Returns the failure."""
        if isinstance(cause, QueueFull):
            failure, reason = request_failure(job.id, str(cause), Code.UNAVAILABLE), FailureReason.REJECTED
        else:
            failure, reason = cause, FailureReason.OTHER
        self.statistics.failure(time.monotonic_ns() - job.arrived_ns, reason)
        job.free()
        return failure

    def infer(self, request: InferRequest, respond: Respond) -> Job:
        """Accept a request and start its job. Raises InferenceError if either refuses it."""
        job = self.accept(request, respond)
        self.start(job)
        return job

    def cancel(self, job: Job) -> None:
        """Cancel a job: it ends at once if it queues; otherwise its model can see that it is cancelled.

        Its `respond` is called nevertheless, as often as the model answers.
        """
        if job.turn is not None:
            job.turn.drop()
        if self._cached is not None and self._cached.cancel(job):
            return
        if job.instance is None:
            self.scheduler.cancel(job)
        else:
            job.instance.cancel(job)

    @property
    def workers(self) -> Sequence[Waiting]:
        """The workers that execute its requests: see execution/deadlock.py."""
        executors, limited = self.scheduler.executors, self.scheduler.limited
        if limited is not None:
            return limited.workers(executors)
        return [worker for instance in executors for worker in instance.workers()]

    @property
    def is_limited(self) -> bool:
        """Whether requests wait for resources, which other models may hold."""
        return bool(self.scheduler.limited)

    def expedite(self, job: Job) -> Sequence[str]:
        """Let a queued job ignore what others reserve, because it is a call that they may wait for.

        Returns the names of the resources that it waits for nevertheless.
        """
        return () if self.scheduler.limited is None else self.scheduler.limited.expedite(job)

    def check_ready(self, call_back: Callable[[bool], None]) -> None:
        """Call back, at once or later, with whether instances are ready, and the model in each of them."""
        waiting = [instance for instance in self._instances if instance.is_ready]
        if not waiting:
            call_back(False)
            return
        check_all([instance.check_ready for instance in waiting], call_back)

    async def stop(self, timeout_s: float) -> None:
        """Finish all accepted requests, finalize all instances and free the memory; kill after `timeout_s` seconds.

        Cancelling it leaves instances stopping.
        """
        begun = time.monotonic()
        was_lost = self._gone is not None
        if not was_lost:
            await self._wait_arrived(timeout_s)
        if self._cached is not None:
            await self._cached.wait_idle(timeout_s - (time.monotonic() - begun))
        if self.is_ready:
            await self.scheduler.wait_empty(timeout_s - (time.monotonic() - begun))
        timeout_s = max(min(FINALIZE_S_MIN, timeout_s), timeout_s - (time.monotonic() - begun))
        self.scheduler.hurry()
        async with asyncio.TaskGroup() as tasks:
            for instance in self._instances:
                tasks.create_task(self._end(instance, timeout_s), name=f"stop {instance.name}")
            for instance, ended in self._leaving.items():
                tasks.create_task(_wait_ended(instance, ended, timeout_s), name=f"wait for {instance.name}")
        if self._gone is None:
            self.is_gone = True
            self._gone = InferenceError(f"Model '{self.spec.name}' was unloaded", Code.UNAVAILABLE)
        self.scheduler.fail_all(self._gone)
        if self._cached is not None:
            self._cached.fail_replays(self._gone)
            await self._cached.wait_idle(timeout_s)
        await self._finalize()
        if not was_lost:  # the last answers of the instances may be copied there
            await self._wait_arrived(timeout_s)
        self.memory.close()

    async def discard(self, instance: Executor) -> None:
        """End an instance that was to serve and does not."""
        await self._end(instance, 0)

    async def _end(self, instance: Executor, timeout_s: float) -> None:
        try:
            await instance.stop(timeout_s)
        finally:
            self._forget(instance)

    def _forget(self, instance: Executor) -> None:
        """An instance has ended: it holds no resources."""
        if self.scheduler.limited is not None:
            self.scheduler.limited.ended(instance)

    async def _wait_arrived(self, timeout_s: float) -> None:
        if self._expected:
            self._all_arrived = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_arrived.wait()

    def kill(self) -> None:
        """End all instances at once."""
        for instance in (*self._instances, *self._leaving):
            instance.kill()

    def review_instances(self) -> None:
        """Report the version as lost if all instances are down, and when that ends.

        Called after each change, and after the load.
        """
        is_lost = bool(self._instances) and all(instance.down for instance in self._instances)
        if is_lost and self._gone is None:
            first = self._instances[0]
            self.is_gone = self._is_lost = True
            message = f"Stub process '{first.name}' is not healthy. It is down: {first.down}"
            self._gone = InferenceError(message, Code.UNAVAILABLE)
            self._on_lost(self, self.problem)
            self.scheduler.fail_all(self._gone)
        elif self._is_lost and not is_lost:
            self.is_gone = self._is_lost = False
            self._gone = None
            self._on_lost(self, "")


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """The instances of a version that serves, as they are to be: all are ready, and `new` are not used yet.

    `spec` is the version's with these instances; `configure` is called when they serve.
    """

    model: ModelVersion
    spec: ModelSpec
    instances: Sequence[Executor]
    new: Sequence[Executor]
    configure: Callable[[], None]


def _takes_timeouts(spec: ModelSpec) -> bool:
    """Whether timeouts of requests have an effect: in the queue, on the wait for a slot, or on the steps."""
    batching = spec.dynamic_batching
    return bool(spec.sequence_batching or spec.ensemble or (batching and batching.takes_timeouts))


async def _wait_ended(instance: Executor, ended: asyncio.Event, timeout_s: float) -> None:
    """Wait for the end of an instance that is being stopped already; kill it after `timeout_s` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            await ended.wait()
    except TimeoutError:
        instance.kill()
        await ended.wait()
