# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a version of a model whose backend is a library, into this process."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson

from pyruntime.runtime.config.autocomplete import merge_auto_complete
from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.preferred_groups import with_preferred_groups
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.config.validate import validate
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.instances.native.instance import NativeInstance
from pyruntime.runtime.instances.native.instance_spec import NativeInstanceSpec, facts
from pyruntime.runtime.instances.native.strategy import NativeStrategy
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.model_families import new_statistics
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.batch_strategies import find_strategy, load_strategy
from pyruntime.runtime.repository.initial_states import with_initial_states
from pyruntime.runtime.repository.labels import read_labels
from pyruntime.runtime.repository.native_options import command_line, preloads
from pyruntime.runtime.repository.supported import refuse_unsupported, warn_unsupported
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError

if TYPE_CHECKING:
    from pyruntime.runtime.repository.loading import Draft

_LOG = logging.getLogger("pyruntime.native")


class NativeLoader:
    """See the module. `gpus` are the ids of the GPUs of this host."""

    def __init__(
        self,
        settings: ServerSettings,
        backend_directory: str,
        host: NativeHost,
        on_lost: Callable[[ModelVersion, str], None],
        gpus: tuple[int, ...] = (),
    ) -> None:
        self._settings = settings
        self._backend_directory = backend_directory
        self._host = host
        self._on_lost = on_lost
        self._gpus = gpus

    async def load(self, draft: Draft, version: int, found: Backend, completed: asyncio.Future[Config]) -> ModelVersion:
        """Load a version; the newest one sets `completed`, the others wait for it. Raises LoadError.

        Cancelling it waits for the backend, which cannot be interrupted.
        """
        begun = time.monotonic()
        spec = draft.identity
        backend = await self._host.load(
            found.name,
            found.path,
            spec.name,
            command_line(self._settings, self._backend_directory, found.name),
            preloads(spec, draft.folder.path),
        )
        model: Any = None
        strategy: Any = None
        memory: RequestMemory | None = None
        instances: list[NativeInstance] = []
        with_it = ExitStack()
        try:
            model, config = await self._model(draft, version, backend, completed)
            spec = model_spec(config)
            spec = replace(spec, labels=read_labels(draft.folder.path, spec.outputs.values()))
            spec = with_initial_states(spec, draft.folder.path)
            memory = self._memory(spec.name)
            statistics = new_statistics(spec, version, self._settings.metrics_config)
            served = ModelVersion(spec, version, memory, self._on_lost, statistics)
            strategy = await self._strategy(served, model, draft.folder.path, found.path)
            instances.extend(self._instances(served, model, config))
            for each in instances:
                with_it.callback(self._host.stacks.open(spec.name, version, each.name, each.tell))
            await _start(instances, at_once=backend.parallel_loading)
        except BaseException:
            for instance in instances:
                await instance.stop(0)
            await self._finalize(with_it, strategy, model, backend)
            if memory is not None:
                memory.close()
            raise
        statistics.memory_usage = lambda: chain(model.memory_usage, *(each.memory_usage for each in instances))
        served.finalize = lambda: self._finalize(with_it, strategy, model, backend)
        served.load_s = time.monotonic() - begun
        served.serve(instances)
        return served

    async def _model(
        self, draft: Draft, version: int, backend: Any, completed: asyncio.Future[Config]
    ) -> tuple[Any, Config]:
        """The extension's model, initialised, and its final configuration."""
        leads = version == draft.newest and not completed.done()
        config = draft.config if leads else await asyncio.shield(completed)
        if leads and draft.default_instances:
            config = with_preferred_groups(config, backend.preferred_groups, self._gpus)
        spec = model_spec(config)
        completes = leads and self._settings.auto_complete_config
        model = self._host.native.Model(
            backend,
            spec.name,
            version,
            draft.folder.path,
            spec.json.decode(),
            completes,
            *facts(spec),
        )
        await self._host.threads.run(model.initialize, undo=model.finalize)
        if not leads:
            return model, config
        try:
            config = self._completed(draft, config, model.config)
        except LoadError:
            await self._host.threads.end(model.finalize)
            raise
        completed.set_result(config)
        spec = model_spec(config)
        model.configure(spec.json.decode(), *facts(spec))
        return model, config

    def _completed(self, draft: Draft, config: Config, returned: str | None) -> Config:
        """The final configuration, after the backend has returned its own, if it has."""
        if returned is not None:
            config = merge_auto_complete(config, _completion(config.name, returned))
            config = normalize(config, directory_name=draft.folder.name, has_model_file=False, gpus=self._gpus)
        validate(config, self._gpus)
        refuse_unsupported(config)
        warn_unsupported(config, is_native=True)
        return config

    def _memory(self, name: str) -> RequestMemory:
        settings = self._settings.python_backend
        return RequestMemory(name, settings.shm_default_byte_size, settings.shm_growth_byte_size)

    def _instances(self, served: ModelVersion, model: Any, config: Config) -> list[NativeInstance]:
        instances = []
        for instance, group in zip(served.spec.instances, _groups(config), strict=True):
            plan = NativeInstanceSpec(
                instance,
                served.spec,
                served.version,
                model,
                served.memory,
                served.statistics,
                _host_policy(instance, group, self._settings.host_policies),
                tuple(group.profile),
                tuple((each.SecondaryDeviceKind.Name(each.kind), each.device_id) for each in group.secondary_devices),
            )
            instances.append(NativeInstance(plan, self._host.native, served.scheduler, self._host.threads))
        return instances

    async def _strategy(self, served: ModelVersion, model: Any, folder: str, library: str) -> Any:
        """Who has a say in what the version's batches are, if anybody has."""
        spec, host = served.spec, self._host
        backends = os.path.join(self._backend_directory, spec.backend)
        path = find_strategy(
            spec, [os.path.join(folder, str(served.version)), folder, backends, os.path.dirname(library)]
        )
        if not path:
            return None
        strategy = await load_strategy(path, model, spec.name, host)
        served.consult(NativeStrategy(strategy, host.native.NativeError, spec.name, served.memory))
        return strategy

    async def _finalize(self, with_it: ExitStack, strategy: Any, model: Any, backend: Any) -> None:
        with_it.close()
        for handle in (strategy, model):
            if handle is None:
                continue
            try:
                await self._host.threads.end(handle.finalize)
            except LoadError as exc:
                _LOG.error("%s", exc)
        self._host.release(backend)


