# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Performs the loads of models: for one model one after the other, in order; different models at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.repository.agents import RepositoryAgents
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.dependencies import Dependencies
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.repository.ensembles import StepsError, prepare
from pyruntime.runtime.repository.fingerprint import whole_fingerprint
from pyruntime.runtime.repository.lifecycle import LifecycleTable, State
from pyruntime.runtime.repository.live import LiveVersions, Source
from pyruntime.runtime.repository.load_waits import LoadWaits
from pyruntime.runtime.repository.override_folder import OverrideFolder
from pyruntime.runtime.repository.request import Found, LoadRequest, Override, Sight, look, read, unknown
from pyruntime.runtime.repository.update import Failure, Loader, ModelUpdate, Served
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, InferenceError, LoadError

_LOG = logging.getLogger("pyruntime.repository")


class DescribingLoader(Loader, Protocol):
    """A loader that also finds the backend of a version."""

    def backend_of(self, draft: Draft, version: int) -> Backend:
        """Raises LoadError."""


@dataclass(slots=True, eq=False)
class _Model:
    """One model, except for the states of its versions.

    `users` is the number of unfinished requests; `undecided` are the load requests whose versions are not known yet.
    `loads` are those that have not ended, and `load` is the latest one.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    undecided: set[LoadRequest] = field(default_factory=set)
    load: asyncio.Task[InferenceError | None] | None = None
    loads: set[asyncio.Task[InferenceError | None]] = field(default_factory=set)
    served: Served = field(default_factory=Served)
    override: Override | None = None


class ModelLoads:
    """See the module. `backends` are (name, path) of all backends of models so far, except the Python backend.

    `read_gpus` reads the GPUs of the machine; it blocks.
    """

    def __init__(
        self,
        settings: ServerSettings,
        table: LifecycleTable[ModelVersion],
        live: LiveVersions,
        loader: DescribingLoader,
        tasks: asyncio.TaskGroup,
        agents: RepositoryAgents,
        waits: LoadWaits,
        dependencies: Dependencies,
        read_gpus: Callable[[], AvailableGpus] = AvailableGpus,
    ) -> None:
        self.backends: set[tuple[str, str]] = set()  # see the class
        self.is_closed = False
        self._settings = settings
        self._table = table
        self._live = live
        self._loader = loader
        self._tasks = tasks
        self._agents = agents
        self._waits = waits
        self._dependencies = dependencies
        self._read_gpus = read_gpus
        # The models of the start, which their ensembles do not load once more.
        self._starting: set[str] = set()
        # The ensembles that wait for the loads of their steps.
        self._waiting_for_steps: set[str] = set()
        self._models: dict[str, _Model] = {}
        self._running: set[asyncio.Task[InferenceError | None]] = set()

    def __repr__(self) -> str:
        return f"<ModelLoads [{len(self)} requests, {self._live!r}]>"

    def __len__(self) -> int:
        """The number of unfinished requests."""
        return len(self._running)

    def is_undecided(self, name: str) -> bool:
        """Whether a request may load versions that are not known yet."""
        return name in self._models and bool(self._models[name].undecided)

    async def start(self, names: Iterable[str]) -> None:
        """Load the models of the start. Cancelling it leaves models loading: see `close`."""
        # All are registered before the first load begins, so that any of them can wait for any other.
        self._starting.update(names)
        loads = [self.begin(name, LoadRequest()) for name in names]
        if loads:
            await asyncio.wait(loads)
        self._starting.clear()

    async def close(self) -> None:
        """Begin no more loads of ensembles, and cancel the unfinished requests."""
        self.is_closed = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def remove(self, name: str) -> None:
        """Unload a model, and give up its loads under way. An ensemble is not loaded again with its models."""
        model = self._models.get(name)
        for load in () if model is None else model.loads:
            load.cancel()
        self._remove(name, self._forget)

    def _remove(self, name: str, unload: Callable[[str], None]) -> None:
        """Call `unload` with a model, after its earlier load requests."""
        model = self._models.get(name)
        if model is not None and model.users:
            self._start(name, model, self._unload_later(name, model, unload))
        else:
            unload(name)

    # One request after the other.

    def begin(self, name: str, request: LoadRequest) -> asyncio.Task[InferenceError | None]:
        """Perform a request after the earlier ones for that model. The task returns the error, or None.

        It is cancelled when the model is unloaded, or the server exits.
        """
        model = self._models.setdefault(name, _Model())
        model.undecided.add(request)
        model.load = task = self._start(name, model, self._load(name, model, request))
        model.loads.add(task)
        task.add_done_callback(model.loads.discard)
        task.add_done_callback(lambda _: self._decided(name, model, request))
        return task

    def _start(
        self, name: str, model: _Model, step: Coroutine[object, None, InferenceError | None]
    ) -> asyncio.Task[InferenceError | None]:
        model.users += 1
        task = self._tasks.create_task(step, name=f"load or unload {name}")
        self._running.add(task)

        def ended(task: asyncio.Task[InferenceError | None]) -> None:
            self._running.discard(task)
            model.users -= 1
            if model.load is task:
                model.load = None  # an error that it ended with refers to all that the load knew
            if not model.users and not self._table.states(name):
                del self._models[name]  # clients must not be able to fill memory with names

        task.add_done_callback(ended)
        return task

    def _decided(self, name: str, model: _Model, request: LoadRequest) -> None:
        """The versions that a request loads are known, or the request has ended."""
        model.undecided.discard(request)
        self._live.changed(name)

    async def _load(self, name: str, model: _Model, request: LoadRequest) -> InferenceError | None:
        """Perform a request when it is its turn. Returns the error, or None."""
        async with model.lock:
            await self._live.wait_unloaded(name)
            async with self._waits.running(name):
                served = self._served(name)
                try:
                    await self._update(name, model, request)
                except InferenceError as exc:
                    return exc
                except StepsError as exc:
                    _LOG.error("failed to load '%s': %s", name, exc)
                    self._table.fail_model(name, str(exc))
                    return InferenceError(f"load failed for model '{name}': {exc}\n", exc.code)
                except LoadError as exc:
                    shown = {"people": f"failed to load '{name}': {exc}\n{exc.excerpt}"} if exc.excerpt else None
                    _LOG.error("failed to load '%s': %s", name, exc, extra=shown)
                    self._table.fail_model(name, str(exc))
                    return InferenceError(f"{unknown(name)}: {exc}")
                except Exception:
                    # No error that a model's folder causes may end the server.
                    _LOG.exception("failed to load '%s'", name)
                    return InferenceError(f"failed to load '{name}', see the server's log")
                finally:
                    self._review_ensembles_of(name)
                    if self._served(name) != served:
                        self._load_ensembles_of(name)
        return None

    async def _update(self, name: str, model: _Model, request: LoadRequest) -> None:
        """Load the model of a request. Raises InferenceError, or LoadError before the load of any version begins."""
        folder = None
        if request.files:
            folder = await _written(name, request.files)
            request.files = {}  # they may take much memory
        try:
            # In a thread, because network disks may be slow.
            sight = await asyncio.to_thread(look, name, request, model.override, folder, self._settings)
            begun = partial(self._decided, name, model, request)
            if sight.has_agents:
                failures = await self._load_by_agents(model, sight, folder, begun)
            else:
                model.served.seen = None
                found = await self._with_steps(name, await self._read(sight))
                failures = await self._update_to(found, folder).run(model.served, begun)
        finally:
            if folder is not None:
                folder.release()
        if failures:
            raise _load_failed(name, failures)
        model.override = sight.override
        self._table.dismiss(name)

    async def _load_by_agents(
        self, model: _Model, sight: Sight, folder: OverrideFolder | None, begun: Callable[[], None]
    ) -> dict[int, Failure]:
        """Run a model's repository agents, and load the resulting model, unless all of it is served already."""
        name, served = sight.folder.name, model.served
        fingerprint = await asyncio.to_thread(whole_fingerprint, sight.folder, sight.config)
        if fingerprint == served.seen and served.fingerprints.keys() <= set(self._table.ready_versions(name)):
            return {}
        served.seen = None
        chain = await self._agents.load(name, sight.folder.path, sight.config, folder)
        update: ModelUpdate | None = None
        try:
            found = await self._with_steps(name, await self._read(sight.relocated(chain.location)))
            update = self._update_to(found.of_load(chain.number), chain)
            failures = await update.run(served, begun)
        finally:
            await chain.finish(update is not None and update.has_loaded)
            chain.release()
        if not failures:
            served.seen = fingerprint
        return failures

    async def _read(self, sight: Sight) -> Found:
        """See request.read."""
        served = [instance for model in self._served(sight.folder.name) for instance in model.spec.instances]
        kept = [instance.device_id for instance in served if instance.kind == "GPU"]
        return await asyncio.to_thread(lambda: read(sight, self._settings, self._read_gpus(), kept))

    def _update_to(self, found: Found, source: Source | None) -> ModelUpdate:
        self._note_backends(found.draft)
        return ModelUpdate(self._table, self._live, self._loader, found.draft, found.fingerprints, source)

    def _note_backends(self, draft: Draft) -> None:
        for version in draft.versions:
            try:
                backend = self._loader.backend_of(draft, version)
            except LoadError:
                continue  # loading the version says so
            if backend.kind not in ("python", "ensemble"):
                self.backends.add((backend.name, backend.path))

    async def _unload_later(self, name: str, model: _Model, unload: Callable[[str], None]) -> InferenceError | None:
        async with model.lock:
            unload(name)
        return None

    def _forget(self, name: str) -> None:
        """Unload a model. An ensemble is not loaded again with its models."""
        self._unload(name)
        self._dependencies.forget(name)

    def _unload(self, name: str) -> None:
        """Unload a model, and the ensembles that it is a step of."""
        self._table.dismiss(name)
        for version, state in self._table.states(name).items():
            if state in (State.READY, State.UNAVAILABLE):
                self._live.unload(name, version)
        model = self._models.get(name)
        if model is not None:
            model.served = Served()
            model.override = None
        for ensemble in self._dependencies.above(name):
            if self._table.ready_versions(ensemble):
                _LOG.error("ensemble %s contains models that are not available or ambiguous: %s", ensemble, name)
                self._remove(ensemble, self._unload)

    # Ensembles.

    def _served(self, name: str) -> list[ModelVersion]:
        """The versions of a model that serve."""
        return [self._table.resolve(name, version) for version in self._table.ready_versions(name)]

    def _review_ensembles_of(self, name: str) -> None:
        """Instances of a model may have been exchanged for some on other GPUs: tell the ensembles that depend on it."""
        # In the order of their coming, so that few are reviewed more than once.
        moved = deque([name])
        while moved:
            for ensemble in self._dependencies.above(moved.popleft()):
                if any([each.review_places() for each in self._served(ensemble)]) and ensemble not in moved:
                    moved.append(ensemble)

    def _load_ensembles_of(self, name: str) -> None:
        """Other versions of a model serve: load the ensembles again that it is a step of."""
        self._dependencies.changed(name)
        if not self.is_closed:
            for ensemble in self._dependencies.above(name):
                if ensemble not in self._waiting_for_steps:
                    self.begin(ensemble, LoadRequest())

    async def _with_steps(self, name: str, found: Found) -> Found:
        """Load the models of an ensemble, and complete it. Raises StepsError. Other models need nothing."""
        ensemble = found.draft.identity.ensemble
        if ensemble is None:
            self._dependencies.forget(name)
            return found
        self._dependencies.add(name, (step.model_name for step in ensemble.steps))
        if cycle := self._dependencies.cycle(name):
            raise StepsError(cycle)
        self._waiting_for_steps.add(name)
        try:
            async with asyncio.TaskGroup() as loads:
                for step in self._dependencies.steps(name):
                    loads.create_task(self._load_step(name, step), name=f"load {step} for {name}")
        finally:
            self._waiting_for_steps.discard(name)
        return prepare(found, self._table, self._dependencies.changes(name))

    async def _load_step(self, ensemble: str, name: str) -> None:
        """Load the model of a step, or wait for its load. Whether that succeeds is looked at later."""
        with suppress(InferenceError):  # each of them would wait for the other one
            async with self._waits.waiting(ensemble, name, f"failed to load '{ensemble}'"):
                model = self._models.get(name)
                load = None if model is None else model.load
                is_due = self._settings.model_control_mode != "none" and name not in self._starting
                if (load is None or load.done()) and is_due:
                    load = self.begin(name, LoadRequest())
                if load is not None:
                    await asyncio.wait((load,))


async def _written(name: str, files: Mapping[str, bytes | memoryview]) -> OverrideFolder:
    """The files of a request, which a thread writes. Raises LoadError. Cancelling it waits until nothing is left."""
    writing = asyncio.ensure_future(asyncio.to_thread(OverrideFolder, name, files))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait((writing,))
        if writing.exception() is None:
            writing.result().release()
        raise


def _load_failed(name: str, failures: Mapping[int, Failure]) -> InferenceError:
    reasons = [
        f"version {version} is at {each.state} state: {each.reason};" for version, each in sorted(failures.items())
    ]
    return InferenceError(f"load failed for model '{name}': {''.join(reasons)}\n", Code.INVALID_ARG)
