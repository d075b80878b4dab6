# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the program that executes a model: its own model.py, or a backend that several models share.

Opens no files. The first folder that has the program wins: `<model>/<version>`, `<model>`, then `<directory>/<backend>`
for every backend directory, the user's before ours. Model folders are searched for a library only: a `model.py` there
is a model, not a backend.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pyruntime.runtime.config.backends import FORMATS
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.instances.stub.execution_timer import PARAMETER as EXECUTION_TIMEOUT
from pyruntime.runtime.repository.paths import path_below
from pyruntime.runtime.suggestions import similar
from pyruntime.utils.errors import ConfigError, LoadError

# The Python-based backends that come with pyruntime.
OUR_BACKENDS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "backends")

PYTHON_FILENAME = "model.py"
# The values of `runtime` that select the Python backend itself.
_PYTHON_RUNTIMES = ("", "libtriton_python.so", PYTHON_FILENAME)

# The process of a native backend: the server's, as in Triton, or a stub, so that a crash affects one instance only, and
# backends that cannot share a process can be used together.
EXECUTION_MODE = "EXECUTION_MODE"
IN_PROCESS = "in_process"
PROCESS = "process"


BackendKind = Literal["python", "python_based", "native", "ensemble"]


@dataclass(frozen=True, slots=True)
class Backend:
    """The program that executes a model. `path` is the file: a model.py for both kinds of Python, else a library.

    An ensemble has none: it is executed by the models of its steps.

    `library` is the library that a Python-based backend runs in its own process, or "".
    """

    name: str
    kind: BackendKind
    path: str
    library: str = ""

    @property
    def field_set(self) -> str:
        """The backend as one of BACKENDS in config/backend_fields.py, which tells the fields that it acts on."""
        if self.kind != "python_based":
            return self.kind
        folder, name = os.path.split(os.path.dirname(self.path))
        return name if folder == OUR_BACKENDS else "python"


def find_backend(spec: ModelSpec, model_dir: str, version: int, backend_directories: Sequence[str]) -> Backend:
    """The backend of one version of a model, by `backend` and `runtime` of its configuration.

    Raises LoadError if there is none, if a name leads out of its folder, or if the execution mode of a library is
    unknown, or does not go with a limit for its executions.
    """
    if spec.ensemble is not None:
        return Backend("ensemble", "ensemble", "")
    version_dir = os.path.join(model_dir, str(version))
    if spec.backend == "python" and spec.runtime in _PYTHON_RUNTIMES:
        return _own_model(version_dir, spec.default_model_filename or PYTHON_FILENAME)
    shared = [_inside(directory, spec.backend, "backend name") for directory in backend_directories]
    found = _search(spec, [version_dir, model_dir], shared)
    mode = spec.parameters.get(EXECUTION_MODE, IN_PROCESS)
    if found.kind == "native" and mode == IN_PROCESS and EXECUTION_TIMEOUT in spec.parameters:
        raise ConfigError(
            f"model '{spec.name}' has the parameter {EXECUTION_TIMEOUT}, and its backend '{spec.backend}' is executed "
            f"by threads of the server, which cannot be ended: give it the parameter {EXECUTION_MODE} '{PROCESS}' too"
        )
    if found.kind != "native" or mode == IN_PROCESS:
        return found
    if mode != PROCESS:
        raise ConfigError(
            f"model '{spec.name}' has the parameter {EXECUTION_MODE} '{mode}', which must be '{IN_PROCESS}' or "
            f"'{PROCESS}'"
        )
    # Our own backend, in the last of the directories, loads the library in a stub.
    host = os.path.join(os.path.abspath(backend_directories[-1]), "native", PYTHON_FILENAME)
    return Backend(spec.backend, "python_based", host, library=found.path)


def _own_model(version_dir: str, filename: str) -> Backend:
    path = _inside(version_dir, filename, "default model filename")
    if not os.path.isfile(path):
        raise LoadError(f"Python model file not found in '{path}'")
    return Backend("python", "python", path)


def _search(spec: ModelSpec, own: list[str], shared: list[str]) -> Backend:
    library = spec.runtime or f"libtriton_{spec.backend}.so"
    for folder in [*own, *shared]:
        if spec.runtime != PYTHON_FILENAME:
            path = _inside(folder, library, "backend library name")
            if os.path.isfile(path):
                return Backend(spec.backend, "native", path)
        if folder in shared and spec.runtime in ("", PYTHON_FILENAME):
            path = os.path.join(folder, PYTHON_FILENAME)
            if os.path.isfile(path):
                return Backend(spec.backend, "python_based", path)
    if spec.runtime:
        raise ConfigError(f"unable to find backend library '{spec.runtime}' for model '{spec.name}'")
    raise ConfigError(
        f"unable to find backend library for backend '{spec.backend}',"
        f" try specifying runtime on the model configuration.{_advice(spec, own[0], library)}"
        f"{_similar(spec.backend, shared)}"
    )


def _advice(spec: ModelSpec, version_dir: str, library: str) -> str:
    """What to do about a missing library, for a model whose file says which backend it takes; "" for others."""
    filename = spec.default_model_filename
    is_known = any((each.filename, each.backend) == (filename, spec.backend) for each in FORMATS)
    if not is_known or not os.path.exists(os.path.join(version_dir, filename)):
        return ""
    return (
        f" The model's file is '{os.path.basename(version_dir)}/{filename}', which the backend '{spec.backend}' serves:"
        f" put its library, {library}, into the folder '{spec.backend}' of a backend directory (--backend-directory)"
    )


def _similar(backend: str, shared: list[str]) -> str:
    """A question after backends with almost this name, or ""."""
    known = {"python"}
    for folder in map(os.path.dirname, shared):
        with suppress(OSError):
            known |= {name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))}
    near = similar(backend, sorted(known))
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def _inside(folder: str, name: str, what: str) -> str:
    """The path of `name` below a folder: see paths.py."""
    folder = os.path.abspath(folder)
    path = path_below(folder, name)
    if path is None or path == folder:
        raise ConfigError(f"{what} '{name}' escapes backend directory")
    return path
