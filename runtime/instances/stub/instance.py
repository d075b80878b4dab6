# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One model instance over all lives of its stub: loads the model, stops the stub, and restarts it after a death.

The batches of a stub belong to its StubBatches, which live as long as the stub.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyruntime.runtime.environments.environment import Environment
from pyruntime.runtime.execution.deadlock import FREE, Waiting
from pyruntime.runtime.execution.executor import (
    IS_READY_TIMEOUT_S,
    NO_BATCHES,
    CallBack,
    ExecutorBatches,
    ExecutorOwner,
)
from pyruntime.runtime.instances.stub.batches import StubBatches
from pyruntime.runtime.instances.stub.calls import Calls
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.execution_timer import ExecutionTimer
from pyruntime.runtime.instances.stub.gpu_memory import StubGpuMemory
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.instances.stub.link import Handlers, StubLink
from pyruntime.runtime.instances.stub.readiness import Readiness
from pyruntime.runtime.instances.stub.supervisor import (
    CancelRestart,
    Event,
    Exited,
    Postponed,
    Ready,
    Restart,
    Started,
    StartFailed,
    State,
    Stop,
    StopRequested,
    Supervisor,
    TakeDown,
)
from pyruntime.runtime.observe.statistics import MemoryUsage
from pyruntime.utils.errors import Code, LaunchError, LoadError, LocalError, OutOfMemoryError, PeerError
from pyruntime.utils.messages import (
    REPORT_DROPPED,
    REPORT_MEMORY,
    Ask,
    Call,
    CancelCall,
    Consumed,
    Failed,
    IsReady,
    Measure,
    ReleaseHold,
    Reply,
    Requeue,
    Respond,
    Result,
    Retired,
)

_LOG = logging.getLogger("pyruntime.instances")

# The numbers of kinds and devices of memory that one instance may report.
USAGES_MAX = 1024
# The statistics have numbers of devices up to this one.
_INT64_MAX = 2**63 - 1


