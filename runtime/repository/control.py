# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads and unloads models, at the start and while the server runs.

Requests for one model are performed one after the other, in order; different models load at the same time. A model that
waits for another one while it loads delays no other load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Set

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.repository.agents import RepositoryAgents
from pyruntime.runtime.repository.dependencies import Dependencies
from pyruntime.runtime.repository.draft import check_debug_model
from pyruntime.runtime.repository.lifecycle import LATEST, LifecycleTable, State
from pyruntime.runtime.repository.live import LiveVersions
from pyruntime.runtime.repository.load_waits import LoadWaits
from pyruntime.runtime.repository.loads import DescribingLoader, ModelLoads
from pyruntime.runtime.repository.override import check_files, parse_override
from pyruntime.runtime.repository.request import LoadRequest, unknown
from pyruntime.runtime.repository.scan import scan
from pyruntime.runtime.settings import ALL_MODELS, ServerSettings
from pyruntime.utils.errors import Code, InferenceError

_LOG = logging.getLogger("pyruntime.repository")

# A configuration in a request is parsed at once up to this size, in characters: a few milliseconds of work.
PARSED_AT_ONCE_MAX = 4 << 10

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


class ModelControl:
    """See the module. For `read_gpus` see ModelLoads."""

    def __init__(
        self,
        settings: ServerSettings,
        table: LifecycleTable[ModelVersion],
        live: LiveVersions,
        loader: DescribingLoader,
        tasks: asyncio.TaskGroup,
        agents: RepositoryAgents,
        read_gpus: Callable[[], AvailableGpus] = AvailableGpus,
    ) -> None:
        self._settings = settings
        self._table = table
        self._live = live
        self._waits = LoadWaits(settings.model_load_thread_count)
        self._dependencies = Dependencies()
        self._loads = ModelLoads(
            settings, table, live, loader, tasks, agents, self._waits, self._dependencies, read_gpus
        )

    def __repr__(self) -> str:
        return f"<ModelControl [{len(self._loads)} requests, {self._live!r}]>"

    @property
    def backends(self) -> Set[tuple[str, str]]:
        """The (name, path) of all backends of models so far, except the Python backend."""
        return self._loads.backends

    # Requests of operators and models.

    async def load(
        self, name: str, config: str = "", files: Mapping[str, bytes | memoryview] | None = None, *, caller: str = ""
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
            files = None  # the request's are given back as soon as they are written
        async with self._waits.waiting(caller, name, f"failed to load '{name}'"):
            self._dependencies.explicit.add(name)
            task = self._loads.begin(name, request)
            await asyncio.wait((task,))
        failure = self._given_up(name) if task.cancelled() else task.result()
        if failure is not None:
            if not self._table.states(name):  # no version of it was ever begun: most likely there is no such model
                self._dependencies.explicit.discard(name)
            raise failure

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model: it accepts no more requests when this returns, and its versions end in the background.

        Its loads under way are given up, and their processes end. A model that does not exist counts as unloaded.
        Ensembles that it is a step of are unloaded with it. With `unload_dependents` so are the models of an ensemble,
        unless they were loaded by name or another ensemble needs them.

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
            async with self._waits.waiting(caller, name, _not_ready(name)):
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
        wanted = list(names)
        self._dependencies.explicit.update(wanted)
        await self._loads.start(wanted)
        return all(row.state == "READY" for row in self._table.index() if row.state)

    def refresh(self, name: str) -> asyncio.Task[InferenceError | None]:
        """Load a model if its folder has changed or it does not serve. The task returns the error, or None."""
        return self._loads.begin(name, LoadRequest())

    def is_serving(self, name: str) -> bool:
        """Whether a version of a model serves."""
        return bool(self._table.ready_versions(name))

    def remove(self, name: str) -> None:
        """Unload a model that nobody wants any longer, in any mode. See `unload`."""
        self._dependencies.explicit.discard(name)
        self._loads.remove(name)

    def set_repository(self, names: Iterable[str]) -> None:
        """Set the names of the models in the repositories."""
        self._table.set_repository(names)

    async def close(self) -> None:
        """Accept no more requests to load or unload, and cancel the unfinished ones."""
        await self._loads.close()

    # Waiting.

    def _may_come(self, name: str, version: int) -> bool:
        """Whether a version does not serve yet, but may do so after the current loads."""
        ready = self._table.ready_versions(name)
        if version in ready or (version == LATEST and ready):
            return False
        if self._loads.is_undecided(name):
            return True
        states = self._table.states(name)
        return State.LOADING in (states.values() if version == LATEST else (states.get(version),))

    def _given_up(self, name: str) -> InferenceError:
        """Why a load was cancelled."""
        if self._loads.is_closed:
            return _exiting()
        return InferenceError(f"failed to load '{name}': it was unloaded while it was loading", Code.UNAVAILABLE)

    def check_explicit(self) -> None:
        """Raise InferenceError UNAVAILABLE unless requests may load and unload models."""
        if self._loads.is_closed:
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
