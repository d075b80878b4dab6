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
from pyruntime.runtime.native.libraries import explain, prepare
from pyruntime.runtime.native.process import prepare_process
from pyruntime.runtime.observe.native_families import Snapshot
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.native")

EXTENSION = "pyruntime.runtime.native._triton"
_MISSING = (
    "model '{model}' needs {what}, and this installation of pyruntime was built without native "
    "backends: install a C++ compiler and the headers of Python (Debian and Ubuntu: apt-get install g++ python3-dev), "
    "and then pyruntime again"
)
_BROKEN = (
    "model '{model}' needs {what}, and this installation of pyruntime cannot load what runs native backends: {reason}"
)


@dataclass(slots=True, eq=False)
class _Loaded:
    """A backend, or the one that is being loaded; `users` are how many models count on it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    backend: _triton.Backend | None = None
    users: int = 0


class NativeHost:
    """See the module. It costs nothing until the first native model loads."""

    def __init__(self, server: ModelServer, tasks: asyncio.TaskGroup, patience_s: float) -> None:
        """`patience_s` is how long a backend may take to end what it is to end, in seconds."""
        self._server = server
        self._patience_s = patience_s
        self._tasks = tasks
        self._native: ModuleType | None = None
        self._events: NativeEvents | None = None
        self._threads: NativeThreads | None = None
        self._stacks: NativeStacks | None = None
        self._calls: NativeCalls | None = None
        self._loaded: dict[str, _Loaded] = {}
        # Which levels native code is to log, and its verbose level, as _triton.set_log has them.
        self._log = (0, 0)

    @property
    def native(self) -> ModuleType:
        """The extension; there is one after `begin`, and so once a backend was loaded."""
        assert self._native is not None  # who asks has seen to it
        return self._native

    @property
    def threads(self) -> NativeThreads:
        """Threads that may wait for backends."""
        assert self._threads is not None  # made with the extension
        return self._threads

    @property
    def stacks(self) -> NativeStacks:
        """Who answers `pyruntime stack`."""
        assert self._stacks is not None  # made with the extension
        return self._stacks

    def adjust_log(self, settings: ServerSettings) -> None:
        """Have native code log what `settings` say, from now on: what is not to be written is then not made either."""
        self._log = (settings.log_error | settings.log_warning << 1 | settings.log_info << 2, settings.log_verbose)
        if self._native is not None:
            self._native.set_log(*self._log)

    async def load(self, name: str, path: str, model: str, config: bytes, preload: list[str]) -> _triton.Backend:
        """The backend whose library is at `path`, initialised; `config` is what it is to know of the command line.

        Raises LoadError for `model`. Whoever gets it gives it back to `unload`.
        """
        self.begin(f"the native backend '{name}'", model)
        loaded = self._loaded.setdefault(path, _Loaded())
        async with loaded.lock:
            # For each model anew: its libraries may be others than those of the model that came first.
            await asyncio.to_thread(prepare, path, model=model, preload=preload)
            if loaded.backend is None:
                backend = self.native.Backend(name, path, os.path.dirname(path), config.decode())
                try:
                    await self.threads.run(backend.open)
                except LoadError as exc:
                    raise LoadError(explain(str(exc), path, model), exc.code) from exc
                await self.threads.run(backend.initialize, undo=backend.finalize)
                loaded.backend = backend
            loaded.users += 1
            return loaded.backend

    def release(self, backend: object) -> None:
        """A model does not count on this backend any more. Like Triton, it stays: the next model finds it at once."""
        for loaded in self._loaded.values():
            if loaded.backend is backend:
                loaded.users -= 1

    def settle(self) -> None:
        """Have that told now of which one hears late: what native threads have sent to clients themselves."""
        if self._events is not None:
            self._events.settle()

    def hurry(self) -> None:
        """Have all of it told at once from now on."""
        if self._native is not None:
            self._native.set_hurried(True)

    def metrics(self) -> Snapshot:
        """The metrics that backends have made: see _triton.pyi."""
        return self._native.metrics() if self._native is not None else []

    async def close(self) -> None:
        """Finalise all backends that no model uses any more, and listen no longer."""
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
        """Bring the extension in, for `what` a model needs. Raises LoadError where there is none."""
        if self._native is not None:
            return
        try:
            native = importlib.import_module(EXTENSION)
        except ModuleNotFoundError as exc:
            raise LoadError(_MISSING.format(what=what, model=model)) from exc
        except ImportError as exc:
            raise LoadError(_BROKEN.format(what=what, model=model, reason=exc)) from exc
        self._stacks = NativeStacks()
        self._threads = NativeThreads(native.NativeError, self._tasks, self._patience_s)
        self._calls = NativeCalls(self._server, native.accept_calls)
        self._events = NativeEvents(native, self._calls.call)
        self._events.begin()
        native.set_log(*self._log)
        # What kills a backend kills the server: it is to say so, and where its threads were.
        faulthandler.enable()
        prepare_process(native)
        self._native = native


def backend_config(cmdline: dict[str, str]) -> bytes:
    """What TRITONBACKEND_BackendConfig gives out: every value is text."""
    return orjson.dumps({"cmdline": cmdline})
