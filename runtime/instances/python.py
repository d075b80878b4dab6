# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One model instance over all the lives of its stub: posts batches, resolves what waits on them, restarts what died.

Some batches may be with the stub at a time, so that it need not wait for the host between them. The stub answers one
before it starts the next; so after a death the first unanswered batch is what was running, and it fails, while those
behind it had not begun and go back to the scheduler. Nothing is lost and nothing runs twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.inference import InferResponse, Parameter, Slot
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
from pyruntime.runtime.instances.wire import OutputReader, response_parameters
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import Code, InferenceError, LoadError, LocalError, OutOfMemoryError, PeerError
from pyruntime.utils.messages import OK, Failed, Retired

_LOG = logging.getLogger("pyruntime.instances")

# One batch runs, one waits behind it: without the second, a third of the throughput is lost.
PLACES_MIN = 2
# Batches that run for microseconds are worth more: every wake-up of the host or the stub then serves several of them,
# which halves the CPU per request. But what is posted to one instance cannot move to another that becomes idle first,
# so no more is posted than the stub works off in AHEAD_NS_MAX.
PLACES_MAX = 8
AHEAD_NS_MAX = 500_000
# How much the latest batch counts in the average duration: an eighth.
_AVERAGE_SHIFT = 3

Batch = list[Job]


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
        self._retained: dict[tuple[int, int], list[Slot]] = {}
        self._number = 0
        self._last_end_ns = 0
        self._hung_up = False
        self._average_ns = AHEAD_NS_MAX
        self._restart: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PythonInstance {self.name} {self._supervisor.state.name} [{len(self._posted)} posted]>"

    @property
    def is_ready(self) -> bool:
        """Whether the instance takes requests now."""
        return self._supervisor.state is State.READY and not self._hung_up

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
        self._hung_up = False
        connection.on_answer = self._answered
        connection.on_lost = self._lost
        self._reader = OutputReader(self._plan.spec, connection.responses.view)
        self._tasks.create_task(self._watch(connection), name=f"watch {self.name}")

    def _lost(self) -> None:
        """The stub hung up: it is dead, or will be in a moment, and how it died is known then."""
        self._hung_up = True
        self.places = 0

    async def _watch(self, connection: StubConnection) -> None:
        """Wait for the stub's end and act on it."""
        exit = await connection.wait_exited()
        self._connection = None
        self.places = 0
        self._fail_posted(exit)
        for slots in self._retained.values():
            for slot in slots:
                slot.free()
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
        if self._supervisor.state is not State.REINITIALIZING:
            return  # it was told to stop meanwhile
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
                self.places = self._places()
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
        self._number = number = self._number + 1
        sent_ns = time.monotonic_ns()
        try:
            self._connection.infer(number, [job.wire for job in batch])
        except LocalError as exc:
            failure = InferenceError(f"the request cannot be sent to {self.name}: {exc}")
            for job in batch:
                self._finish(job, failure, sent_ns)
            return
        self.places -= 1
        self._posted.append(_Posted(number, batch, sent_ns))

    def _answered(self, message: Answer) -> None:
        """What the stub says while it serves. Raises PeerError."""
        if isinstance(message, Retired):
            return self._retire(message.requests)
        posted = self._posted[0] if self._posted else None
        if posted is None or posted.number != message.batch:
            raise PeerError(f"batch {message.batch} is answered and is not the one that is due")
        batch = posted.batch
        # Reading the answer may still find it to be nonsense, so the batch counts as running until that is done.
        answers = [InferenceError(message.message)] * len(batch) if isinstance(message, Failed) else self._read(
            batch, message.responses
        )  # fmt: skip
        if message.retained:
            self._retain(message.batch, batch, message.retained)
        self._posted.popleft()
        now_ns = time.monotonic_ns()
        begin_ns, start_ns, end_ns = posted.sent_ns, message.start_ns, message.end_ns
        if begin_ns < self._last_end_ns:  # it waited behind another
            begin_ns = self._last_end_ns
        if not begin_ns <= start_ns <= end_ns <= now_ns:  # a stub may say anything
            start_ns = end_ns = now_ns
        self._last_end_ns = end_ns
        input_ns, infer_ns, output_ns = start_ns - begin_ns, end_ns - start_ns, now_ns - end_ns
        self._average_ns += (infer_ns - self._average_ns) >> _AVERAGE_SHIFT
        if not self._hung_up and self._supervisor.state is State.READY:
            self.places = self._places() - len(self._posted)
        statistics = self._plan.statistics
        rows = 0
        for job, answer in zip(batch, answers, strict=True):
            rows += job.rows
            if type(answer) is InferResponse:
                arrived_ns = job.arrived_ns
                statistics.success(
                    job.rows, begin_ns - arrived_ns, input_ns, infer_ns, output_ns, now_ns - arrived_ns
                )  # fmt: skip
                job.free()
                job.done(answer)
            elif isinstance(answer, InferenceError):
                self._finish(job, answer, now_ns)
        statistics.execution(rows, input_ns, infer_ns, output_ns, time.time_ns() // 1_000_000)
        self._owner.place_freed()

    def _places(self) -> int:
        """How many batches may be with the stub at a time."""
        # Where requests are batched, what waits had better wait in the queue: there it can still join a larger batch.
        if self._plan.spec.dynamic_batching is not None:
            return 1
        average_ns = self._average_ns
        if average_ns * PLACES_MAX <= AHEAD_NS_MAX:
            return PLACES_MAX
        return max(PLACES_MIN, AHEAD_NS_MAX // average_ns)

    def _read(self, batch: Batch, responses: list[Any]) -> Sequence[InferResponse | InferenceError]:
        """One answer for each job. Raises PeerError if any of them is bad."""
        plan = self._plan
        name, version, read = plan.spec.name, plan.version, self._reader.outputs
        release = self._connection.release if self._connection is not None else _nowhere
        answers: list[InferResponse | InferenceError] = []
        try:
            for job, (code, text, slot, tensors, parameters) in zip(batch, responses, strict=True):
                if code != OK:
                    answers.append(InferenceError(str(text), Code(code)))
                    continue
                if type(slot) is not int:
                    raise PeerError(f"a response lies in slot {slot!r}, which is no integer")
                outputs, size = read(tensors)
                answers.append(
                    InferResponse(
                        name,
                        version,
                        job.id,
                        outputs,
                        response_parameters(parameters) if parameters else _NO_PARAMETERS,
                        partial(release, slot, size) if slot >= 0 else _nothing,
                    )
                )
        except (TypeError, ValueError) as exc:
            raise PeerError("responses that do not match the batch") from exc
        return answers

    def _finish(self, job: Job, failure: InferenceError, now_ns: int) -> None:
        self._plan.statistics.failure(now_ns - job.arrived_ns)
        job.free()
        job.done(failure)

    # Memory that a model holds on to, and death.

    def _retain(self, number: int, batch: Batch, indexes: list[Any]) -> None:
        """Move the slots of requests whose inputs the model kept out of reach, so that nothing overwrites them."""
        for index in indexes:
            if type(index) is not int or not 0 <= index < len(batch) or (number, index) in self._retained:
                raise PeerError(f"request {index!r} is retained and does not exist, or is retained twice")
            self._retained[number, index], batch[index].slots = batch[index].slots, []

    def _retire(self, keys: list[Any]) -> None:
        for key in keys:
            known = type(key) is list and len(key) == 2 and type(key[0]) is int and type(key[1]) is int
            slots = self._retained.pop((key[0], key[1]), None) if known else None
            if slots is None:
                raise PeerError(f"request {key!r} is retired and was not retained")
            for slot in slots:
                slot.free()

    def _fail_posted(self, exit: ProcessExit) -> None:
        if not self._posted:
            return
        running = self._posted.popleft()
        restarting = self._supervisor.state is State.READY
        failure = InferenceError(
            f"Stub process '{self.name}' is not healthy. It was lost while it ran this request: {exit.describe()}"
        )
        now_ns = time.monotonic_ns()
        for job in running.batch:
            self._finish(job, failure, now_ns)
        while self._posted:
            waiting = self._posted.pop()
            if restarting:
                self._owner.put_back(waiting.batch)
            else:
                for job in waiting.batch:
                    self._finish(job, failure, now_ns)


_NO_PARAMETERS: dict[str, Parameter] = {}


def _nowhere(slot: int, size: int) -> None:
    """Where the slots of a stub that is gone are released to."""


def _nothing() -> None:
    """How a response without memory is released."""
