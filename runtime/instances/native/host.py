# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The native backends of this process: each library is loaded once, for all models that use it."""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import logging
import os
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

import orjson

from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.native.calls import NativeCalls
from pyruntime.runtime.instances.native.events import NativeEvents
from pyruntime.runtime.instances.native.stacks import NativeStacks
from pyruntime.runtime.instances.native.threads import NativeThreads
from pyruntime.runtime.native.process import prepare_process
from pyruntime.runtime.observe.native_families import Snapshot
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.native")

EXTENSION = "pyruntime.runtime.native._triton"
_BROKEN = (
    "model '{model}' needs {what}, and this installation of pyruntime cannot load what runs native backends: {reason}"
)


@dataclass(slots=True, eq=False)
class _Loaded:
    """A backend, which may still be loading; `users` is the number of models that use it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    backend: _triton.Backend | None = None
    users: int = 0


class NativeHost:
    """See the module. It costs nothing until the first native model loads."""

    def __init__(self, server: ModelServer, tasks: asyncio.TaskGroup, settings: ServerSettings) -> None:
        self._server = server
        self._settings = settings
        self._tasks = tasks
        self._native: ModuleType | None = None
        self._events: NativeEvents | None = None
        self._threads: NativeThreads | None = None
        self._stacks: NativeStacks | None = None
        self._calls: NativeCalls | None = None
        self._loaded: dict[str, _Loaded] = {}
        # The levels that native code logs, and its verbose level: the arguments of _triton.set_log.
        self._log = (0, 0)

    @property
    def native(self) -> ModuleType:
        """The extension. It is there after `begin`, which `load` calls."""
        assert self._native is not None  # the caller has called `begin`
        return self._native

    @property
    def threads(self) -> NativeThreads:
        """The threads that wait for backends."""
        assert self._threads is not None  # made with the extension
        return self._threads

    @property
    def stacks(self) -> NativeStacks:
        """The answers to `pyruntime stack`."""
        assert self._stacks is not None  # made with the extension
        return self._stacks

    def adjust_log(self, settings: ServerSettings) -> None:
        """Have native code log as `settings` say, from now on. It does not even make records of other levels."""
        self._log = (settings.log_error | settings.log_warning << 1 | settings.log_info << 2, settings.log_verbose)
        if self._native is not None:
            self._native.set_log(*self._log)

    async def load(self, name: str, path: str, model: str, config: bytes, preload: list[str]) -> _triton.Backend:
        """The backend whose library is at `path`, initialised; `config` are its settings of the command line, as JSON.

        Raises LoadError for `model`. The caller gives the backend back with `release`.
        """
        # Here, because a server without native backends starts faster without it.
        from pyruntime.runtime.native.libraries import explain, libraries_of, prepare

        self.begin(f"the native backend '{name}'", model)
        loaded = self._loaded.setdefault(path, _Loaded())
        async with loaded.lock:
            # For each model again: it may preload other libraries than the first model.
            libraries = await asyncio.to_thread(libraries_of, path, preload)
            await asyncio.to_thread(prepare, path, model=model, preload=preload)
            if loaded.backend is None:
                backend = self.native.Backend(name, path, os.path.dirname(path), config.decode())
                try:
                    await self.threads.run(backend.open)
                except LoadError as exc:
                    raise LoadError(explain(str(exc), path, model), exc.code) from exc
                await asyncio.to_thread(libraries.keep, _LOG.warning)
                await self.threads.run(backend.initialize, undo=backend.finalize)
                loaded.backend = backend
            else:
                await asyncio.to_thread(libraries.keep, _LOG.warning)  # what the model preloads
            loaded.users += 1
            return loaded.backend

    def release(self, backend: object) -> None:
        """A model no longer uses this backend. As in Triton, the backend stays loaded for the next model."""
        for loaded in self._loaded.values():
            if loaded.backend is backend:
                loaded.users -= 1

    def settle(self) -> None:
        """Handle all events now: those of responses that native threads send themselves are otherwise handled late."""
        if self._events is not None:
            self._events.settle()

    def hurry(self) -> None:
        """Have every event wake the event loop at once, from now on."""
        if self._native is not None:
            self._native.set_hurried(True)

    def pinned_memory(self) -> tuple[int, int]:
        """The size of the pool of pinned memory in this process and what of it is in use, in bytes."""
        return self._native.pinned_memory() if self._native is not None else (0, 0)

    def metrics(self) -> Snapshot:
        """The metrics that backends have created: see _triton.pyi."""
        return self._native.metrics() if self._native is not None else []

    async def close(self) -> None:
        """Finalise all backends that no model uses any more, and stop to handle events."""
        if self._threads is None or self._events is None or self._calls is None:
            return
        self._calls.close()
        for loaded in self._loaded.values():
            if loaded.backend is not None and not loaded.users:
                try:
                    await self._threads.end(loaded.backend.finalize)
                except LoadError as exc:
                    _LOG.error("a backend failed to finalize: %s", exc)
        self._events.end()
        self.stacks.close()

    def begin(self, what: str, model: str) -> None:
        """Import the extension, for `what` a model needs. Raises LoadError if that is not possible."""
        if self._native is not None:
            return
        try:
            native = importlib.import_module(EXTENSION)
        except ImportError as exc:
            raise LoadError(_BROKEN.format(what=what, model=model, reason=exc)) from exc
        settings = self._settings
        self._stacks = NativeStacks()
        self._threads = NativeThreads(native.NativeError, self._tasks, settings.drain_s)
        self._calls = NativeCalls(self._server, native.accept_calls)
        self._events = NativeEvents(native, self._calls.call)
        self._events.begin()
        native.set_log(*self._log)
        native.set_memory_pools(settings.pinned_memory_pool_bytes, dict(settings.cuda_memory_pool_bytes))
        # A crash of a backend is a crash of the server: have it print the stacks of all threads.
        faulthandler.enable()
        prepare_process(native)
        self._native = native


def backend_config(cmdline: dict[str, str]) -> bytes:
    """The configuration that TRITONBACKEND_BackendConfig returns: every value is text."""
    return orjson.dumps({"cmdline": cmdline})
