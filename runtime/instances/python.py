# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One model instance over all the lives of its stub: loads the model into it, stops it, starts it again when it died.

What a stub is given to do is the business of its PostedBatches, which live as long as it does.
"""

from __future__ import annotations

import asyncio
import logging

from pyruntime.runtime.instances.batches import Batch, InstancePlan, Owner, PostedBatches
from pyruntime.runtime.instances.connection import StubConnection
from pyruntime.runtime.instances.supervisor import (
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
from pyruntime.utils.errors import LoadError, OutOfMemoryError

_LOG = logging.getLogger("pyruntime.instances")


class PythonInstance:
    """See the module. `places` is how many more batches it takes now; `down` says why it was given up, or is ""."""

    def __init__(self, plan: InstancePlan, owner: Owner, tasks: asyncio.TaskGroup) -> None:
        self.name = plan.name
        self.down = ""
        self._plan = plan
        self._owner = owner
        self._tasks = tasks
        self._supervisor = Supervisor()
        self._connection: StubConnection | None = None
        self._batches: PostedBatches | None = None
        self._hung_up = False
        self._restart: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PythonInstance {self.name} {self._supervisor.state.name} [{len(self._batches or ())} posted]>"

    @property
    def places(self) -> int:
        """How many more batches the instance takes now."""
        return self._batches.places if self._batches is not None else 0

    def execute(self, batch: Batch) -> None:
        """Run a batch. The instance must have a place. Every job's `done` will be called, whatever happens."""
        assert self._batches is not None  # there are no places without a stub
        self._batches.execute(batch)

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
        if self._batches is not None:
            self._batches.close()
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
        self._batches = batches = PostedBatches(self._plan, connection, self._owner)
        connection.on_answer = batches.answered
        connection.on_lost = self._lost
        self._tasks.create_task(self._watch(connection, batches), name=f"watch {self.name}")

    def _lost(self) -> None:
        """The stub hung up: it is dead, or will be in a moment, and how it died is known then."""
        self._hung_up = True
        if self._batches is not None:
            self._batches.close()

    async def _watch(self, connection: StubConnection, batches: PostedBatches) -> None:
        """Wait for the stub's end and act on it."""
        exit = await connection.wait_exited()
        self._connection = self._batches = None
        batches.died(exit, restarts=self._supervisor.state is State.READY)
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
                assert self._batches is not None  # made when the stub was taken on
                self._batches.open()
                self._owner.instance_changed()
                self._owner.place_freed()
            case State.STOPPED | State.FAILED:
                self._stopped.set()

    def _begin_restart(self) -> None:
        self._restart = None
        self._tasks.create_task(self._restart_now(), name=f"restart {self.name}")
