# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One model instance over all the lives of its stub: loads the model into it, stops it, starts it again when it died.

What a stub is given to do is the business of its InflightBatches, which live as long as it does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyruntime.runtime.instances.deadlock import FREE, Waiting
from pyruntime.runtime.instances.instance_spec import Batch, Owner, StubInstanceSpec
from pyruntime.runtime.instances.readiness import IS_READY_TIMEOUT_S, CallBack, Readiness
from pyruntime.runtime.instances.stub.batches import InflightBatches
from pyruntime.runtime.instances.stub.calls import Calls
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.supervisor import (
    CancelRestart,
    Event,
    Exited,
    GiveUp,
    Ready,
    Restart,
    Started,
    StartFailed,
    State,
    Stop,
    StopRequested,
    Supervisor,
)
from pyruntime.utils.channel import State as ChannelState
from pyruntime.utils.errors import Code, LoadError, LocalError, OutOfMemoryError
from pyruntime.utils.messages import (
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


class PythonInstance:
    """See the module. `places` is how many more batches it takes now; `down` says why it was given up, or is "".

    `restarts` is how often its stub was started again.
    """

    def __init__(self, plan: StubInstanceSpec, owner: Owner, tasks: asyncio.TaskGroup) -> None:
        self.name = plan.name
        self.down = ""
        self.restarts = 0
        self._plan = plan
        self._owner = owner
        self._tasks = tasks
        self._supervisor = Supervisor()
        self._connection: StubConnection | None = None
        self._batches: InflightBatches | None = None
        self._calls: Calls | None = None
        self._readiness: Readiness | None = None
        self._hung_up = False
        self._restart: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PythonInstance {self.name} {self._supervisor.state.name} [{len(self._batches or ())} posted]>"

    @property
    def places(self) -> int:
        """How many more batches the instance takes now."""
        return self._batches.places if self._batches is not None else 0

    @property
    def waiting(self) -> int:
        """How many requests it has been given that wait behind others."""
        return self._batches.waiting if self._batches is not None else 0

    @property
    def response_bytes(self) -> int:
        """How much shared memory its responses use."""
        return self._connection.responses.used_bytes if self._connection is not None else 0

    @property
    def is_idle(self) -> bool:
        """Whether the instance executes nothing now."""
        return self._batches is not None and not self._batches.running

    def execute(self, batch: Batch) -> None:
        """Run a batch. The instance must have a place. Every job's `respond` will be called, whatever happens."""
        assert self._batches is not None  # there are no places without a stub
        self._batches.execute(batch)

    def know(self, document: bytes, size: int, wire: list[Any]) -> None:
        """See ModelInstance. The stub reads what the host gives it: there is nothing to be gained."""

    def execute_known(self, known: Any, job: Any, data: bytes, at: int) -> bool:
        """See ModelInstance."""
        return False

    # See ModelInstance. A stub reads no connections.
    may_read = False

    def lend(self, known: Any, connection: Any, data: bytes, at: int, rows: int) -> None:
        """See ModelInstance."""

    def adopt(self, job: Any, serial: int) -> None:
        """See ModelInstance."""

    @property
    def is_ready(self) -> bool:
        """Whether the instance takes requests now."""
        return self._supervisor.state is State.READY and not self._hung_up

    def check_ready(self, call_back: CallBack) -> None:
        """Call back, at once or later, with whether the instance takes requests and the model says that it is ready."""
        if self.is_ready and self._readiness is not None:
            self._readiness.check(call_back)
        else:
            call_back(False)

    def workers(self) -> Sequence[Waiting]:
        """Who executes its requests, now or when its stub is there again: see deadlock.py."""
        if self.down:
            return ()
        return self._batches.workers() if self._batches is not None else (FREE,)

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
        try:
            async with asyncio.timeout(timeout_s):
                await self._drain()
                self._handle(StopRequested())
                await self._stopped.wait()
        except TimeoutError:
            _LOG.warning("%s: did not finish within %g s and is killed", self.name, timeout_s)
            if self._supervisor.state not in (State.STOPPING, State.STOPPED, State.FAILED):
                self._handle(StopRequested())
            self.kill()
            await self._stopped.wait()

    async def _drain(self) -> None:
        """Take no more batches, and wait until all requests are answered that senders have still to answer."""
        if self._batches is not None:
            drained = asyncio.Event()
            self._batches.close(drained.set)
            await drained.wait()

    def kill(self) -> None:
        """End the stub at once, whatever it does."""
        if self._connection is not None:
            self._connection.kill()

    async def _load(self) -> None:
        connection = self._connection
        assert connection is not None  # taken just before
        try:
            await connection.load(self._plan.location, self._plan.args, self._plan.concurrency)
        except BaseException:
            connection.kill()
            raise
        if self._connection is connection:
            self._handle(Ready())

    def _take(self, connection: StubConnection) -> None:
        self._connection = connection
        self._hung_up = False
        server = self._plan.server
        self._batches = batches = InflightBatches(self._plan, connection, self._owner)
        self._calls = calls = Calls(self._plan, connection)
        debugged = self._plan.environment is not None and self._plan.environment.at_terminal
        self._readiness = readiness = Readiness(connection, None if debugged else IS_READY_TIMEOUT_S)
        batches.on_cancelled = calls.cancel_batch
        batches.waiting_calls = calls.waiting
        batches.free = calls.free_unread

        def call(message: Call) -> None:
            if message.waiting:
                batches.expects_calls()
            calls.call(message)

        def ask(message: Ask) -> None:
            loading = "" if connection.is_serving else self._plan.spec.name
            reply = partial(_reply, connection, message.question)
            server.ask(connection, loading, message.method, message.arguments, reply)

        connection.handlers = {
            Result: batches.answered,
            Failed: batches.answered,
            Respond: batches.responded,
            Requeue: batches.put_back,
            Retired: batches.retired,
            Call: call,
            CancelCall: calls.cancel,
            Consumed: calls.took,
            ReleaseHold: calls.drop,
            IsReady: readiness.answered,
            Ask: ask,
            Measure: lambda measure: server.measure(connection, *measure),
        }
        connection.on_lost = self._lost
        self._tasks.create_task(self._watch(connection, batches), name=f"watch {self.name}")

    def _lost(self) -> None:
        """The stub hung up: it is dead, or will be in a moment, and how it died is known then."""
        self._hung_up = True
        if self._batches is not None:
            self._batches.close()

    async def _watch(self, connection: StubConnection, batches: InflightBatches) -> None:
        """Wait for the stub's end and act on it."""
        calls, readiness = self._calls, self._readiness
        assert calls is not None  # made with the batches
        assert readiness is not None  # made with the batches
        exit = await connection.wait_exited()
        self._connection = self._batches = self._calls = self._readiness = None
        self._plan.server.gone(connection)
        calls.died()
        readiness.died()
        batches.died(exit, restarts=self._supervisor.state is State.READY)
        if self._supervisor.state in (State.READY, State.REINITIALIZING):
            _LOG.error("%s: stub %s", self.name, exit.describe())
        self._handle(Exited(exit))
        self._owner.instance_changed()

    async def _restart_now(self) -> None:
        plan = self._plan
        try:
            connection = await StubConnection.open(plan.name, plan.memory, plan.growth_bytes, plan.environment)
        except (LoadError, OutOfMemoryError) as exc:
            self._handle(StartFailed(str(exc)))
            self._owner.instance_changed()
            return
        self.restarts += 1
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
                assert self._batches is not None  # made when the stub was taken on
                self._batches.open()
                self._owner.instance_changed()
                self._owner.place_freed()
            case State.STOPPED | State.FAILED:
                self._stopped.set()

    def _begin_restart(self) -> None:
        self._restart = None
        self._tasks.create_task(self._restart_now(), name=f"restart {self.name}")


def _reply(connection: StubConnection, question: int, code: int, value: Any) -> None:
    """Answer what a model asked, if it is still there."""
    if question and connection.state in (ChannelState.LOADING, ChannelState.SERVING, ChannelState.STOPPING):
        try:
            connection.send(Reply(question, code, value))
        except LocalError as exc:  # it quotes what the model said, and that was as long as a frame
            connection.send(Reply(question, int(Code.INTERNAL), f"the answer cannot be sent: {exc}"))
