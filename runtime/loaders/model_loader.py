# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the versions of one model after another, each by the loader for its kind of backend.

This module does what all kinds need: versions of a model load in parallel, a failed load is retried, and the remains of
a failed load are undone. A new kind of backend needs a module with its loader, and a case in `create_loader`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import cache as cached
from typing import TypeVar, assert_never

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.validate import validate_devices
from pyruntime.runtime.inference.model_version import Exchange, ModelVersion
from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.loaders.python import PythonLoader
from pyruntime.runtime.loaders.version_loader import VersionFactory, VersionLoader, final_config
from pyruntime.runtime.repository.backends import Backend, BackendKind, find_backend
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError, OutOfMemoryError

_LOG = logging.getLogger("pyruntime.repository")

T = TypeVar("T")


def create_loader(
    settings: ServerSettings,
    backend_directories: Sequence[str],
    tasks: asyncio.TaskGroup,
    on_lost: Callable[[ModelVersion, str], None],
    server: ModelServer,
    native_host: NativeHost,
    cache: ResponseCache | None,
    find: Callable[[str, int], ModelVersion],
) -> ModelLoader:
    """The loader of a server; `cache` is the server's, if it has one. For `on_lost` see VersionFactory.

    `find` returns the version that serves a model, and raises InferenceError.
    """
    directory = backend_directories[0]
    factory = VersionFactory(settings, cache, on_lost)
    python = PythonLoader(settings, directory, tasks, server, factory)

    # The other loaders are imported with the first model that needs them, so that a server without such models starts
    # faster.
    @cached
    def loader_of(kind: BackendKind) -> VersionLoader:
        match kind:
            case "python" | "python_based":
                return python
            case "native":
                from pyruntime.runtime.loaders.native import NativeLoader

                return NativeLoader(settings, directory, native_host, factory)
            case "ensemble":
                from pyruntime.runtime.loaders.ensemble import EnsembleLoader

                return EnsembleLoader(find, server, factory)
            case _ as never:
                assert_never(never)

    return ModelLoader(backend_directories, loader_of, settings.model_load_retry_count)


class ModelLoader:
    """See the module. All loads of a server share it; it has no state of a load."""

    def __init__(
        self, backend_directories: Sequence[str], loader_of: Callable[[BackendKind], VersionLoader], retry_count: int
    ) -> None:
        self._backend_directories = backend_directories
        self._loader_of = loader_of
        self._retry_count = retry_count

    def backend_of(self, draft: Draft, version: int) -> Backend:
        """The backend of a version. Raises LoadError."""
        return find_backend(draft.identity, draft.folder.path, version, self._backend_directories)

    async def load(
        self,
        draft: Draft,
        versions: Iterable[int],
        completed: asyncio.Future[Config],
        report: Callable[[int, ModelVersion | LoadError], None],
    ) -> None:
        """Load versions of a model in parallel, and report each as soon as it is ready or has failed.

        The newest one sets `completed`, the model's final configuration, for all; if it is not among them, `completed`
        must be set. The caller must stop each version that was reported ready. Cancelling this kills all other stubs.
        """

        async def load_version(version: int) -> None:
            try:
                model = await self._try_version(draft, version, completed)
            except (LoadError, OutOfMemoryError) as exc:
                report(version, _load_error(exc))
            else:
                report(version, model)

        async with asyncio.TaskGroup() as tasks:
            for version in versions:
                tasks.create_task(load_version(version), name=f"load {draft.folder.name} {version}")

    def regrouped(self, draft: Draft, model: ModelVersion, config: Config) -> Config:
        """`config`, the final configuration of a version that serves, with the instance groups of `draft`.

        Raises LoadError.
        """
        return self._loader_of(self.backend_of(draft, model.version).kind).regrouped(draft, model, config)

    async def regroup(
        self,
        draft: Draft,
        models: Iterable[ModelVersion],
        config: Config,
        report: Callable[[int, Exchange | LoadError], None],
    ) -> None:
        """Start the instances that versions which serve lack for the instance groups of `config`, all in parallel.

        Each version is reported as soon as they are ready, or one of them has failed. The caller must exchange the
        instances of a version, or stop the new ones. Cancelling this kills those that are not reported.
        """

        async def regroup_version(model: ModelVersion) -> None:
            try:
                exchange = await self._tried(
                    draft, model.version, lambda: self._regroup(draft, model, config), lambda: False
                )
            except (LoadError, OutOfMemoryError) as exc:
                report(model.version, _load_error(exc))
            else:
                report(model.version, exchange)

        async with asyncio.TaskGroup() as tasks:
            for model in models:
                tasks.create_task(regroup_version(model), name=f"regroup {draft.folder.name} {model.version}")

    async def _tried(
        self, draft: Draft, version: int, step: Callable[[], Awaitable[T]], is_hopeless: Callable[[], bool]
    ) -> T:
        """The result of a step, which is retried as often as the operator allows. Raises the last error."""
        tries_left = self._retry_count
        while True:
            try:
                return await step()
            except (LoadError, OutOfMemoryError) as exc:
                if not tries_left or is_hopeless():
                    raise
                tries_left -= 1
                reason = str(exc)
            name = draft.folder.name
            _LOG.warning("failed to load '%s' version %d, which is tried again: %s", name, version, reason)

    async def _try_version(self, draft: Draft, version: int, completed: asyncio.Future[Config]) -> ModelVersion:
        """Load a version; retry as often as the operator allows. Raises the last error."""

        def is_hopeless() -> bool:
            # Without the configuration that the newest version failed to complete, no version can load.
            return completed.done() and completed.exception() is not None

        try:
            return await self._tried(draft, version, lambda: self._load_version(draft, version, completed), is_hopeless)
        except BaseException as exc:
            if version == draft.newest and not completed.done():
                completed.set_exception(_load_error(exc))
                completed.exception()  # marks the exception as retrieved: this may be the only version
            raise

    async def _load_version(self, draft: Draft, version: int, completed: asyncio.Future[Config]) -> ModelVersion:
        _check_devices(draft)
        backend = self.backend_of(draft, version)
        begun = time.monotonic()
        async with AsyncExitStack() as undo:
            model, instances = await self._loader_of(backend.kind).load(draft, version, backend, completed, undo)
            undo.pop_all()
        _note_placement(draft, model)
        model.serve(instances, time.monotonic() - begun)
        return model

    async def _regroup(self, draft: Draft, model: ModelVersion, config: Config) -> Exchange:
        _check_devices(draft)
        backend = self.backend_of(draft, model.version)
        final_config(config, backend, draft.gpus)
        async with AsyncExitStack() as undo:
            exchange = await self._loader_of(backend.kind).regroup(draft, model, backend, config, undo)
            undo.pop_all()
        _note_placement(draft, model)
        return exchange


def _check_devices(draft: Draft) -> None:
    """Raise LoadError if the instances of a model cannot be on the devices that its configuration says."""
    validate_devices(draft.config, draft.gpus.numbers, draft.gpus.capability_min)


def _note_placement(draft: Draft, model: ModelVersion) -> None:
    """Say why a version is on its GPUs, if the server chose them."""
    model.placement = reason = draft.placement.reason
    if reason:
        name = draft.folder.name
        _LOG.info("'%s' version %d is %s; its configuration names no GPUs", name, model.version, reason)


def _load_error(exc: BaseException) -> LoadError:
    """Why something could not be loaded, without the traceback."""
    if isinstance(exc, LoadError):
        return LoadError(str(exc), exc.code, was_logged=exc.was_logged, excerpt=exc.excerpt)
    return LoadError(str(exc))
