# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The files in a model's folder that say what the states of its sequences begin with."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from math import prod
from pathlib import Path

from pyruntime.runtime.config.sequences import STATE_BYTES_MAX
from pyruntime.runtime.config.spec import ModelSpec, StateSpec
from pyruntime.utils.dtypes import BYTES_PREFIX_SIZE
from pyruntime.utils.errors import LoadError

FOLDER = "initial_state"


def with_initial_states(spec: ModelSpec, folder: str) -> ModelSpec:
    """The spec with those states that have a file in the model's folder as their files say. Raises LoadError."""
    batching = spec.sequence_batching
    if batching is None or not any(state.data_file for state in batching.states):
        return spec
    states = tuple(_read(state, Path(folder, FOLDER)) if state.data_file else state for state in batching.states)
    return replace(spec, sequence_batching=replace(batching, states=states))


def _read(state: StateSpec, folder: Path) -> StateSpec:
    path = folder / state.data_file
    is_text = state.datatype == "BYTES"
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise LoadError(f"the initial state of '{state.input_name}' is to be read from {path}, outside of {folder}")
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LoadError(f"failed to open text file for read {path}: it is no file")
            # As in Triton, what comes behind the state is of no meaning.
            data = file.read(STATE_BYTES_MAX if is_text else len(state.initial)) or b""
    except OSError as exc:
        raise LoadError(f"failed to open text file for read {path}: {exc.strerror}") from exc
    except ValueError as exc:  # A name with a NUL in it.
        raise LoadError(f"failed to open text file for read {path}: {exc}") from exc
    if len(data) < len(state.initial):
        raise LoadError(
            f"initial_state setting expects {len(state.initial)} bytes, but the data provided from {state.data_file} "
            f"only has {len(data)} bytes."
        )
    return replace(state, initial=_strings(data, prod(state.shape), path) if is_text else data)


def _strings(data: bytes, count: int, path: Path) -> bytes:
    """The first strings in `data`, each behind its length."""
    end = 0
    for _ in range(count):
        end += BYTES_PREFIX_SIZE + int.from_bytes(data[end : end + BYTES_PREFIX_SIZE], "little")
    if end > len(data):
        raise LoadError(f"{path} ends within the {count} strings that initial_state setting expects")
    return data[:end]


def _open_at_once(path: str, flags: int) -> int:
    # To open a pipe takes until somebody writes to it, and nobody else is served meanwhile.
    return os.open(path, flags | os.O_NONBLOCK)
