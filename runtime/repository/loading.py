# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads one model: from its folder on disk to versions whose instances are ready.

The stubs of all instances start before the configuration is complete, because starting them is what takes time; the
first one then runs the model's auto_complete_config and goes on to serve, so that the model is imported once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.config.autocomplete import merge_auto_complete, minimal_config
from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.config.validate import validate, validate_devices, validate_instances
from pyruntime.runtime.environments.environment import Environment
from pyruntime.runtime.environments.forms import PARAMETER
from pyruntime.runtime.environments.prepare import environment_path, prepare
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.instance import PythonInstance
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.model_families import new_statistics
from pyruntime.runtime.repository.backends import Backend, find_backend
from pyruntime.runtime.repository.debugging import only_process, only_version
from pyruntime.runtime.repository.instance_mode import InstanceProcess, instance_processes
from pyruntime.runtime.repository.labels import read_labels
from pyruntime.runtime.repository.native_loading import NativeLoader
from pyruntime.runtime.repository.native_options import stub_location
from pyruntime.runtime.repository.scan import ModelFolder
from pyruntime.runtime.repository.supported import refuse_unsupported, warn_unsupported
from pyruntime.runtime.repository.versions import VersionPolicy, select_versions
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, LoadError, OutOfMemoryError

_LOG = logging.getLogger("pyruntime.repository")

# GPUs a model may ask for by number. None yet: Python models see the machine's own through their framework.
GPUS: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A model as its folder describes it, before its own code has completed the configuration."""

    folder: ModelFolder
    config: Config
    identity: ModelSpec
    processes: tuple[InstanceProcess, ...]
    versions: tuple[int, ...]
    missing: dict[int, str]
    # The configuration says nothing of instances: a backend may have its own idea of how many there should be.
    default_instances: bool = False

    @property
    def newest(self) -> int:
        """The version whose auto_complete_config speaks for all."""
        return self.versions[-1]


def read_draft(folder: ModelFolder, settings: ServerSettings, config: Config) -> Draft:
    """Normalise a model's configuration, and see what there is to load. Raises LoadError."""
    if folder.problem:
        raise LoadError(folder.problem)
    default_instances = not config.instance_group
    has_model_file = any(Path(folder.path, str(version), "model.py").is_file() for version in folder.version_dirs)
    config = normalize(config, directory_name=folder.name, has_model_file=has_model_file, gpus=GPUS)
    validate_instances(config)
    refuse_unsupported(config)
    selection = select_versions(VersionPolicy.from_config(config), map(str, folder.version_dirs), folder.name)
    if selection.problem:
        raise LoadError(selection.problem)
    identity = type(config)()
    identity.CopyFrom(config)
    identity.ClearField("input")
    identity.ClearField("output")
    spec = model_spec(identity)
    processes, versions = instance_processes(spec), selection.versions
    if folder.name == settings.debug_model:
        processes, versions = only_process(processes), only_version(versions)
    return Draft(folder, config, spec, processes, versions, selection.missing, default_instances)


def read_config(folder: ModelFolder, settings: ServerSettings) -> Config:
    """A model's configuration as its folder has it. Raises LoadError."""
    if folder.problem:
        raise LoadError(folder.problem)
    if folder.config_path is None:
        if not settings.auto_complete_config:
            raise LoadError(f"model '{folder.name}' has no config.pbtxt, and auto-complete is disabled")
        return minimal_config(folder.name, "python")
    try:
        return parse_model_config(Path(folder.config_path).read_bytes(), folder.config_path)
    except OSError as exc:
        raise LoadError(f"'{folder.config_path}' cannot be read: {exc.strerror}") from exc


