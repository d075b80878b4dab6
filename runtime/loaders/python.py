# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a version of a Python model: its own model.py, or that of a Python-based backend.

The stubs of all instances start before the configuration is complete, because starting them takes the most time; the
first one then runs the model's auto_complete_config and goes on to serve, so that the model is imported once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TypeVar

import orjson

from pyruntime.runtime import descriptors
from pyruntime.runtime.config.autocomplete import complete
from pyruntime.runtime.config.preferred_groups import with_groups_of
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import InstanceSpec, ModelSpec
from pyruntime.runtime.environments.environment import Environment, StubPython
from pyruntime.runtime.execution.executor import Executor
from pyruntime.runtime.gpus.tensor_places import check_input_tensors
from pyruntime.runtime.gpus.visibility import Sight, sight_of
from pyruntime.runtime.inference.model_version import Exchange, ModelVersion
from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.instance import PythonInstance
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.loaders.model_files import with_initial_states
from pyruntime.runtime.loaders.native_options import model_location
from pyruntime.runtime.loaders.regrouping import regroup
from pyruntime.runtime.loaders.stub_pythons import prepare_python
from pyruntime.runtime.loaders.version_loader import (
    LoadedVersion,
    VersionFactory,
    final_config,
    final_spec,
    limit,
    nothing_to_configure,
    regrouped_spec,
)
from pyruntime.runtime.loaders.warmup import warm_up_of
from pyruntime.runtime.memory.requests import RequestMemory, RequestSlot
from pyruntime.runtime.observe.statistics import MemoryUsage
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.repository.execution_timeout import execution_timeout_ms
from pyruntime.runtime.repository.instance_mode import InstanceProcess
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError, LaunchError, LoadError, OutOfMemoryError
from pyruntime.utils.paths import authors_path

_LOG = logging.getLogger("pyruntime.repository")

T = TypeVar("T")

# How long a load waits for the descriptors, the processes or the memory that its stubs need, in seconds: within this
# time the server closes idle connections, and stubs that are stopped have ended.
LAUNCH_S_MAX = 15.0
# The first wait, in seconds; each further one is twice as long.
LAUNCH_AGAIN_S = 0.1