def _completion(name: str, returned: str) -> dict[str, Any]:
    """What a backend says of a model's configuration. Raises LoadError: what it gave is any text."""
    try:
        document = orjson.loads(returned)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise LoadError(f"the configuration of model '{name}' that its backend has set is no JSON object")
    return document


def _host_policy(instance: InstanceSpec, group: Config, policies: Mapping[str, Mapping[str, str]]) -> str:
    """The message that says where an instance's threads and memory are to be. That is the backend's to heed.

    As in Triton it is the policy that the group names, or else that of the device, with what the operator set for it.
    """
    of_device = f"gpu_{instance.device_id}" if instance.kind == "GPU" else "cpu"
    policy = group.host_policy or of_device
    return orjson.dumps({policy: policies.get(policy, {})}).decode()


def _groups(config: Config) -> list[Config]:
    """The group of each instance, in the order of ModelSpec.instances."""
    return [group for group in config.instance_group for _ in group.gpus or [0] for _ in range(group.count)]


async def _start(instances: list[NativeInstance], *, at_once: bool) -> None:
    """Initialise all instances; one after the other unless the backend has them initialised `at_once`."""
    if not at_once:
        for instance in instances:
            await instance.start()
        return
    results = await asyncio.gather(*(instance.start() for instance in instances), return_exceptions=True)
    for result in results:
        if result is not None:
            raise result
