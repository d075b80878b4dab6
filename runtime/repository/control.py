# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads and unloads models, at the start and while the server runs.

Requests for one model are performed one after the other, in order; different models load at the same time. A model that
waits for another one while it loads delays no other load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.repository.agents import RepositoryAgents
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.dependencies import Dependencies
from pyruntime.runtime.repository.draft import Draft, check_debug_model
from pyruntime.runtime.repository.ensembles import StepsError, prepare
from pyruntime.runtime.repository.fingerprint import whole_fingerprint
from pyruntime.runtime.repository.lifecycle import LATEST, LifecycleTable, State
from pyruntime.runtime.repository.live import LiveVersions, Source
from pyruntime.runtime.repository.load_slots import LoadSlots
from pyruntime.runtime.repository.override import check_files, parse_override
from pyruntime.runtime.repository.override_folder import OverrideFolder
from pyruntime.runtime.repository.request import Found, LoadRequest, Override, Sight, look, read, unknown
from pyruntime.runtime.repository.scan import scan
from pyruntime.runtime.repository.update import Failure, Loader, ModelUpdate, Served
from pyruntime.runtime.repository.waits import WaitGraph
from pyruntime.runtime.settings import ALL_MODELS, ServerSettings
from pyruntime.utils.errors import Code, InferenceError, LoadError

_LOG = logging.getLogger("pyruntime.repository")

# A configuration in a request is parsed at once up to this size, in characters: a few milliseconds of work.
PARSED_AT_ONCE_MAX = 4 << 10

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


class DescribingLoader(Loader, Protocol):
    """A loader that also finds the backend of a version."""

    def backend_of(self, draft: Draft, version: int) -> Backend:
        """Raises LoadError."""


