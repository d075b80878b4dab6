# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The files in a model's folder that say what the states of its sequences begin with."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

from pyruntime.runtime.config.sequences import STATE_BYTES_MAX
from pyruntime.runtime.config.spec import ModelSpec, StateSpec
from pyruntime.runtime.repository.model_files import read_file, reading
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
    with reading(path):
        is_inside = path.resolve().is_relative_to(folder.resolve())
    if not is_inside:
        raise LoadError(f"the initial state of '{state.input_name}' is to be read from {path}, outside of {folder}")
    # As in Triton, what comes behind the state is of no meaning.
    data = read_file(path, STATE_BYTES_MAX if is_text else len(state.initial))
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
