# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a custom library into this process, and runs one instance of its model.

Failures are LoadErrors and ExecuteErrors with the messages of Triton's custom backend.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_void_p
from typing import Any

import triton_python_backend_utils as pb_utils

from pyruntime.backends.custom import abi
from pyruntime.runtime.native.libraries import explain_missing, provide
from pyruntime.utils.errors import LoadError, PyruntimeError
from pyruntime.utils.private_libraries import private_libraries

NO_ERROR_STRING = "<no error string>"

_dl = ctypes.CDLL(None)
_dl.dlopen.restype, _dl.dlopen.argtypes = c_void_p, [c_char_p, c_int]
_dl.dlsym.restype, _dl.dlsym.argtypes = c_void_p, [c_void_p, c_char_p]
_dl.dlerror.restype, _dl.dlerror.argtypes = c_char_p, []


class ExecuteError(PyruntimeError):
    """The library failed to execute a batch. The message is for the clients."""


class CustomLibrary:
    """The functions of a library. It is never unloaded."""

    def __init__(self, path: str) -> None:
        """Raises LoadError."""
        try:
            provide(path)
        except OSError as exc:
            raise _unloadable(str(exc), path) from exc
        # Not ctypes.CDLL, which resolves all symbols at once: libraries may lack functions that they never call.
        with private_libraries([os.path.dirname(path)], pb_utils.Logger.log_warn):
            self._handle = _dl.dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_LOCAL)
        if not self._handle:
            raise _unloadable(_last_error(), path)
        self.initialize = abi.Initialize(self._find("CustomInitialize"))
        self.finalize = abi.Finalize(self._find("CustomFinalize"))
        self.error_string = abi.ErrorString(self._find("CustomErrorString"))
        version = _dl.dlsym(self._handle, b"CustomVersion")
        self.version: int = abi.Version(version)() if version else 1
        if self.version not in abi.EXECUTE:
            raise LoadError(f"unable to load custom library: invalid custom version {self.version} is provided")
        self.execute = abi.Execute[self.version](self._find(abi.EXECUTE[self.version]))

    def _find(self, name: str) -> int:
        address: int | None = _dl.dlsym(self._handle, name.encode())
        if not address:
            raise LoadError(f"unable to find '{name}' entrypoint in custom library: {_last_error()}")
        return address


class CustomInstance:
    """One instance of a model, from CustomInitialize to CustomFinalize. Must be used by one thread only."""

    def __init__(
        self,
        library: CustomLibrary,
        model_name: str,
        instance_name: str,
        config: bytes,
        gpu_device_id: int,
        server_parameters: list[str],
    ) -> None:
        """Create the instance in the library. Raises LoadError."""
        self.name = instance_name
        self._library = library
        self._context = c_void_p()
        parameters = (c_char_p * len(server_parameters))(*map(os.fsencode, server_parameters))
        # Kept alive, because libraries may keep pointers into it.
        self._data = abi.CustomInitializeData(
            instance_name.encode(), config, len(config), gpu_device_id, len(parameters), parameters
        )
        error = library.initialize(byref(self._data), byref(self._context))
        if not self._context:
            raise LoadError(f"initialize error for '{model_name}': failed to create instance, error code: {error}")
        if error:
            reason = f"initialize error for '{model_name}': {self.describe(error)}"
            self.close()
            raise LoadError(reason)

    def __repr__(self) -> str:
        return f"<CustomInstance {self.name}>"

    @property
    def version(self) -> int:
        """The version of the interface."""
        return self._library.version

    def describe(self, error: int) -> str:
        """An error code with the library's message: `(5) no such image`."""
        text = self._library.error_string(self._context, error)
        return f"({error}) {NO_ERROR_STRING if text is None else text.decode(errors='replace')}"

    def execute(self, payloads: Any, get_input: Any, get_output: Any) -> None:
        """Execute an array of CustomPayload. Raises ExecuteError if it fails as a whole."""
        error = self._library.execute(self._context, len(payloads), payloads, get_input, get_output)
        if error:
            raise ExecuteError(f"execute error for '{self.name}': {self.describe(error)}")

    def close(self) -> str:
        """End the instance. Returns the error of the library, "" for none. Idempotent."""
        context, self._context = self._context, c_void_p()
        error = self._library.finalize(context) if context else 0
        # Without the library's message, which needs a context.
        return f"finalize error for '{self.name}': error code {error}" if error else ""


def _unloadable(reason: str, path: str) -> LoadError:
    advice = explain_missing(reason, path)
    return LoadError(f"unable to load custom library: {reason}" + (f": {advice}" if advice else ""))


def _last_error() -> str:
    text: bytes | None = _dl.dlerror()
    return "" if text is None else text.decode(errors="replace")