@dataclass(slots=True, eq=False)
class _Model:
    """One model, except for the states of its versions.

    `users` is the number of unfinished requests; `undecided` are the load requests whose versions are not known yet.
    `load` is the latest load, if it has not ended.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    undecided: set[LoadRequest] = field(default_factory=set)
    load: asyncio.Task[InferenceError | None] | None = None
    served: Served = field(default_factory=Served)
    override: Override | None = None


class ModelControl:
    """See the module. `backends` are (name, path) of all backends of models so far, except the Python backend."""

    def __init__(
        self,
        settings: ServerSettings,
        table: LifecycleTable[ModelVersion],
        live: LiveVersions,
        loader: DescribingLoader,
        tasks: asyncio.TaskGroup,
        agents: RepositoryAgents,
    ) -> None:
        self.backends: set[tuple[str, str]] = set()  # see the class
        self._settings = settings
        self._table = table
        self._live = live
        self._loader = loader
        self._tasks = tasks
        self._agents = agents
        self._load_slots = LoadSlots(settings.model_load_thread_count)
        self._waits = WaitGraph()
        self._dependencies = Dependencies()
        # The models of the start, which their ensembles do not load once more.
        self._starting: set[str] = set()
        # The ensembles that wait for the loads of their steps.
        self._waiting_for_steps: set[str] = set()
        self._models: dict[str, _Model] = {}
        self._running: set[asyncio.Task[InferenceError | None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<ModelControl [{len(self._running)} requests, {self._live!r}]>"

    # Requests of operators and models.

    async def load(
        self, name: str, config: str = "", files: Mapping[str, bytes] | None = None, *, caller: str = ""
    ) -> None:
        """Load a model, or update it. Returns when it is ready, at once if nothing has changed.

        `config` is a configuration as JSON that replaces the model's own. With it, `files`, by `file:<path in the
        model's folder>`, may replace the whole folder. `caller` is the model that requests this while it is loading
        itself, else "".

        The load begins after requests that came before, unless `config` is long: then it is parsed first, in a thread.

        Raises InferenceError. Cancelling it ends the wait; the load continues.
        """
        self.check_explicit()
        _check_name(name)
        if len(config) > PARSED_AT_ONCE_MAX:
            request = LoadRequest(await asyncio.to_thread(parse_override, config))
            self.check_explicit()  # the server may exit by now
        else:
            request = LoadRequest(_override(name, config) if config else None)
        if files:
            request.files = check_files(name, config, files)
        async with self._waiting(caller, name, f"failed to load '{name}'"):
            self._dependencies.explicit.add(name)
            task = self._begin(name, request)
            await asyncio.wait((task,))
        failure = _exiting() if task.cancelled() else task.result()
        if failure is not None:
            raise failure

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model: it accepts no more requests when this returns, and its versions end in the background.

        Earlier load requests are performed first; this does not wait for them. A model that does not exist counts as
        unloaded. Ensembles that it is a step of are unloaded with it. With `unload_dependents` so are the models of an
        ensemble, unless they were loaded by name or another ensemble needs them.

        Raises InferenceError if the server's mode allows no unloading.
        """
        self.check_explicit()
        unneeded = self._dependencies.unneeded(name, self.is_serving) if unload_dependents else []
        for each in (name, *unneeded):
            self.remove(each)

    async def wait_ready(self, name: str, version: int, caller: str) -> ModelVersion:
        """The version that serves requests for a model: now, or after its current load.

        `caller` is the model that asks while it is loading itself, else "". Raises InferenceError if the version does
        not serve and is not being loaded, if its load fails, or if it would in turn wait for `caller`. Safe to cancel.
        """
        if self._may_come(name, version):
            async with self._waiting(caller, name, _not_ready(name)):
                while self._may_come(name, version):
                    await self._live.wait_changed(name)
        try:
            return self._table.resolve(name, version)
        except InferenceError as exc:
            raise InferenceError(_not_ready(name), exc.code) from exc

    # Requests of the server.

    def find_models(self) -> list[str]:
        """Read the repositories, and return the names of the existing models to load at the start.

        Raises LoadError if a repository cannot be read, SettingsError if the model to debug is in no repository.
        """
        settings = self._settings
        found = dict.fromkeys(folder.name for folder in scan(settings.model_repositories))
        check_debug_model(settings.debug_model, found)
        self._table.set_repository(found)
        if settings.model_control_mode != "explicit" or ALL_MODELS in settings.load_models:
            return list(found)
        wanted = dict.fromkeys(settings.load_models)
        for name in wanted:
            if name not in found:
                _LOG.error("%s", unknown(name))
                self._table.fail_model(name, str(unknown(name)))
        return [name for name in wanted if name in found]

    async def start(self, names: Iterable[str]) -> bool:
        """Load these models. True if they are ready and no model was missing.

        Cancelling it leaves models loading: see `close`.
        """
        # All are registered before the first load begins, so that any of them can wait for any other.
        wanted = list(names)
        self._dependencies.explicit.update(wanted)
        self._starting.update(wanted)
        loads = [self._begin(name, LoadRequest()) for name in wanted]
        if loads:
            await asyncio.wait(loads)
        self._starting.clear()
        return all(row.state == "READY" for row in self._table.index() if row.state)

    def refresh(self, name: str) -> asyncio.Task[InferenceError | None]:
        """Load a model if its folder has changed or it does not serve. The task returns the error, or None."""
        return self._begin(name, LoadRequest())

    def is_serving(self, name: str) -> bool:
        """Whether a version of a model serves."""
        return bool(self._table.ready_versions(name))

    def remove(self, name: str) -> None:
        """Unload a model that nobody wants any longer, in any mode. See `unload`."""
        self._dependencies.explicit.discard(name)
        self._remove(name, self._forget)

    def _remove(self, name: str, unload: Callable[[str], None]) -> None:
        """Call `unload` with a model, after its earlier load requests."""
        model = self._models.get(name)
        if model is not None and model.users:
            self._start(name, model, self._unload_later(name, model, unload))
        else:
            unload(name)

    def set_repository(self, names: Iterable[str]) -> None:
        """Set the names of the models in the repositories."""
        self._table.set_repository(names)

    async def close(self) -> None:
        """Accept no more requests to load or unload, and cancel the unfinished ones."""
        self._closed = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    # One request after the other.

    def _begin(self, name: str, request: LoadRequest) -> asyncio.Task[InferenceError | None]:
        model = self._models.setdefault(name, _Model())
        model.undecided.add(request)
        model.load = task = self._start(name, model, self._load(name, model, request))
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
            async with self._load_slots.hold(name):
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
                    _LOG.error("failed to load '%s': %s", name, exc)
                    self._table.fail_model(name, str(exc))
                    return InferenceError(f"{unknown(name)}: {exc}")
                except Exception:
                    # No error that a model's folder causes may end the server.
                    _LOG.exception("failed to load '%s'", name)
                    return InferenceError(f"failed to load '{name}', see the server's log")
                finally:
                    self._waits.end(name)
                    if self._served(name) != served:
                        self._load_ensembles_of(name)
        return None

    async def _update(self, name: str, model: _Model, request: LoadRequest) -> None:
        """Load the model of a request. Raises InferenceError, or LoadError before the load of any version begins."""
        folder = OverrideFolder(name, request.files) if request.files else None
        try:
            # In a thread, because network disks may be slow.
            sight = await asyncio.to_thread(look, name, request, model.override, folder, self._settings)
            begun = partial(self._decided, name, model, request)
            if sight.has_agents:
                failures = await self._load_by_agents(model, sight, folder, begun)
            else:
                model.served.seen = None
                found = await self._with_steps(name, await asyncio.to_thread(read, sight, self._settings))
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
            found = await asyncio.to_thread(lambda: read(sight.relocated(chain.location), self._settings))
            found = await self._with_steps(name, found)
            update = self._update_to(found.of_load(chain.number), chain)
            failures = await update.run(served, begun)
        finally:
            await chain.finish(update is not None and update.has_loaded)
            chain.release()
        if not failures:
            served.seen = fingerprint
        return failures

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
            if self.is_serving(ensemble):
                _LOG.error("ensemble %s contains models that are not available or ambiguous: %s", ensemble, name)
                self._remove(ensemble, self._unload)

    # Ensembles.

    def _served(self, name: str) -> list[ModelVersion]:
        """The versions of a model that serve."""
        return [self._table.resolve(name, version) for version in self._table.ready_versions(name)]

    def _load_ensembles_of(self, name: str) -> None:
        """Other versions of a model serve: load the ensembles again that it is a step of."""
        self._dependencies.changed(name)
        if not self._closed:
            for ensemble in self._dependencies.above(name):
                if ensemble not in self._waiting_for_steps:
                    self._begin(ensemble, LoadRequest())

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
            async with self._waiting(ensemble, name, f"failed to load '{ensemble}'"):
                model = self._models.get(name)
                load = None if model is None else model.load
                is_due = self._settings.model_control_mode != "none" and name not in self._starting
                if (load is None or load.done()) and is_due:
                    load = self._begin(name, LoadRequest())
                if load is not None:
                    await asyncio.wait((load,))

    # Waiting.

    def _may_come(self, name: str, version: int) -> bool:
        """Whether a version does not serve yet, but may do so after the current loads."""
        ready = self._table.ready_versions(name)
        if version in ready or (version == LATEST and ready):
            return False
        if name in self._models and self._models[name].undecided:
            return True
        states = self._table.states(name)
        return State.LOADING in (states.values() if version == LATEST else (states.get(version),))

    @asynccontextmanager
    async def _waiting(self, caller: str, name: str, refusal: str) -> AsyncIterator[None]:
        """Record that the load of `caller` waits for that of `name`. Raises InferenceError if that would never end."""
        if not caller:
            yield
            return
        cycle = self._waits.cycle(caller, name)
        if cycle:
            reason = f"each of these models would wait for the next one to load: {' -> '.join(cycle)}"
            raise InferenceError(f"{refusal.removesuffix('.')}: {reason}", Code.UNAVAILABLE)
        async with self._load_slots.lend(caller):
            wait = self._waits.add(caller, name)
            try:
                yield
            finally:
                self._waits.remove(wait)

    def check_explicit(self) -> None:
        """Raise InferenceError UNAVAILABLE unless requests may load and unload models."""
        if self._closed:
            raise _exiting()
        if self._settings.model_control_mode != "explicit":
            raise InferenceError(NOT_EXPLICIT, Code.UNAVAILABLE)


