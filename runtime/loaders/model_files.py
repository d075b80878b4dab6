# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The files that a model's configuration names: labels of outputs, initial states of sequences, the environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyruntime.runtime.config.sequences import STATE_BYTES_MAX
from pyruntime.runtime.config.spec import ModelSpec, StateSpec, TensorSpec
from pyruntime.runtime.environments.forms import DEFAULT_ARCHIVE
from pyruntime.runtime.repository.paths import path_below
from pyruntime.utils.errors import ConfigError, LoadError

# A million labels of 60 bytes each; a classification has no more elements.
LABELS_BYTES_MAX = 64 << 20
# The folder of initial states, in the model's folder.
INITIAL_STATES_FOLDER = "initial_state"


def environment_path(parameter: str, backend_dir: str) -> str:
    """The path that names the environment of a model, "" if it runs in the server's own.

    That is its EXECUTION_ENV_PATH, else the archive that its Python-based backend, in `backend_dir`, has.
    """
    default = os.path.join(backend_dir, DEFAULT_ARCHIVE)
    return parameter or (default if backend_dir and os.path.isfile(default) else "")


def read_labels(folder: str, outputs: Iterable[TensorSpec]) -> dict[str, tuple[str, ...]]:
    """The labels of the outputs that name a label file in the model's folder. Raises LoadError.

    Invalid UTF-8 is decoded with "surrogateescape".
    """
    return {
        output.name: _read_labels(folder, output.name, output.label_filename)
        for output in outputs
        if output.label_filename
    }


def _read_labels(folder: str, output: str, filename: str) -> tuple[str, ...]:
    path = path_in(folder, filename, f"label_filename of output '{output}'")
    text = read_file(path, LABELS_BYTES_MAX + 1)
    if len(text) > LABELS_BYTES_MAX:
        raise LoadError(f"the labels in {path} have more than {LABELS_BYTES_MAX} bytes")
    # As in Triton, only a line feed ends a line.
    return tuple(text.decode(errors="surrogateescape").split("\n"))


def with_initial_states(spec: ModelSpec, folder: str) -> ModelSpec:
    """The spec with the initial states that are in files of the model's folder. Raises LoadError."""
    batching = spec.sequence_batching
    if batching is None or not any(state.data_file for state in batching.states):
        return spec
    states = tuple(
        _read_state(state, os.path.join(folder, INITIAL_STATES_FOLDER)) if state.data_file else state
        for state in batching.states
    )
    return replace(spec, sequence_batching=replace(batching, states=states))


def _read_state(state: StateSpec, folder: str) -> StateSpec:
    path = path_in(folder, state.data_file, f"data_file of the initial state of '{state.input_name}'")
    if state.datatype == "BYTES":
        # As in Triton, the backend gets the whole file, whatever it contains.
        data = read_file(path, STATE_BYTES_MAX + 1)
        if len(data) > STATE_BYTES_MAX:
            raise LoadError(f"the initial state in {path} has more than {STATE_BYTES_MAX} bytes")
        return replace(state, initial=data, size=len(data))
    # As in Triton, additional bytes are ignored.
    data = read_file(path, state.size)
    if len(data) < state.size:
        raise ConfigError(
            f"initial_state setting expects {state.size} bytes, but the data provided from {state.data_file}"
            f"only has {len(data)} bytes."
        )
    return replace(state, initial=data)


def path_in(folder: str, name: str, what: str) -> str:
    """The path of a file in `folder` that the configuration names in the field `what`. Raises ConfigError."""
    path = path_below(os.path.abspath(folder), name)
    if path is None:
        raise ConfigError(f"{what} is '{name}', which is outside of {folder}")
    return path


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Convert errors of the operating system into a LoadError with Triton's message."""
    try:
        yield
    except OSError as exc:
        raise LoadError(f"failed to open text file for read {path}: {exc.strerror}") from exc
    except ValueError as exc:  # A name with a NUL in it.
        raise LoadError(f"failed to open text file for read {path}: {exc}") from exc


def read_file(path: str, size_max: int) -> bytes:
    """The first `size_max` bytes of a file, or all if it is shorter. Raises LoadError."""
    with _reading(path), open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LoadError(f"failed to open text file for read {path}: it is no file")
        return file.read(size_max) or b""  # None: some in /proc have nothing to read yet.


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe would otherwise block the server until another process writes to it.
    return os.open(path, flags | os.O_NONBLOCK)
