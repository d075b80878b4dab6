# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of loaders, and their common parts: the final configuration, and the model version made from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Protocol

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.config.backend_fields import check_backend_fields, find_unused, is_ours
from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import InstanceSpec, ModelSpec
from pyruntime.runtime.config.unsupported import unsupported_features
from pyruntime.runtime.config.validate import validate
from pyruntime.runtime.execution.executor import Executor
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.gpus.available import NO_GPUS, AvailableGpus
from pyruntime.runtime.inference.model_version import Exchange, ModelVersion, nothing_to_finalize
from pyruntime.runtime.loaders.model_files import read_labels
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.model_families import new_statistics
from pyruntime.runtime.observe.statistics import MemoryUsage, ModelStatistics
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.scheduling.batcher import Strategy
from pyruntime.runtime.scheduling.resource_grants import ResourceGrants
from pyruntime.runtime.settings import ServerSettings

_LOG = logging.getLogger("pyruntime.repository")


# A version, and its instances, which are not added to it yet.
LoadedVersion = tuple[ModelVersion, Sequence[Executor]]


class VersionLoader(Protocol):
    """Loads versions of models that one kind of backend executes."""

    async def load(
        self, draft: Draft, version: int, backend: Backend, completed: asyncio.Future[Config], undo: AsyncExitStack
    ) -> LoadedVersion:
        """Load a version, and wait until its instances are ready.

        The newest version sets `completed`, the final configuration of the model, unless that is set; all others wait
        for it. The loader pushes onto `undo` all that must end if the version is not loaded; the caller unwinds it on
        an error and on cancellation. Raises LoadError and OutOfMemoryError.
        """

    def regrouped(self, draft: Draft, model: ModelVersion, config: Config) -> Config:
        """`config`, the final configuration of a version that serves, with the instance groups of `draft`."""

    async def regroup(
        self, draft: Draft, model: ModelVersion, backend: Backend, config: Config, undo: AsyncExitStack
    ) -> Exchange:
        """Start the instances that a version lacks for the instance groups of `config`, and wait until they are ready.

        The loader pushes onto `undo` all that must end if they are not used. Raises LoadError and OutOfMemoryError.
        """


class VersionFactory:
    """Makes the parts of a version that are the same for all loaders.

    `on_lost` is called with a version whose instances are all down, and the reason; with "" when one is ready again.
    `grants` are None in a server without a rate limiter.
    """

    def __init__(
        self, settings: ServerSettings, cache: ResponseCache | None, on_lost: Callable[[ModelVersion, str], None]
    ) -> None:
        self.grants = ResourceGrants(settings.rate_limit_resources) if settings.limits_rate else None
        self._settings = settings
        self._cache = cache
        self._on_lost = on_lost

    def memory(self, draft: Draft) -> RequestMemory:
        """The request memory of one version. Raises OutOfMemoryError."""
        settings = self._settings.python_backend
        soon = asyncio.get_running_loop().call_soon
        return RequestMemory(draft.folder.name, settings.shm_default_byte_size, settings.shm_growth_byte_size, soon)

    def version(
        self,
        spec: ModelSpec,
        version: int,
        memory: RequestMemory,
        strategy: Strategy[Job] | None = None,
        memory_usage: Callable[[], Iterable[MemoryUsage]] = tuple,
        finalize: Callable[[], Awaitable[None]] = nothing_to_finalize,
    ) -> ModelVersion:
        """A version without instances yet; `memory_usage` and `finalize` are as in ModelStatistics and ModelVersion."""
        cache = self._cache if spec.response_cache else None
        if spec.response_cache and cache is None:
            _LOG.warning("model '%s' asks for a response cache, and the server has none: see --cache-config", spec.name)
        if self.grants is None and any(each.needs or each.priority for each in spec.instances):
            _LOG.warning(
                "model '%s' has a rate_limiter, which has no effect in this server: see --rate-limit", spec.name
            )
        statistics = new_statistics(
            spec, version, self._settings.metrics_config, has_cache=cache is not None, memory_usage=memory_usage
        )
        return ModelVersion(spec, version, memory, self._on_lost, statistics, cache, strategy, finalize, self.grants)

    def statistics(self, model: ModelVersion, instance: InstanceSpec, gpus: AvailableGpus) -> ModelStatistics:
        """The statistics that an instance records its numbers in. As in Triton, metrics of GPUs have to be allowed."""
        if instance.kind != "GPU" or not self._settings.allow_gpu_metrics:
            return model.statistics
        return model.statistics.on_gpu(gpus.by_number(instance.device_id).uuid)


def limit(
    grants: ResourceGrants | None,
    model: ModelVersion,
    executors: Sequence[Executor],
    instances: Sequence[InstanceSpec],
    undo: AsyncExitStack,
) -> None:
    """Have new executors of a model execute only with the resources of their instances, if there is a rate limiter.

    `undo` ends that. Raises LoadError if there is too little of a resource.
    """
    if grants is not None:
        for executor, instance in zip(executors, instances, strict=True):
            undo.callback(grants.remove, executor)
            grants.add(executor, instance, model.spec.name)


def nothing_to_configure() -> None:
    """Configure nothing: a stub has got its configuration with its start, and an ensemble has no instance groups."""


def final_config(config: Config, backend: Backend, gpus: AvailableGpus = NO_GPUS) -> Config:
    """`config`, which the model's own code has completed. Raises LoadError if it is not valid."""
    validate(config, gpus.numbers, gpus.capability_min)
    check_backend_fields(config, backend.field_set)
    for sentence in unsupported_features(config, is_native=backend.kind == "native"):
        _LOG.warning("%s", sentence)
    for sentence in find_unused(config, backend.field_set):
        _LOG.log(logging.WARNING if is_ours(backend.field_set) else logging.INFO, "%s", sentence)
    return config


def final_spec(draft: Draft, config: Config) -> ModelSpec:
    """The spec of the final configuration, with the labels of its label files. Raises LoadError."""
    spec = model_spec(config)
    return replace(spec, labels=read_labels(draft.folder.path, spec.outputs.values()))


def regrouped_spec(model: ModelVersion, config: Config, names: Mapping[str, str]) -> ModelSpec:
    """The spec of a version with the instances of `config`. `names` are the names of those that have others there."""
    wanted = model_spec(config)
    instances = tuple(replace(each, name=names.get(each.name, each.name)) for each in wanted.instances)
    return replace(model.spec, instances=instances, json=wanted.json)
