# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One model instance over all the lives of its stub: posts batches, resolves what waits on them, restarts what died.

Two batches may be with the stub at a time, so that it need not wait for the host between them. The stub answers one
before it starts the next; so after a death the first unanswered batch is what was running, and it fails, while a
second one had not begun and goes back to the scheduler. Nothing is lost and nothing runs twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.inference import InferRequest, InferResponse
from pyruntime.runtime.instances.connection import Answer, StubConnection
from pyruntime.runtime.instances.supervisor import (
    CancelRestart,
    Event,
    Exited,
    GiveUp,
    ProcessExit,
    Ready,
    Restart,
    Started,
    StartFailed,
    State,
    Stop,
    StopRequested,
    Supervisor,
)
from pyruntime.runtime.instances.wire import OutputReader, request_wire, response_parameters
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.scheduling.batcher import Queued
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import Code, InferenceError, LoadError, LocalError, OutOfMemoryError, PeerError
from pyruntime.utils.messages import OK, Failed, Retired

_LOG = logging.getLogger("pyruntime.instances")

# One batch runs, one waits behind it: without the second, a third of the throughput is lost.
PLACES = 2

Batch = list[Queued[Job]]


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """All that it takes to start an instance of one model version."""

    name: str
    spec: ModelSpec
    version: int
    location: dict[str, str]
    args: dict[str, str]
    memory: RequestMemory
    growth_bytes: int
    statistics: ModelStatistics


class Owner(Protocol):
    """Who gives an instance its work. Every method is called on the event loop's thread and must not raise."""

    def place_freed(self) -> None:
        """An instance can take another batch."""

    def put_back(self, batch: Batch) -> None:
        """A batch that never started, because the instance died; it goes to the front of the queue."""

    def instance_changed(self) -> None:
        """An instance became ready, died, or was given up."""


@dataclass(slots=True, eq=False)
class _Posted:
    number: int
    batch: Batch
    sent_ns: int


