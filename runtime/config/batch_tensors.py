# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Validates `batch_input` and `batch_output` of a configuration. (pure)

A batch input is a tensor that a C++ backend makes for a whole batch, of the shapes of its requests; a batch output is
one that it distributes to the requests by the shape of an input. The server checks these settings and passes them on,
as Triton does; the backend computes the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.config.schema import Config
from pyruntime.utils.dtypes import BY_NUMBER
from pyruntime.utils.errors import ConfigError

_DATATYPES = {number for number, datatype in BY_NUMBER.items() if datatype.name in ("INT32", "FP32")}


def validate_batch_tensors(config: Config) -> None:
    """Raise ConfigError for the first error in the batch inputs and batch outputs of `config`."""
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for tensor in config.batch_input:
        _check_kind("input", tensor, config.name)
        if tensor.data_type not in _DATATYPES:
            raise ConfigError(f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}")
        _check_sources(tensor, inputs, config.name)
    for tensor in config.batch_output:
        _check_kind("output", tensor, config.name)
        _check_sources(tensor, inputs, config.name)
        _check_targets(tensor.target_name, outputs, config.name)


def _check_kind(noun: str, tensor: Config, model: str) -> None:
    kind = tensor.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number.get(tensor.kind)
    if kind is None:
        raise ConfigError(f"unknown batch {noun} kind '{tensor.kind}' for {model}")
    if len(tensor.source_input) != 1:
        raise ConfigError(
            f"batch {noun} kind '{kind.name}' expects 1 source input, got {len(tensor.source_input)} for {model}"
        )


def _check_sources(tensor: Config, inputs: set[str], model: str) -> None:
    for name in tensor.source_input:
        if name not in inputs:
            raise ConfigError(f"unknown source input name '{name}' for {model}")


def _check_targets(names: Iterable[str], outputs: set[str], model: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name not in outputs:
            raise ConfigError(f"unknown target output name '{name}' for {model}")
        if name in seen:
            raise ConfigError(f"target output name '{name}' can only be specified once for {model}")
        seen.add(name)
