# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every model version that has processes, from the end of its load until the last of them is gone.

A version that is replaced, unloaded or lost takes no more requests from that moment on, answers those that it has, and
is stopped in the background. Whatever happens to a version is reported to the lifecycle table here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Protocol

from pyruntime.runtime.inference.model_version import FINALIZE_S_MIN, ModelVersion
from pyruntime.runtime.repository.lifecycle import LifecycleTable, State

_LOG = logging.getLogger("pyruntime.repository")


class Source(Protocol):
    """What versions are loaded from, and what is to be seen to until the last of them is gone."""

    def hold(self) -> None:
        """A version was loaded from it."""

    async def retire(self) -> None:
        """A version that holds it is about to end."""

    def release(self) -> None:
        """A version that held it has ended."""


class LiveVersions:
    """See the module. `tasks` runs what goes on in the background; `drain_s` is how long requests may take to end."""

    def __init__(self, table: LifecycleTable[ModelVersion], tasks: asyncio.TaskGroup, drain_s: float) -> None:
        self._table = table
        self._tasks = tasks
        self._drain_s = drain_s
        # Each with what it was loaded from, if that is more than a folder of a repository.
        self._alive: dict[ModelVersion, Source | None] = {}
        self._lost: dict[ModelVersion, str] = {}
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
        """The load of a version failed. What serves goes on to."""
        self._table.fail(name, version, reason)
        if version in self._table.ready_versions(name):
            self._review(self._table.resolve(name, version))
        self.changed(name)

    def adopt(self, model: ModelVersion, source: Source | None) -> None:
        """A version is loaded; it gets no requests yet. Its processes are our business from here on."""
        self._alive[model] = source
        if source is not None:
            source.hold()

    def why_lost(self, model: ModelVersion) -> str:
        """Why a version cannot serve any more although it did load; "" if it can."""
        return self._lost.get(model, "")

    def serve(self, model: ModelVersion) -> None:
        """Requests go to this version from now on; what they went to before is retired."""
        old = self._table.ready(model.spec.name, model.version, model)
        if old is not None:
            self.retire(old)
        self._review(model)
        self.changed(model.spec.name)

    # Ending.

    def unload(self, name: str, version: int) -> None:
        """A version that is ready, or failed, takes no more requests; it is UNLOADING until its processes are gone."""
        model = self._table.begin_unload(name, version)
        if model is None:
            self._table.unloaded(name, version)
        else:
            _LOG.info("unloading: %s:%d", name, version)
            self.retire(model).add_done_callback(lambda _: self._unloaded(name, version))
        self.changed(name)

    def lost(self, model: ModelVersion, reason: str) -> None:
        """The last instance of a version was given up."""
        self._lost[model] = reason
        self._review(model)

    def retire(self, model: ModelVersion) -> asyncio.Task[None]:
        """Let a version that gets no more requests finish those that it has, and end it."""
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
        """End everything; what takes longer than `timeout_s` is killed, except that finalize is granted a little."""
        for model in self._alive:
            self._retire(model, timeout_s)
        if self._retiring:
            await asyncio.wait(self._retiring.values())

    def _retire(self, model: ModelVersion, timeout_s: float) -> asyncio.Task[None]:
        task = self._retiring.get(model)
        if task is None:
            name = f"retire {model.spec.name} {model.version}"
            task = self._retiring[model] = self._tasks.create_task(self._end(model, timeout_s), name=name)
            # The parts of a version refer to each other, and a thread of a native instance ends only with its handle.
            # The young generations take less than a millisecond.
            task.add_done_callback(lambda _: gc.collect(1))
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
        """Take a version out of service if it is lost. One that is being loaded again stays where it is meanwhile."""
        reason = self._lost.get(model)
        name, version = model.spec.name, model.version
        if reason is None or self._table.states(name).get(version) is not State.READY:
            return
        if self._table.resolve(name, version) is model:
            self._table.fail(name, version, reason)
            self.retire(model)
            self.changed(name)

    def _unloaded(self, name: str, version: int) -> None:
        self._table.unloaded(name, version)
        _LOG.info("successfully unloaded '%s' version %d", name, version)
        self.changed(name)

    # Waiting.

    def changed(self, name: str) -> None:
        """Wake who waits for news of a model."""
        for watcher in self._watchers.pop(name, ()):
            if not watcher.done():
                watcher.set_result(None)

    async def wait_changed(self, name: str) -> None:
        """Wait for news of a model. Cancelling it is safe."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(name, []).append(watcher)
        await watcher
