# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the versions of one model after another, each by the loader for its kind of backend.

This module does what all kinds need: versions of a model load in parallel, a failed load is retried, and the remains of
a failed load are undone. A new kind of backend needs a module with its loader, and a row in `create_loader`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.validate import validate_devices
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.loaders.ensemble import EnsembleLoader
from pyruntime.runtime.loaders.native import NativeLoader
from pyruntime.runtime.loaders.python import PythonLoader
from pyruntime.runtime.loaders.version_loader import VersionFactory, VersionLoader
from pyruntime.runtime.repository.backends import Backend, BackendKind, find_backend
from pyruntime.runtime.repository.draft import GPUS, Draft
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, LoadError, OutOfMemoryError

_LOG = logging.getLogger("pyruntime.repository")


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
    loaders: dict[BackendKind, VersionLoader] = {
        "python": python,
        "python_based": python,
        "native": NativeLoader(settings, directory, native_host, factory),
        "ensemble": EnsembleLoader(find, server, factory),
    }
    return ModelLoader(backend_directories, loaders, settings.model_load_retry_count)


class ModelLoader:
    """See the module. All loads of a server share it; it has no state of a load."""

    def __init__(
        self, backend_directories: Sequence[str], loaders: Mapping[BackendKind, VersionLoader], retry_count: int
    ) -> None:
        self._backend_directories = backend_directories
        self._loaders = loaders
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

    async def _try_version(self, draft: Draft, version: int, completed: asyncio.Future[Config]) -> ModelVersion:
        """Load a version; retry as often as the operator allows. Raises the last error."""
        tries_left = self._retry_count
        try:
            while True:
                try:
                    return await self._load_version(draft, version, completed)
                except (LoadError, OutOfMemoryError) as exc:
                    # Without the configuration that the newest version failed to complete, no version can load.
                    if not tries_left or (completed.done() and completed.exception()):
                        raise
                    tries_left -= 1
                    reason = str(exc)
                name = draft.folder.name
                _LOG.warning("failed to load '%s' version %d, which is tried again: %s", name, version, reason)
        except BaseException as exc:
            if version == draft.newest and not completed.done():
                completed.set_exception(_load_error(exc))
                completed.exception()  # marks the exception as retrieved: this may be the only version
            raise

    async def _load_version(self, draft: Draft, version: int, completed: asyncio.Future[Config]) -> ModelVersion:
        validate_devices(draft.config, GPUS)
        backend = self.backend_of(draft, version)
        begun = time.monotonic()
        async with AsyncExitStack() as undo:
            model, instances = await self._loaders[backend.kind].load(draft, version, backend, completed, undo)
            undo.pop_all()
        model.serve(instances, time.monotonic() - begun)
        return model


def _load_error(exc: BaseException) -> LoadError:
    """Why something could not be loaded, without the traceback."""
    return LoadError(str(exc), exc.code if isinstance(exc, LoadError) else Code.INTERNAL)
