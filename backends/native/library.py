# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A native backend in this process and its model, which the first step of the stub loads.

`location` is the location in messages to the stub (see utils/messages.py), with `library`, the path of the backend;
`command_line`, the backend's settings of the command line, as JSON; `preload`, a list of libraries to load first, as
JSON; `memory_pools`, the size of the pool of pinned memory and pairs of GPUs and the sizes of theirs, as JSON;
`host_policies`, as JSON; and `log_verbose`.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from pyruntime.backends.native import arguments
from pyruntime.runtime.native.libraries import explain, libraries_of, prepare
from pyruntime.runtime.native.linker import read_library
from pyruntime.utils.errors import Code, LoadError

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

EXTENSION = "pyruntime.runtime.native._triton"
READY = "TRITONBACKEND_ModelInstanceReady"
_MISSING = (
    "model '{model}' runs a native backend in a process, and that process has no native backends: {reason}. It takes "
    "CPython 3.11 or newer and a pyruntime that was built with a C++ compiler"
)
_NO_PROTOBUF = (
    "the backend of model '{model}' completes its configuration, for which the model's Python environment needs the "
    "packages protobuf and orjson: {reason}"
)
# The bits of all levels of TRITONSERVER_LogLevel except verbose.
_ALL_LEVELS = 7


def import_extension(model: str) -> ModuleType:
    """Import the extension, which backends see as the server's library. Raises LoadError for `model`."""
    try:
        return importlib.import_module(EXTENSION)
    except ImportError as exc:
        raise LoadError(_MISSING.format(model=model, reason=exc)) from exc


class NativeModel:
    """One model, from the load of its backend's library to its end. All methods block, and raise LoadError."""

    def __init__(self, native: ModuleType, location: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """Load the library and initialise the backend."""
        self.native = native
        self.handle: Any = None
        self._location = location
        name, path = config["name"], location["library"]
        native.set_memory_pools(*arguments.memory_pools(location))
        native.set_log(_ALL_LEVELS, int(location["log_verbose"]))
        preload = json.loads(location["preload"])
        loaded = libraries_of(path, preload)
        prepare(path, model=name, preload=preload)
        self._backend = native.Backend(
            arguments.backend_name(config, path), path, os.path.dirname(path), location["command_line"]
        )
        try:
            self._call(self._backend.open)
        except LoadError as exc:
            raise LoadError(explain(str(exc), path, name), exc.code) from exc
        loaded.keep(pb_utils.Logger.log_warn)
        self._call(self._backend.initialize)

    @property
    def is_asked(self) -> bool:
        """Whether the backend can be asked if an instance is ready."""
        _, symbols = read_library(self._location["library"])
        return READY in symbols.exported

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Initialise the model. Returns the configuration that the backend has completed, None if it has not."""
        completed = self._initialize(config, completes=True)
        return json.loads(completed) if completed else None

    def configure(self, config: Mapping[str, Any], text: str) -> None:
        """Set the final configuration, and initialise the model if necessary. `text` is `config` as JSON."""
        if self.handle is None:
            self._initialize(config, completes=False)
        self.handle.configure(
            text,
            arguments.is_decoupled(config),
            arguments.output_names(config),
            arguments.is_iterative(config),
            arguments.states(config),
        )

    def instance(self, owner: object, config: Mapping[str, Any], args: Mapping[str, str]) -> _triton.Instance:
        """Create an instance, which is not initialised yet."""
        policies = json.loads(self._location["host_policies"])
        found = arguments.instance(config, args, policies, self._location.get("gpu", ""))
        handle: _triton.Instance = self.native.Instance(self.handle, owner, *found)
        return handle

    def begin(self, instance: _triton.Instance) -> None:
        """Initialise an instance."""
        self._call(instance.initialize)

    def memory_usage(self, instance: _triton.Instance) -> list[tuple[int, int, int]]:
        """The memory that the backend has reported for the model and the instance: kinds, devices, bytes."""
        return [*self.handle.memory_usage, *instance.memory_usage]

    def finalize(self, instance: _triton.Instance | None) -> list[str]:
        """Finalise the instance, if there is one, the model and the backend. Returns their errors."""
        problems = []
        for step in (instance, self.handle, self._backend):
            if step is not None:
                try:
                    self._call(step.finalize)
                except LoadError as exc:
                    problems.append(str(exc))
        return problems

    def _initialize(self, config: Mapping[str, Any], *, completes: bool) -> str:
        """Initialise the model. Returns the configuration that the backend has completed, as JSON, or ""."""
        completed = ""
        complete: Callable[[str], str | tuple[int, str]] | None = None

        def set_config(returned: str) -> str | tuple[int, str]:
            nonlocal complete, completed
            try:
                complete = complete or _completion(config)
            except LoadError as exc:
                return int(exc.code), str(exc)
            result = complete(returned)
            if isinstance(result, str):
                completed = result
            return result

        self.handle = self.native.Model(
            self._backend,
            config["name"],
            int(self._location["version"]),
            self._location["model_dir"],
            arguments.as_json(config),
            completes,
            arguments.is_decoupled(config),
            arguments.output_names(config),
            arguments.is_iterative(config),
        )
        self._call(partial(self.handle.initialize, set_config))
        return completed

    def _call(self, step: Callable[[], None]) -> None:
        try:
            step()
        except self.native.NativeError as exc:
            raise LoadError(exc.args[1], Code(exc.args[0])) from exc


def _completion(config: Mapping[str, Any]) -> Callable[[str], str | tuple[int, str]]:
    """What merges the configurations that a backend sets into `config`. Raises LoadError."""
    try:
        from pyruntime.runtime.config.completion import Completion  # few backends complete it, and protobuf is large
    except ImportError as exc:
        raise LoadError(_NO_PROTOBUF.format(model=config["name"], reason=exc)) from exc
    return Completion.of_rendered(config)