class PythonInstance:
    """See the module, and Executor."""

    # A stub reads only requests that the host has encoded.
    plain: None = None

    def __init__(self, instance_spec: StubInstanceSpec, owner: ExecutorOwner, tasks: asyncio.TaskGroup) -> None:
        self.name = instance_spec.name
        self.signature = instance_spec.signature
        self.down = ""
        self.restarts = 0
        # The memory that the model has reported.
        self.memory_usage: Sequence[MemoryUsage] = ()
        self._spec = instance_spec
        self._owner = owner
        self._tasks = tasks
        self._supervisor = Supervisor()
        self._connection: StubConnection | None = None
        self.inflight: ExecutorBatches = NO_BATCHES
        self._batches: StubBatches | None = None
        self._readiness: Readiness | None = None
        self._hung_up = False
        self._restart: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PythonInstance {self.name} {self._supervisor.state.name} [{len(self._batches or ())} in flight]>"

    @property
    def response_bytes(self) -> int:
        """See Executor."""
        return self._connection.responses.used_bytes if self._connection is not None else 0

    @property
    def is_ready(self) -> bool:
        """See Executor."""
        return self._supervisor.state is State.READY and not self._hung_up

    def check_ready(self, call_back: CallBack) -> None:
        """See Executor."""
        if self.is_ready and self._readiness is not None:
            self._readiness.check(call_back)
        else:
            call_back(False)

    def drop_sequences(self, ids: Sequence[int | str]) -> None:
        """See Executor. Does nothing for a model without the method, or while no stub serves."""
        if self._connection is not None:
            self._connection.drop_sequences(ids)

    def workers(self) -> Sequence[Waiting]:
        """See Executor."""
        if self.down:
            return ()
        return self._batches.workers() if self._batches is not None else (FREE,)

    # Starting and stopping.

    async def start(self, connection: StubConnection) -> None:
        """Load the model into a fresh stub and begin to serve. Raises LoadError; the instance cannot be used then.

        Cancelling it kills the stub.
        """
        self._take(connection)
        self._handle(Started())
        await self._load()

    async def stop(self, timeout_s: float) -> None:
        """Let the stub finish its batches, finalize and exit; kill it after `timeout_s` seconds.

        Cancelling it leaves the stub stopping.
        """
        if self._supervisor.state in (State.NEW, State.FAILED):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._drain()
                self._handle(StopRequested())
                await self._stopped.wait()
        except TimeoutError:
            if timeout_s:  # otherwise nobody waits for it, as after a failed load
                _LOG.warning("%s: did not finish within %g s and is killed", self.name, timeout_s)
            if self._supervisor.state not in (State.STOPPING, State.STOPPED, State.FAILED):
                self._handle(StopRequested())
            self.kill(f"it did not finish within {timeout_s:g} s" if timeout_s else "it is not needed")
            await self._stopped.wait()

    async def _drain(self) -> None:
        """Take no more batches, and wait until all requests are answered, also those that senders answer."""
        if self._batches is not None:
            drained = asyncio.Event()
            self._batches.close(drained.set)
            await drained.wait()

    def kill(self, why: str = "it ends without waiting") -> None:
        """Kill the stub at once. `why` is said of its end."""
        if self._connection is not None:
            self._connection.kill(why)

    async def _load(self) -> None:
        connection = self._connection
        assert connection is not None  # taken just before
        try:
            await connection.load(self._spec.location, self._spec.args, self._spec.concurrency)
            if self._spec.warm_up is not None and self._batches is not None:
                await self._spec.warm_up(self, self._batches, self._spec.concurrency)
        except BaseException:
            connection.kill("its model could not be loaded")
            raise
        if self._connection is not connection:  # it died after its last word: the end of a warm-up is no failure
            raise await connection.wait_lost()
        self._handle(Ready())

    def _take(self, connection: StubConnection) -> None:
        """Begin a life of the stub."""
        instance_spec = self._spec
        calls = Calls(instance_spec, connection, self._tasks)
        batches = StubBatches(instance_spec, connection, self._owner, calls)
        environment = instance_spec.environment
        debugged = isinstance(environment, Environment) and environment.at_terminal
        readiness = Readiness(connection, None if debugged else IS_READY_TIMEOUT_S)
        if instance_spec.execution_timeout_ms and not debugged:
            later = asyncio.get_running_loop().call_later
            batches.timer = ExecutionTimer(instance_spec.execution_timeout_ms, batches, later, time.monotonic_ns)
        connection.link.attach(self._handlers(connection, batches, calls, readiness), self._lost)
        self._connection, self._batches, self._readiness = connection, batches, readiness
        self.inflight = batches
        self._hung_up = False
        self._tasks.create_task(self._watch(connection, batches, calls, readiness), name=f"watch {self.name}")

    def _handlers(
        self, connection: StubConnection, batches: StubBatches, calls: Calls, readiness: Readiness
    ) -> Handlers:
        """The handlers of the messages from a serving stub."""
        server, link = self._spec.server, connection.link
        gpu_memory = StubGpuMemory(server, connection.regions, connection.responses, self._tasks, partial(_reply, link))

        def call(message: Call) -> None:
            if message.waiting:
                batches.expect_calls()
                link.handlers[Call] = calls.call  # the batches expect calls from now on
            calls.call(message)

        def report_memory(message: Ask) -> None:
            self.memory_usage = _read_usage(message.arguments)

        def report_dropped(message: Ask) -> None:
            if len(message.arguments) != 1 or type(message.arguments[0]) is not str:
                raise PeerError(f"a model drops {message.arguments!r:.80}, which is not the name of an output")
            self._spec.findings.dropped(message.arguments[0])

        # The questions that are about the process itself.
        own = {REPORT_MEMORY: report_memory, REPORT_DROPPED: report_dropped, **gpu_memory.handlers}

        def ask(message: Ask) -> None:
            handler = own.get(message.method)
            if handler is not None:
                handler(message)
                return
            loading = "" if link.is_serving else self._spec.spec.name
            reply = partial(_reply, link, message.question)
            server.ask(connection, loading, message.method, message.arguments, reply)

        return {
            Result: batches.answered,
            Failed: batches.answered,
            Respond: batches.responded,
            Requeue: batches.put_back,
            Retired: batches.retained.retired,
            Call: call,
            CancelCall: calls.cancel,
            Consumed: calls.took,
            ReleaseHold: calls.drop,
            IsReady: readiness.answered,
            Ask: ask,
            Measure: lambda measure: server.measure(connection, *measure),
        }

    def _lost(self) -> None:
        """The stub closed its socket: it is dead, or will be in a moment. `_watch` then learns how it died."""
        self._hung_up = True
        if self._batches is not None:
            self._batches.close()

    async def _watch(
        self, connection: StubConnection, batches: StubBatches, calls: Calls, readiness: Readiness
    ) -> None:
        """Wait for the end of the stub and handle it."""
        exit = await connection.wait_exited()
        self._connection = self._batches = self._readiness = None
        self.inflight = NO_BATCHES
        self.memory_usage = ()
        self._spec.server.gone(connection)
        calls.died()
        readiness.died()
        batches.died(exit, restarts=self._supervisor.state is State.READY)
        self._spec.memory.reclaim()
        if self._supervisor.state in (State.READY, State.REINITIALIZING) and not batches.has_expired:
            _LOG.error("%s: stub %s", self.name, exit.describe())
        self._handle(Exited(exit, batches.has_expired))
        self._owner.executor_changed()

    async def _restart_now(self) -> None:
        spec = self._spec
        try:
            connection = await StubConnection.open(
                spec.name, spec.memory, spec.growth_bytes, spec.environment, spec.variables
            )
        except (LaunchError, OutOfMemoryError) as exc:
            _LOG.warning("%s: cannot be started now: %s", self.name, exc)
            self._handle(Postponed())
            return
        except LoadError as exc:
            self._handle(StartFailed(str(exc)))
            self._owner.executor_changed()
            return
        self.restarts += 1
        self._take(connection)
        self._handle(Started())
        if self._supervisor.state is not State.REINITIALIZING:
            return  # the instance was stopped meanwhile
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
                case TakeDown(reason):
                    self.down = reason
                    _LOG.error("%s: %s", self.name, reason)
        match self._supervisor.state:
            case State.READY if type(event) is Ready:
                assert self._batches is not None  # made when the stub was taken on
                self.down = ""
                self._batches.open()
                self._owner.executor_changed()
                self._owner.capacity_freed()
            case State.STOPPED | State.FAILED:
                self._stopped.set()

    def _begin_restart(self) -> None:
        self._restart = None
        self._tasks.create_task(self._restart_now(), name=f"restart {self.name}")


def _read_usage(reported: Sequence[Any]) -> list[MemoryUsage]:
    """The memory that a model has reported. Raises PeerError."""
    if len(reported) > USAGES_MAX:
        raise PeerError(f"a model reports {len(reported)} uses of memory, more than {USAGES_MAX}")
    usages: list[MemoryUsage] = []
    for each in reported:
        if type(each) is not list or [type(part) for part in each] != [int, int, int]:
            raise PeerError(f"{each!r} is not a kind of memory, a device and a size")
        kind, device, size = each
        if size < 0 or device > _INT64_MAX:
            raise PeerError(f"{each!r} is no use of memory: expected a size of 0 or more, and a device")
        usages.append((kind, device, size))
    return usages


def _reply(link: StubLink, question: int, code: int, value: object) -> None:
    """Answer a question of a model, if its stub still listens."""
    if question and link.is_listening:
        try:
            link.send(Reply(question, code, value))
        except LocalError as exc:  # the answer quotes the question, which may fill a frame by itself
            link.send(Reply(question, int(Code.INTERNAL), f"the answer cannot be sent: {exc}"))
