# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a version of a model with a C++ backend into this process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import orjson

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.completion import Completion
from pyruntime.runtime.config.preferred_groups import with_groups_of, with_preferred_groups
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import InstanceSpec, ModelSpec
from pyruntime.runtime.execution.executor import WarmUp
from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.gpus.visibility import check_sight_of_server
from pyruntime.runtime.inference.model_version import Exchange, ModelVersion
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.instances.native.instance import NativeInstance
from pyruntime.runtime.instances.native.instance_spec import NativeInstanceSpec, facts
from pyruntime.runtime.instances.native.strategy import NativeStrategy
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.loaders.batch_strategies import find_strategy, load_strategy
from pyruntime.runtime.loaders.model_files import with_initial_states
from pyruntime.runtime.loaders.native_options import command_line, preloads
from pyruntime.runtime.loaders.regrouping import regroup
from pyruntime.runtime.loaders.version_loader import (
    LoadedVersion,
    VersionFactory,
    final_config,
    final_spec,
    limit,
    regrouped_spec,
)
from pyruntime.runtime.loaders.warmup import warm_up_of
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import MemoryUsage
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, LoadError
from pyruntime.utils.paths import authors_path

if TYPE_CHECKING:  # the extension is loaded with the first model that needs it
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.native")


@dataclass(slots=True, eq=False)
class _Served:
    """The model of a version in the extension, its backend, and its instances, also those that leave.

    `findings` is what the instances report wrong outputs to.
    """

    model: _triton.Model
    library: _triton.Backend
    findings: OutputFindings
    instances: list[NativeInstance] = field(default_factory=list)

    def memory_usage(self) -> Iterable[MemoryUsage]:
        """The memory that the version uses, as its backend reports it."""
        return chain(self.model.memory_usage, *(each.memory_usage for each in self.instances))


class NativeLoader:
    """See the module, and VersionLoader."""

    def __init__(
        self, settings: ServerSettings, backend_directory: str, host: NativeHost, factory: VersionFactory
    ) -> None:
        self._settings = settings
        self._backend_directory = backend_directory
        self._host = host
        self._factory = factory
        # The versions that have not ended.
        self._served: dict[ModelVersion, _Served] = {}

    async def load(
        self, draft: Draft, version: int, backend: Backend, completed: asyncio.Future[Config], undo: AsyncExitStack
    ) -> LoadedVersion:
        """See VersionLoader. Cancelling it waits for the backend, because that cannot be interrupted."""
        memory = self._factory.memory(draft)
        undo.callback(memory.close)
        # The steps that run after the instances have ended, if the load fails or when the version is unloaded.
        resources = AsyncExitStack()
        undo.push_async_callback(resources.aclose)
        library = await self._library(draft, backend)
        resources.callback(self._host.release, library)
        model, config = await self._model(draft, version, backend, library, completed, resources)
        spec = with_initial_states(final_spec(draft, config), draft.folder.path)
        strategy = await self._strategy(spec, draft, version, backend, model, memory, resources)
        served = _Served(model, library, OutputFindings(spec, authors_path(backend.path)))
        made = self._factory.version(spec, version, memory, strategy, served.memory_usage, resources.aclose)
        self._served[made] = served
        resources.callback(self._served.pop, made)
        warm_up = warm_up_of(made, draft.folder.path, self._factory.grants)
        _check_gpus(draft, spec.name, spec.instances)
        groups = zip(spec.instances, _groups(config), strict=True)
        served.instances = [self._instance(made, spec, served, *each, warm_up, draft.gpus) for each in groups]
        limit(self._factory.grants, made, served.instances, spec.instances, undo)
        await _start(served.instances, undo, at_once=library.parallel_loading)
        return made, served.instances

    def regrouped(self, draft: Draft, model: ModelVersion, config: Config) -> Config:
        """See VersionLoader."""
        config = with_groups_of(config, draft.config)
        if not draft.default_instances:
            return config
        return _with_preferred_groups(draft, config, self._served[model].library)

    async def regroup(
        self, draft: Draft, model: ModelVersion, backend: Backend, config: Config, undo: AsyncExitStack
    ) -> Exchange:
        """See VersionLoader. Cancelling it waits for the backend, because that cannot be interrupted."""
        served = self._served[model]
        wanted = model_spec(config).instances
        places = regroup([each for each in served.instances if each in model.instances], wanted)
        spec = regrouped_spec(model, config, {each.name: name for each, (name, _) in zip(wanted, places, strict=True)})
        warm_up = warm_up_of(model, draft.folder.path, self._factory.grants)
        lacking = [each for each, (_, stays) in zip(spec.instances, places, strict=True) if stays is None]
        _check_gpus(draft, spec.name, lacking)
        instances = [
            stays or self._instance(model, spec, served, instance, group, warm_up, draft.gpus)
            for (_, stays), instance, group in zip(places, spec.instances, _groups(config), strict=True)
        ]
        new = [each for each in instances if each not in served.instances]
        limit(self._factory.grants, model, new, lacking, undo)
        await _start(new, undo, at_once=served.library.parallel_loading)

        def configure() -> None:
            served.instances = [*instances, *(each for each in served.instances if each in model.leaving)]
            served.model.set_config(spec.json.decode())

        return Exchange(model, spec, instances, new, configure)

    async def _library(self, draft: Draft, backend: Backend) -> _triton.Backend:
        library: _triton.Backend = await self._host.load(
            backend.name,
            backend.path,
            draft.identity.name,
            command_line(self._settings, self._backend_directory, backend.name),
            preloads(draft.identity, draft.folder.path),
        )
        return library

    async def _model(
        self,
        draft: Draft,
        version: int,
        backend: Backend,
        library: _triton.Backend,
        completed: asyncio.Future[Config],
        resources: AsyncExitStack,
    ) -> tuple[_triton.Model, Config]:
        """The initialised model of the extension, and the final configuration."""
        leads = version == draft.newest and not completed.done()
        config = draft.config if leads else await asyncio.shield(completed)
        if leads and draft.default_instances:
            config = _with_preferred_groups(draft, config, library)
        completion = Completion(config)
        model: _triton.Model = self._host.native.Model(
            library,
            draft.identity.name,
            version,
            draft.folder.path,
            render(config).decode(),
            leads and self._settings.auto_complete_config,
            # Tensors that the backend completes may still lack a datatype; the rest follows below.
            *facts(draft.identity),
        )
        await self._host.threads.run(partial(model.initialize, completion), undo=model.finalize)
        resources.push_async_callback(self._end, model.finalize)
        if leads:
            config = final_config(_provided(draft, completion), backend, draft.gpus)
            completed.set_result(config)
        spec = model_spec(config)
        model.configure(spec.json.decode(), *facts(spec))
        return model, config

    async def _strategy(
        self,
        spec: ModelSpec,
        draft: Draft,
        version: int,
        backend: Backend,
        model: _triton.Model,
        memory: RequestMemory,
        resources: AsyncExitStack,
    ) -> NativeStrategy | None:
        """The custom batching strategy of the version, if it has one."""
        folder, host = draft.folder.path, self._host
        shared = os.path.join(self._backend_directory, spec.backend)
        path = find_strategy(spec, [os.path.join(folder, str(version)), folder, shared, os.path.dirname(backend.path)])
        if not path:
            return None
        strategy = await load_strategy(path, model, spec.name, host)
        resources.push_async_callback(self._end, strategy.finalize)
        return NativeStrategy(strategy, host.native.NativeError, spec.name, memory)

    def _instance(
        self,
        version: ModelVersion,
        spec: ModelSpec,
        served: _Served,
        instance: InstanceSpec,
        group: Config,
        warm_up: WarmUp | None,
        gpus: AvailableGpus,
    ) -> NativeInstance:
        """An instance that is not started yet; `spec` is, or will be, that of the version."""
        plan = NativeInstanceSpec(
            instance,
            spec,
            version.version,
            served.model,
            version.memory,
            self._factory.statistics(version, instance, gpus),
            served.findings,
            _host_policy(instance, group, self._settings.host_policies),
            tuple(group.profile),
            tuple((each.SecondaryDeviceKind.Name(each.kind), each.device_id) for each in group.secondary_devices),
            warm_up,
            self._factory.grants is not None and bool(instance.needs),
        )
        host = self._host
        return NativeInstance(plan, host.native, version.scheduler, host.threads, host.stacks)

    async def _end(self, finalize: Callable[[], None]) -> None:
        """Finalize a model or a strategy. Logs errors."""
        try:
            await self._host.threads.end(finalize)
        except LoadError as exc:
            _LOG.error("%s", exc)


