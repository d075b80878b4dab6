# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps every model version that has processes, from the end of its load until its last process has ended.

A version that is replaced or unloaded accepts no more requests from that moment on, answers those that it has, and is
stopped in the background. A version whose instances are all down is *lost*: it serves again when one of them is ready
again, unless it was replaced or unloaded meanwhile. Only this module reports steps of a version to the lifecycle table.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from pyruntime.runtime.inference.model_version import FINALIZE_S_MIN, Exchange, ModelVersion
from pyruntime.runtime.repository.lifecycle import LifecycleTable, State

_LOG = logging.getLogger("pyruntime.repository")


class Source(Protocol):
    """The origin of versions, for example a temporary folder, which is held until the last of them has ended."""

    def hold(self) -> None:
        """A version was loaded from this source."""

    async def retire(self) -> None:
        """A version that holds this source is about to end."""

    def release(self) -> None:
        """A version that held this source has ended."""


class LiveVersions:
    """See the module. `tasks` runs the background work; `drain_s` limits the time for requests to end, in seconds."""

    def __init__(self, table: LifecycleTable[ModelVersion], tasks: asyncio.TaskGroup, drain_s: float) -> None:
        self._table = table
        self._tasks = tasks
        self._drain_s = drain_s
        # Each with its source, if that is more than a folder of a repository.
        self._alive: dict[ModelVersion, Source | None] = {}
        self._lost: dict[ModelVersion, str] = {}
        self._down = table.down
        self._retiring: dict[ModelVersion, asyncio.Task[None]] = {}
        self._watchers: dict[str, list[asyncio.Future[None]]] = {}

    def __repr__(self) -> str:
        return f"<LiveVersions [{len(self._alive)} alive, {len(self._retiring)} of them retiring]>"

    # Loading.

    def begin_load(self, name: str, version: int) -> None:
        """A version is being loaded, for the first time or again."""
        self._table.begin_load(name, version)
        self.changed(name)

    def fail(self, name: str, version: int, reason: str) -> None:
        """The load of a version failed. A version that serves continues to do so."""
        self._table.fail(name, version, reason)
        if version in self._table.ready_versions(name):
            self._review(self._table.resolve(name, version))
        elif (name, version) in self._down:
            self._review(self._down[name, version])
        self.changed(name)

    def adopt(self, model: ModelVersion, source: Source | None) -> None:
        """A version is loaded, and gets no requests yet. From here on this object ends its processes."""
        self._alive[model] = source
        if source is not None:
            source.hold()

    def why_lost(self, model: ModelVersion) -> str:
        """Why a loaded version can no longer serve; "" if it can."""
        return self._lost.get(model, "")

    def serve(self, model: ModelVersion) -> None:
        """Send requests to this version from now on, and retire the one that got them before."""
        name, version = model.spec.name, model.version
        old = self._table.ready(name, version, model) or self._down.get((name, version))
        if old is not None:
            self.retire(old)
        self._review(model)
        self.changed(name)

    def exchange(self, exchange: Exchange) -> list[asyncio.Task[None]]:
        """A version that serves does so with other instances from now on. Those that leave end in the background.

        Returns the ends of those that go on for no sequence.
        """
        model = exchange.model
        name, version = model.spec.name, model.version
        leaving = model.exchange(exchange.spec, exchange.instances)
        exchange.configure()
        ends = []
        for instance in leaving:
            # Sequences on it may go on for as long as their clients like, and end with the version at the latest.
            step = model.release(instance, max(FINALIZE_S_MIN, self._drain_s))
            task = self._tasks.create_task(step, name=f"release {instance.name}")
            if not model.has_sequences(instance):
                ends.append(task)
        self._table.ready(name, version, model)
        self._review(model)
        self.changed(name)
        _LOG.info(
            "'%s' version %d has %d new instances; %d stay and %d leave",
            name,
            version,
            len(exchange.new),
            len(exchange.instances) - len(exchange.new),
            len(leaving),
        )
        return ends

    def give_up(self, exchange: Exchange) -> None:
        """A version goes on with the instances that it has. The new ones end in the background."""
        for instance in exchange.new:
            self._tasks.create_task(exchange.model.discard(instance), name=f"stop {instance.name}")

    # Ending.

    def unload(self, name: str, version: int) -> None:
        """Unload a ready or failed version. It accepts no requests, and is UNLOADING until its processes have ended."""
        model = self._table.begin_unload(name, version) or self._down.get((name, version))
        if model is None:
            self._table.unloaded(name, version)
        else:
            _LOG.info("unloading: %s:%d", name, version)
            self.retire(model).add_done_callback(lambda _: self._unloaded(name, version))
        self.changed(name)

    def lost(self, model: ModelVersion, reason: str) -> None:
        """The last instance of a version is down; or one of them is ready again, if there is no reason."""
        if reason:
            self._lost[model] = reason
        else:
            self._lost.pop(model, None)
        self._review(model)

    def retire(self, model: ModelVersion) -> asyncio.Task[None]:
        """Let a version that gets no more requests finish those that it has, then end it."""
        return self._retire(model, self._drain_s)

    async def wait_unloaded(self, name: str) -> None:
        """Wait until no version of a model is UNLOADING. Cancelling it is safe."""
        while State.UNLOADING in self._table.states(name).values():
            await self.wait_changed(name)

    def kill(self) -> None:
        """End all processes at once."""
        for model in self._alive:
            model.kill()

    async def stop(self, timeout_s: float) -> None:
        """End all versions. Kills those that take longer than `timeout_s`, after a short time for finalize."""
        for model in self._alive:
            self._retire(model, timeout_s)
        if self._retiring:
            await asyncio.wait(self._retiring.values())

    def _retire(self, model: ModelVersion, timeout_s: float) -> asyncio.Task[None]:
        key = (model.spec.name, model.version)
        if self._down.get(key) is model:
            del self._down[key]
        task = self._retiring.get(model)
        if task is None:
            name = f"retire {model.spec.name} {model.version}"
            task = self._retiring[model] = self._tasks.create_task(self._end(model, timeout_s), name=name)
        return task

    async def _end(self, model: ModelVersion, timeout_s: float) -> None:
        source = self._alive[model]
        try:
            if source is not None:
                await source.retire()
            await model.stop(max(FINALIZE_S_MIN, timeout_s))
        finally:
            del self._retiring[model]
            self._lost.pop(model, None)
            del self._alive[model]
            if source is not None:
                source.release()

    def _review(self, model: ModelVersion) -> None:
        """Take a version out of service if it is lost, and back if not, unless it is being loaded again."""
        reason = self._lost.get(model)
        name, version = model.spec.name, model.version
        state = self._table.states(name).get(version)
        if reason is None:
            if state is State.UNAVAILABLE and self._down.get((name, version)) is model:
                del self._down[name, version]
                self._table.recover(name, version, model)
                _LOG.info("'%s' version %d serves again", name, version)
                self.changed(name)
        elif state is State.READY and self._table.resolve(name, version) is model:
            self._table.fail(name, version, reason)
            self._down[name, version] = model
            self.changed(name)

    def _unloaded(self, name: str, version: int) -> None:
        self._table.unloaded(name, version)
        _LOG.info("successfully unloaded '%s' version %d", name, version)
        self.changed(name)

    # Waiting.

    def changed(self, name: str) -> None:
        """Wake the tasks that wait for a change of a model."""
        for watcher in self._watchers.pop(name, ()):
            if not watcher.done():
                watcher.set_result(None)

    async def wait_changed(self, name: str) -> None:
        """Wait for a change of a model. Safe to cancel."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(name, []).append(watcher)
        await watcher