def _exiting() -> InferenceError:
    return InferenceError("Server exiting", Code.UNAVAILABLE)


def _check_name(name: str) -> None:
    """Raise InferenceError INVALID_ARG unless `name` can be the name of a folder in a repository."""
    if not name.strip():
        raise InferenceError("Model name cannot be empty. Please enter a valid name to deploy.", Code.INVALID_ARG)
    if "/" in name or name.strip() in (".", ".."):
        raise InferenceError(
            f"invalid model name '{name}', model name must not contain path traversal characters", Code.INVALID_ARG
        )


def _override(name: str, config: str) -> Config:
    """The configuration of a load request. Raises InferenceError INVALID_ARG that begins like every failed load."""
    try:
        return parse_override(config)
    except InferenceError as exc:
        raise InferenceError(f"failed to load '{name}', {exc.message}", exc.code) from exc


def _not_ready(name: str) -> str:
    return f"Failed for execute the inference request. Model '{name}' is not ready."


def _load_failed(name: str, failures: Mapping[int, Failure]) -> InferenceError:
    reasons = [
        f"version {version} is at {each.state} state: {each.reason};" for version, each in sorted(failures.items())
    ]
    return InferenceError(f"load failed for model '{name}': {''.join(reasons)}\n", Code.INVALID_ARG)