class PythonInstance:
    """See the module. `places` is how many more batches it takes now; `down` says why it was given up, or is ""."""

    def __init__(self, plan: InstancePlan, owner: Owner, tasks: asyncio.TaskGroup) -> None:
        self.name = plan.name
        self.places = 0
        self.down = ""
        self._plan = plan
        self._owner = owner
        self._tasks = tasks
        self._supervisor = Supervisor()
        self._connection: StubConnection | None = None
        self._reader = OutputReader(plan.spec, memoryview(b""))
        self._posted: deque[_Posted] = deque()
        self._retained: dict[tuple[int, int], InferRequest] = {}
        self._number = 0
        self._last_end_ns = 0
        self._restart: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PythonInstance {self.name} {self._supervisor.state.name} [{len(self._posted)} posted]>"

    @property
    def is_ready(self) -> bool:
        """Whether the instance takes requests now."""
        return self._supervisor.state is State.READY

    # Starting and stopping.

    async def start(self, connection: StubConnection) -> None:
        """Load the model into a fresh stub and begin to serve. Raises LoadError; the instance is of no use then.

        Cancelling it kills the stub.
        """
        self._take(connection)
        self._handle(Started())
        await self._load()

    async def stop(self, timeout_s: float) -> None:
        """Let the stub finish what it was given, finalize and exit; kill it after `timeout_s` seconds.

        Cancelling it leaves the stub stopping.
        """
        if self._supervisor.state in (State.NEW, State.FAILED):
            return
        self.places = 0
        self._handle(StopRequested())
        if self._supervisor.state is State.STOPPED:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopped.wait()
        except TimeoutError:
            _LOG.warning("%s: did not finish within %g s and is killed", self.name, timeout_s)
            self.kill()
            await self._stopped.wait()

    def kill(self) -> None:
        """End the stub at once, whatever it does."""
        if self._connection is not None:
            self._connection.kill()

    async def _load(self) -> None:
        connection = self._connection
        assert connection is not None  # taken just before
        try:
            await connection.load(self._plan.location, self._plan.args)
        except BaseException:
            connection.kill()
            raise
        if self._connection is connection:
            self._handle(Ready())

    def _take(self, connection: StubConnection) -> None:
        self._connection = connection
        connection.on_answer = self._answered
        self._reader = OutputReader(self._plan.spec, connection.responses.view)
        self._tasks.create_task(self._watch(connection), name=f"watch {self.name}")

    async def _watch(self, connection: StubConnection) -> None:
        """Wait for the stub's end and act on it."""
        exit = await connection.wait_exited()
        self._connection = None
        self.places = 0
        self._fail_posted(exit)
        for request in self._retained.values():
            request.free()
        self._retained.clear()
        if self._supervisor.state in (State.READY, State.REINITIALIZING):
            _LOG.error("%s: stub %s", self.name, exit.describe())
        self._handle(Exited(exit))
        self._owner.instance_changed()

    async def _restart_now(self) -> None:
        plan = self._plan
        try:
            connection = await StubConnection.open(plan.name, plan.memory, plan.growth_bytes)
        except (LoadError, OutOfMemoryError) as exc:
            self._handle(StartFailed(str(exc)))
            self._owner.instance_changed()
            return
        self._take(connection)
        self._handle(Started())
        try:
            await self._load()
        except LoadError as exc:
            _LOG.error("%s: could not be restarted: %s", self.name, exc)

    def _handle(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        for command in self._supervisor.handle(event, loop.time()):
            match command:
                case Restart(after_s):
                    _LOG.info("%s: restarts in %g s", self.name, after_s)
                    self._restart = loop.call_later(after_s, self._begin_restart)
                case CancelRestart():
                    if self._restart is not None:
                        self._restart.cancel()
                case Stop():
                    if self._connection is not None:
                        self._connection.stop()
                case GiveUp(reason):
                    self.down = reason
                    _LOG.error("%s: %s", self.name, reason)
        match self._supervisor.state:
            case State.READY if type(event) is Ready:
                self.places = PLACES
                self._owner.instance_changed()
                self._owner.place_freed()
            case State.STOPPED | State.FAILED:
                self._stopped.set()

    def _begin_restart(self) -> None:
        self._restart = None
        self._tasks.create_task(self._restart_now(), name=f"restart {self.name}")

    # Batches.

    def execute(self, batch: Batch) -> None:
        """Post a batch. The instance must have a place. Every job's `done` will be called, whatever happens."""
        assert self._connection is not None  # there are no places without a stub
        self._number += 1
        wire: list[object] = [request_wire(queued.request.request) for queued in batch]
        sent_ns = time.monotonic_ns()
        try:
            self._connection.infer(self._number, wire)
        except LocalError as exc:
            now = time.monotonic_ns()
            for queued in batch:
                self._finish(queued.request, InferenceError(f"the request cannot be sent to {self.name}: {exc}"), now)
            return
        self.places -= 1
        self._posted.append(_Posted(self._number, batch, sent_ns))

    def _answered(self, message: Answer) -> None:
        """What the stub says while it serves. Raises PeerError."""
        if isinstance(message, Retired):
            return self._retire(message.requests)
        if not self._posted or self._posted[0].number != message.batch:
            raise PeerError(f"batch {message.batch} is answered and is not the one that is due")
        posted = self._posted.popleft()
        requests = [queued.request.request for queued in posted.batch]
        self._retain(message.batch, requests, message.retained)
        if self._supervisor.state is State.READY:
            self.places += 1
        now_ns = time.monotonic_ns()
        begin_ns = max(posted.sent_ns, self._last_end_ns)
        start_ns = min(max(message.start_ns, begin_ns), now_ns)
        self._last_end_ns = end_ns = min(max(message.end_ns, start_ns), now_ns)
        spans = (start_ns - begin_ns, end_ns - start_ns, now_ns - end_ns)
        if isinstance(message, Failed):
            failure = InferenceError(message.message)
            for queued in posted.batch:
                self._finish(queued.request, failure, now_ns)
        else:
            self._respond(posted.batch, message.responses, begin_ns, spans, now_ns)
        rows = 0
        for queued in posted.batch:
            rows += queued.rows
        self._plan.statistics.execution(rows, *spans, time.time_ns() // 1_000_000)
        self._owner.place_freed()

    def _respond(
        self, batch: Batch, responses: list[Any], begin_ns: int, spans: tuple[int, int, int], now_ns: int
    ) -> None:
        statistics = self._plan.statistics
        answers = self._read(batch, responses)
        for queued, answer in zip(batch, answers, strict=True):
            job = queued.request
            if type(answer) is InferResponse:
                arrived_ns = job.arrived_ns
                statistics.success(queued.rows, begin_ns - arrived_ns, *spans, now_ns - arrived_ns)
                if job.request.slots:
                    job.request.free()
                job.done(answer)
            else:
                assert type(answer) is InferenceError  # the only other kind of answer
                self._finish(job, answer, now_ns)

    def _read(self, batch: Batch, responses: list[Any]) -> list[InferResponse | InferenceError]:
        """One answer for each job. Raises PeerError if any of them is bad."""
        spec = self._plan.spec
        version = self._plan.version
        release = self._connection.release if self._connection is not None else _nowhere
        answers: list[InferResponse | InferenceError] = []
        try:
            for queued, (code, text, slot, tensors, parameters) in zip(batch, responses, strict=True):
                if code != OK:
                    answers.append(InferenceError(str(text), Code(code)))
                    continue
                outputs = self._reader.outputs(tensors)
                response = InferResponse(spec.name, version, queued.request.request.id, outputs)
                if parameters:
                    response.parameters = response_parameters(parameters)
                if slot >= 0:
                    size = 0
                    for output in outputs:
                        size += len(output.data)
                    response.release = partial(release, slot, size)
                answers.append(response)
        except (TypeError, ValueError) as exc:
            raise PeerError("responses that do not match the batch") from exc
        return answers

    def _finish(self, job: Job, failure: InferenceError, now_ns: int) -> None:
        self._plan.statistics.failure(now_ns - job.arrived_ns)
        job.request.free()
        job.done(failure)

    # Memory that a model holds on to, and death.

    def _retain(self, batch: int, requests: list[InferRequest], indexes: list[Any]) -> None:
        """Move the slots of requests whose inputs the model kept out of reach, so that nothing overwrites them."""
        for index in indexes:
            if type(index) is not int or not 0 <= index < len(requests):
                raise PeerError(f"request {index!r} is retained and does not exist")
            keeper = InferRequest(requests[index].model_name)
            keeper.slots, requests[index].slots = requests[index].slots, []
            self._retained[batch, index] = keeper

    def _retire(self, keys: list[Any]) -> None:
        for key in keys:
            request = self._retained.pop(tuple(key), None) if type(key) is list else None
            if request is None:
                raise PeerError(f"request {key!r} is retired and was not retained")
            request.free()

    def _fail_posted(self, exit: ProcessExit) -> None:
        if not self._posted:
            return
        running = self._posted.popleft()
        restarting = self._supervisor.state is State.READY
        failure = InferenceError(
            f"Stub process '{self.name}' is not healthy. It was lost while it ran this request: {exit.describe()}"
        )
        now_ns = time.monotonic_ns()
        for queued in running.batch:
            self._finish(queued.request, failure, now_ns)
        while self._posted:
            waiting = self._posted.pop()
            if restarting:
                self._owner.put_back(waiting.batch)
            else:
                for queued in waiting.batch:
                    self._finish(queued.request, failure, now_ns)


def _nowhere(slot: int, size: int) -> None:
    """Where the slots of a stub that is gone are released to."""