def _provided(draft: Draft, completion: Completion) -> Config:
    """The configuration that a file or the backend provides. Raises LoadError if neither does."""
    config = completion.config
    if draft.folder.config_path is None and not completion.is_set and not config.input and not config.output:
        raise LoadError(
            f"model configuration is not provided for model '{config.name}': it has no config.pbtxt, and its backend, "
            f"'{config.backend}', has not completed the configuration",
            Code.NOT_FOUND,
        )
    return config


def _check_gpus(draft: Draft, model: str, instances: Sequence[InstanceSpec]) -> None:
    """Raise LoadError for new instances on GPUs that are full, or that this process cannot use."""
    draft.gpus.check_limits(instances)
    check_sight_of_server(model, instances, draft.gpus)


def _with_preferred_groups(draft: Draft, config: Config, library: _triton.Backend) -> Config:
    """`config` with the instance group that a backend prefers, for a model that configures none."""
    return with_preferred_groups(config, library.preferred_groups, draft.gpus.numbers, draft.placement.numbers)


def _host_policy(instance: InstanceSpec, group: Config, policies: Mapping[str, Mapping[str, str]]) -> str:
    """The host policy of an instance: a message about the placement of threads and memory, which backends may use.

    As in Triton it is the policy that the group names, or else that of the device, with the operator's settings for it.
    """
    of_device = f"gpu_{instance.device_id}" if instance.kind == "GPU" else "cpu"
    policy = group.host_policy or of_device
    return orjson.dumps({policy: policies.get(policy, {})}).decode()


def _groups(config: Config) -> list[Config]:
    """The group of each instance, in the order of ModelSpec.instances."""
    return [group for group in config.instance_group for _ in group.gpus or [0] for _ in range(group.count)]


async def _start(instances: list[NativeInstance], undo: AsyncExitStack, *, at_once: bool) -> None:
    """Initialise all instances: in parallel if `at_once`, else one after the other. `undo` stops them."""
    for instance in reversed(instances):
        undo.push_async_callback(instance.stop, 0)
    if not at_once:
        for instance in instances:
            await instance.start()
        return
    results = await asyncio.gather(*(instance.start() for instance in instances), return_exceptions=True)
    for result in results:
        if result is not None:
            raise result