class PythonLoader:
    """See the module, and VersionLoader. `server` answers the calls of the models."""

    def __init__(
        self,
        settings: ServerSettings,
        backend_directory: str,
        tasks: asyncio.TaskGroup,
        server: ModelServer,
        factory: VersionFactory,
    ) -> None:
        self._settings = settings
        self._backend_directory = backend_directory
        self._tasks = tasks
        self._server = server
        self._factory = factory

    async def load(
        self, draft: Draft, version: int, backend: Backend, completed: asyncio.Future[Config], undo: AsyncExitStack
    ) -> LoadedVersion:
        """See VersionLoader. Safe to cancel."""
        if not backend.library:  # the model is in Python
            check_input_tensors(draft.identity)
        memory = await _patiently(partial(self._memory, draft))
        undo.callback(memory.close)
        connections: dict[str, StubConnection] = {}
        undo.push_async_callback(_kill, connections)
        location = self._location(draft, version, backend)
        environment = await self._environment(draft, location)
        draft.gpus.check_limits(draft.identity.instances)
        await self._open_stubs(draft, draft.processes, memory, environment, connections)
        if not completed.done() and version == draft.newest:
            leader = connections[draft.processes[0].instance.name]
            of_leader = location | self._sight(draft, draft.processes[0].instance).location
            completed.set_result(await self._complete(draft, backend, of_leader, leader))
        spec = with_initial_states(final_spec(draft, await asyncio.shield(completed)), draft.folder.path)
        spec = await _with_placed_states(spec, memory, is_native=bool(backend.library))
        model = self._factory.version(spec, version, memory, memory_usage=lambda: _reported(model.instances))
        instances = self._instances(draft, model, spec, draft.processes, location, environment)
        model.share_gpu()
        limit(self._factory.grants, model, instances, [each.instance for each in draft.processes], undo)
        await _start(instances, connections, undo)
        return model, instances

    def regrouped(self, draft: Draft, model: ModelVersion, config: Config) -> Config:
        """See VersionLoader."""
        return with_groups_of(config, draft.config)

    async def regroup(
        self, draft: Draft, model: ModelVersion, backend: Backend, config: Config, undo: AsyncExitStack
    ) -> Exchange:
        """See VersionLoader. Safe to cancel."""
        places = list(zip(draft.processes, regroup(model.instances, draft.processes), strict=True))
        spec = regrouped_spec(model, config, {process.name: name for process, (name, _) in places})
        lacking = [
            replace(process, instance=replace(process.instance, name=name))
            for process, (name, stays) in places
            if stays is None
        ]
        location = self._location(draft, model.version, backend)
        environment = await self._environment(draft, location) if lacking else None
        connections: dict[str, StubConnection] = {}
        undo.push_async_callback(_kill, connections)
        draft.gpus.check_limits(process.instance for process in lacking)
        await self._open_stubs(draft, lacking, model.memory, environment, connections)
        new = self._instances(draft, model, spec, lacking, location, environment)
        limit(self._factory.grants, model, new, [each.instance for each in lacking], undo)
        await _start(new, connections, undo)
        started = iter(new)
        instances = [next(started) if stays is None else stays for _, (_, stays) in places]
        return Exchange(model, spec, instances, new, nothing_to_configure)

    def _sight(self, draft: Draft, instance: InstanceSpec) -> Sight:
        """The GPUs that the process of an instance sees. Raises LoadError."""
        return sight_of(instance, draft.identity, draft.gpus, self._settings.visible_gpus)

    async def _memory(self, draft: Draft) -> RequestMemory:
        return self._factory.memory(draft)

    def _location(self, draft: Draft, version: int, backend: Backend) -> dict[str, str]:
        """The location of the model for a stub: see utils/messages.py."""
        return model_location(
            backend, draft.identity, draft.folder.path, version, self._settings, self._backend_directory
        )

    async def _environment(self, draft: Draft, location: dict[str, str]) -> StubPython:
        """What the model's stubs are started with. Raises LoadError."""
        environment = await prepare_python(draft, location)
        if isinstance(environment, Environment):
            _LOG.info("%s runs in %s", draft.folder.name, environment.description)
        if draft.folder.name != self._settings.debug_model:
            return environment
        own = Environment(sys.executable, "the server's own Python", os.environ)
        return replace(environment if isinstance(environment, Environment) else own, at_terminal=True)

    async def _open_stubs(
        self,
        draft: Draft,
        processes: Sequence[InstanceProcess],
        memory: RequestMemory,
        environment: StubPython,
        connections: dict[str, StubConnection],
    ) -> None:
        """Start all stubs in parallel. Each is added to `connections`, by its instance's name, as soon as it runs."""
        growth = self._settings.python_backend.shm_growth_byte_size

        async def open_stub(instance: InstanceSpec) -> None:
            variables = self._sight(draft, instance).variables
            connections[instance.name] = await _patiently(
                partial(StubConnection.open, instance.name, memory, growth, environment, variables), shortage
            )

        def shortage() -> str:
            return descriptors.shortage(len(processes) - len(connections))

        reason = shortage()
        if reason:
            raise LoadError(reason, Code.UNAVAILABLE)
        await _all(open_stub(process.instance) for process in processes)

    async def _complete(self, draft: Draft, backend: Backend, location: dict[str, str], stub: StubConnection) -> Config:
        """The final configuration, completed by the model itself. Raises LoadError."""
        config = draft.config
        if self._settings.auto_complete_config:
            returned = await stub.complete(location, render(config).decode())
            if returned:
                config = complete(config, orjson.loads(returned))
        config = final_config(config, backend, draft.gpus)
        if not config.input and not config.output:
            _LOG.warning(
                "model '%s' has no inputs and no outputs, so that clients cannot use it: declare them in config.pbtxt, "
                "or by add_input and add_output in auto_complete_config",
                draft.folder.name,
            )
        return config

    def _instances(
        self,
        draft: Draft,
        model: ModelVersion,
        spec: ModelSpec,
        processes: Sequence[InstanceProcess],
        location: dict[str, str],
        environment: StubPython,
    ) -> list[PythonInstance]:
        """Instances that are not started yet, one for each process."""
        grants = self._factory.grants
        findings = OutputFindings(spec, authors_path(location["file"]))
        warm_up = warm_up_of(model, location["model_dir"], grants)
        instances = []
        for process in processes:
            instance = process.instance
            sight = self._sight(draft, instance)
            args = {
                "model_config": spec.json.decode(),
                "model_instance_kind": instance.kind,
                "model_instance_name": instance.name,
                "model_instance_device_id": str(sight.device_id),
                "model_repository": location["model_dir"],
                "model_version": str(model.version),
                "model_name": spec.name,
            }
            plan = StubInstanceSpec(
                instance.name,
                spec,
                model.version,
                location | sight.location,
                args,
                model.memory,
                self._settings.python_backend.shm_growth_byte_size,
                self._factory.statistics(model, instance, draft.gpus),
                self._server,
                findings,
                process.concurrency,
                environment,
                warm_up,
                process.signature,
                grants is not None and bool(instance.needs),
                sight.variables,
                instance.device_id if instance.kind == "GPU" else None,
                execution_timeout_ms(spec),
            )
            instances.append(PythonInstance(plan, model.scheduler, self._tasks))
        return instances