class ModelLoader:
    """Loads models, one call each. Shared by all of a server's loads; keeps nothing of them."""

    def __init__(
        self,
        settings: ServerSettings,
        backend_directories: Sequence[str],
        tasks: asyncio.TaskGroup,
        on_lost: Callable[[ModelVersion, str], None],
        server: ModelServer,
        native_host: NativeHost,
        cache: ResponseCache | None,
    ) -> None:
        self._settings = settings
        self._native = NativeLoader(settings, backend_directories[0], native_host, on_lost)
        self._backend_directories = backend_directories
        self._tasks = tasks
        self._on_lost = on_lost
        self._server = server
        self._cache = cache

    def backend_of(self, draft: Draft, version: int) -> Backend:
        """What executes a version. Raises LoadError."""
        return find_backend(draft.identity, draft.folder.path, version, self._backend_directories)

    async def load(
        self,
        draft: Draft,
        versions: Iterable[int],
        completed: asyncio.Future[Config],
        report: Callable[[int, ModelVersion | LoadError], None],
    ) -> None:
        """Load versions of a model, in parallel; each is reported as soon as it is ready or has failed.

        The newest one sets `completed`, the model's final configuration, for all; without it that must be set.
        A version that was reported ready is the caller's to stop. Cancelling it kills the stubs of all others.
        """

        async def load_version(version: int) -> None:
            try:
                model = await self._try_version(draft, version, completed)
            except (LoadError, OutOfMemoryError) as exc:
                report(version, _load_error(exc))
            else:
                self._use_cache(model)
                report(version, model)

        async with asyncio.TaskGroup() as tasks:
            for version in versions:
                tasks.create_task(load_version(version), name=f"load {draft.folder.name} {version}")

    def _use_cache(self, model: ModelVersion) -> None:
        if not model.spec.response_cache:
            return
        if self._cache is not None:
            model.use_cache(self._cache)
        else:
            name = model.spec.name
            _LOG.warning("model '%s' asks for a response cache, and the server has none: see --cache-config", name)

    async def _try_version(self, draft: Draft, version: int, completed: asyncio.Future[Config]) -> ModelVersion:
        """Load a version, and again if that fails, as often as the operator has it. Raises as the last time did."""
        tries_left = self._settings.model_load_retry_count
        try:
            while True:
                try:
                    return await self._load_version(draft, version, completed)
                except (LoadError, OutOfMemoryError) as exc:
                    # Without the configuration that the newest version did not come to, no other one can be loaded.
                    if not tries_left or (completed.done() and completed.exception()):
                        raise
                    tries_left -= 1
                    reason = str(exc)
                name = draft.folder.name
                _LOG.warning("failed to load '%s' version %d, which is tried again: %s", name, version, reason)
        except BaseException as exc:
            if version == draft.newest and not completed.done():
                completed.set_exception(_load_error(exc))
                completed.exception()  # marks it as seen: this may be the only version
            raise

    async def _load_version(self, draft: Draft, version: int, completed: asyncio.Future[Config]) -> ModelVersion:
        validate_devices(draft.config, GPUS)
        backend = self.backend_of(draft, version)
        if backend.kind == "native":
            return await self._native.load(draft, version, backend, completed)
        begun = time.monotonic()
        growth = self._settings.python_backend.shm_growth_byte_size
        memory = RequestMemory(draft.folder.name, self._settings.python_backend.shm_default_byte_size, growth)
        connections: dict[str, StubConnection] = {}
        instances: list[PythonInstance] = []
        try:
            location = self._location(draft, version, backend)
            environment = await self._environment(draft, location)
            await self._open_stubs(draft.processes, memory, environment, connections)
            if not completed.done() and version == draft.newest:
                leader = connections[draft.processes[0].instance.name]
                completed.set_result(await self._complete(draft, location, leader))
            spec = model_spec(await asyncio.shield(completed))
            spec = replace(spec, labels=read_labels(draft.folder.path, spec.outputs.values()))
            statistics = new_statistics(spec, version, self._settings.metrics_config)
            model = ModelVersion(spec, version, memory, self._on_lost, statistics)
            instances.extend(self._instances(model, draft, location, environment))
            _raise_first(await _all(instance.start(connections[instance.name]) for instance in instances))
        except BaseException:
            for instance in instances:
                await instance.stop(0)
            for connection in connections.values():
                connection.kill()
            for connection in connections.values():
                await connection.wait_exited()
            memory.close()
            raise
        model.load_s = time.monotonic() - begun
        model.serve(instances)
        return model

    def _location(self, draft: Draft, version: int, backend: Backend) -> dict[str, str]:
        """Where a stub finds its model: see utils/messages.py."""
        location = {"model_dir": draft.folder.path, "version": str(version), "file": backend.path}
        if backend.kind == "python_based":
            location["backend_dir"] = str(Path(backend.path).parent)
        directory = self._backend_directories[0]
        return location | stub_location(backend, draft.identity, draft.folder.path, self._settings, directory)

    async def _environment(self, draft: Draft, location: dict[str, str]) -> Environment | None:
        """What the model's stubs are started with, None for as usual. Raises LoadError."""
        wanted = environment_path(draft.identity.parameters.get(PARAMETER, ""), location.get("backend_dir", ""))
        environment = None
        if wanted:
            environment = await prepare(wanted, draft.folder.path)
            _LOG.info("%s runs in %s", draft.folder.name, environment.description)
        if draft.folder.name != self._settings.debug_model:
            return environment
        own = Environment(sys.executable, "the server's own Python", os.environ)
        return replace(environment or own, at_terminal=True)

    async def _open_stubs(
        self,
        processes: Sequence[InstanceProcess],
        memory: RequestMemory,
        environment: Environment | None,
        connections: dict[str, StubConnection],
    ) -> None:
        """Start all stubs at once; each is in `connections`, by its instance's name, as soon as it runs."""
        growth = self._settings.python_backend.shm_growth_byte_size

        async def open_stub(name: str) -> None:
            connections[name] = await StubConnection.open(name, memory, growth, environment)

        _raise_first(await _all(open_stub(process.instance.name) for process in processes))

    async def _complete(self, draft: Draft, location: dict[str, str], stub: StubConnection) -> Config:
        """The final configuration: completed by the model itself, normalised, and validated. Raises LoadError."""
        config = draft.config
        if self._settings.auto_complete_config:
            returned = await stub.complete(location, render(config).decode())
            if returned:
                config = merge_auto_complete(config, orjson.loads(returned))
                config = normalize(config, directory_name=draft.folder.name, has_model_file=True, gpus=GPUS)
        validate(config, GPUS)
        refuse_unsupported(config)
        warn_unsupported(config)
        return config

    def _instances(
        self, model: ModelVersion, draft: Draft, location: dict[str, str], environment: Environment | None
    ) -> list[PythonInstance]:
        spec = model.spec
        instances = []
        for process in draft.processes:
            instance = process.instance
            args = {
                "model_config": spec.json.decode(),
                "model_instance_kind": instance.kind,
                "model_instance_name": instance.name,
                "model_instance_device_id": str(instance.device_id),
                "model_repository": draft.folder.path,
                "model_version": str(model.version),
                "model_name": spec.name,
            }
            plan = StubInstanceSpec(
                instance.name,
                spec,
                model.version,
                location,
                args,
                model.memory,
                self._settings.python_backend.shm_growth_byte_size,
                model.statistics,
                self._server,
                process.concurrency,
                environment,
            )
            instances.append(PythonInstance(plan, model.scheduler, self._tasks))
        return instances


T = TypeVar("T")


def _load_error(exc: BaseException) -> LoadError:
    """Why something could not be loaded, free of what it was raised in."""
    return LoadError(str(exc), exc.code if isinstance(exc, LoadError) else Code.INTERNAL)


async def _all(steps: Iterable[Coroutine[Any, Any, T]]) -> list[T | LoadError]:
    """Run all steps at once and wait for all; a step that cannot be done leaves its LoadError in its place."""

    async def attempt(step: Coroutine[Any, Any, T]) -> T | LoadError:
        try:
            return await step
        except (LoadError, OutOfMemoryError) as exc:
            return _load_error(exc)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(step)) for step in steps]
    return [task.result() for task in tasks]


def _raise_first(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, LoadError):
            raise result
