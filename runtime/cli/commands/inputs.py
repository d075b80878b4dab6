# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts `--input <name>=<value>` to arrays.

value := json | text | "@" path        text without quotes is for BYTES only
path  := *.json | *.npy | any other    any other file contains the tensor's bytes, or one element of BYTES
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pyruntime.runtime.cli.commands.client import WrongUsage
from pyruntime.runtime.cli.commands.tensors import Array, TensorError, TensorSpec, decode_file, fit_array, to_array
from pyruntime.runtime.suggestions import did_you_mean


def read_inputs(texts: Sequence[str], specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """The arrays by name; `specs` are the model's. Raises WrongUsage."""
    arrays: dict[str, Array] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongUsage(f"--input needs <name>=<value> or <name>=@<file>, not {text!r}")
        if name not in specs:
            known = f"; its inputs are {', '.join(specs)}" if specs else ""
            raise WrongUsage(f"the model has no input '{name}'{did_you_mean(name, specs) or known}")
        if name in arrays:
            raise WrongUsage(f"--input {name} is there twice")
        try:
            arrays[name] = _read(specs[name], value)
        except TensorError as exc:
            raise WrongUsage(f"--input {name} does not do: {exc}") from exc
    return arrays


def _read(spec: TensorSpec, value: str) -> Array:
    if value.startswith("@"):
        return _read_file(spec, Path(value[1:]))
    return to_array(spec, _parse(spec, value))


def _parse(spec: TensorSpec, text: str) -> object:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if spec.datatype == "BYTES":
        return parsed if isinstance(parsed, (str, list)) else text
    if parsed is None:
        raise TensorError(f"{text[:40]!r} is neither JSON nor @<file>")
    return parsed


def _read_file(spec: TensorSpec, path: Path) -> Array:
    try:
        if path.suffix == ".npy":
            return fit_array(spec, np.load(path, allow_pickle=False))
        data = path.read_bytes()
    except OSError as exc:
        raise TensorError(f"'{path}' cannot be read: {exc.strerror}") from exc
    except TensorError:
        raise
    except (ValueError, EOFError) as exc:
        raise TensorError(f"'{path}' holds no array that could be read: {exc}") from exc
    if path.suffix != ".json":
        return decode_file(spec, data)
    try:
        return to_array(spec, json.loads(data))
    except TensorError:
        raise
    except ValueError as exc:
        raise TensorError(f"'{path}' is not JSON: {exc}") from exc