def _reported(instances: Iterable[Executor]) -> Iterable[MemoryUsage]:
    """The memory that the models in stubs have reported."""
    for instance in instances:
        if isinstance(instance, PythonInstance):
            yield from instance.memory_usage


async def _with_placed_states(spec: ModelSpec, memory: RequestMemory, is_native: bool) -> ModelSpec:
    """The spec with its initial states in the model's request memory, for as long as the model is loaded.

    Stubs copy them, or map them privately, for each sequence. A model in Python changes no state in place that may
    grow: its memory in requests has one size. Raises LoadError if there is no memory.
    """
    batching = spec.sequence_batching
    if batching is None or not batching.states:
        return spec
    states = []
    for state in batching.states:
        if state.is_growable and not is_native:
            state = replace(state, is_shared=False)
        if isinstance(state.initial, bytes) and state.initial:
            try:
                slot = memory.allocate_bare(state.size)
                await asyncio.to_thread(_fill, slot, state.initial)
            except InferenceError as exc:
                raise LoadError(f"the initial state '{state.input_name}': {exc.message}", Code.UNAVAILABLE) from exc
            state = replace(state, initial=address(memory.region.number, slot.offset))
        states.append(state)
    return replace(spec, sequence_batching=replace(batching, states=tuple(states)))


def _fill(slot: RequestSlot, contents: bytes) -> None:
    slot.commit()
    slot.fill(contents)


async def _start(
    instances: Sequence[PythonInstance], connections: Mapping[str, StubConnection], undo: AsyncExitStack
) -> None:
    """Start all instances in parallel, each in its stub. `undo` stops them. Raises LoadError and OutOfMemoryError."""
    for instance in reversed(instances):
        undo.push_async_callback(instance.stop, 0)
    await _all(instance.start(connections[instance.name]) for instance in instances)


async def _patiently(step: Callable[[], Awaitable[T]], hopeless: Callable[[], str] = lambda: "") -> T:
    """Repeat a step while descriptors, processes or memory are lacking, for LAUNCH_S_MAX at most. Raises LoadError.

    `hopeless` says why it will go on failing, "" if it may not.
    """
    deadline = time.monotonic() + LAUNCH_S_MAX
    wait_s = LAUNCH_AGAIN_S
    while True:
        try:
            return await step()
        except (LaunchError, OutOfMemoryError) as exc:
            reason = hopeless()
            if reason:
                raise LoadError(reason, Code.UNAVAILABLE) from exc
            if time.monotonic() + wait_s > deadline:
                raise LoadError(
                    f"{exc}. The server tried for {LAUNCH_S_MAX:g} s. Close connections, unload other models, or allow "
                    "the server more descriptors, processes or memory",
                    Code.UNAVAILABLE,
                ) from exc
        await asyncio.sleep(wait_s)
        wait_s *= 2


async def _kill(connections: dict[str, StubConnection]) -> None:
    """Kill the stubs that were started, and wait for their ends. If it is cancelled, they end all the same."""
    for connection in connections.values():
        connection.kill("its model is not loaded")
    await asyncio.gather(*(connection.wait_exited() for connection in connections.values()))


async def _all(steps: Iterable[Coroutine[object, object, None]]) -> None:
    """Run all steps in parallel and wait for all. Raises the LoadError or OutOfMemoryError of the first that failed."""

    async def attempt(step: Coroutine[object, object, None]) -> LoadError | OutOfMemoryError | None:
        try:
            await step
        except (LoadError, OutOfMemoryError) as exc:
            return exc
        return None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(step)) for step in steps]
    for task in tasks:
        failure = task.result()
        if failure is not None:
            raise failure
