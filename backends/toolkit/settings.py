# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what a framework backend needs from a model's configuration in JSON. (pure)

`read_settings` gives the configuration as typed fields. Parameters have Triton's names and are texts; the methods of
Settings convert them, and name the parameter when that is not possible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from pyruntime.utils.errors import ConfigError

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class TensorSpec:
    """An input or output. `datatype` is the name in a configuration (`TYPE_FP32`).

    `dims` is the shape that the model sees, -1 for any size: without the batch dimension in a configuration, with all
    dimensions where a model file describes the tensor. None if the file does not say.
    """

    name: str
    datatype: str
    dims: Optional[Tuple[int, ...]]


@dataclass(frozen=True)
class Settings:
    """A model's configuration. `libraries` are those of `model_operations`, `instance_count` counts all groups.

    `filename` is `default_model_filename` and `runtime` is `runtime`, or "".
    """

    name: str
    max_batch_size: int
    inputs: Tuple[TensorSpec, ...]
    outputs: Tuple[TensorSpec, ...]
    filename: str
    runtime: str
    libraries: Tuple[str, ...]
    parameters: Mapping[str, str]
    instance_count: int

    def integer(self, parameter: str, default: Optional[int] = None) -> Optional[int]:
        """A parameter as an integer, `default` if it is absent. Raises ConfigError."""
        text = self.parameters.get(parameter)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise self.refused(parameter, "an integer") from None

    def boolean(self, parameter: str, default: bool = False) -> bool:
        """A parameter as a boolean: `true`, `false`, `1` or `0` in any case. Raises ConfigError."""
        text = self.parameters.get(parameter)
        if text is None:
            return default
        try:
            return _BOOLEANS[text.strip().lower()]
        except KeyError:
            raise self.refused(parameter, "true or false") from None

    def refused(self, parameter: str, expected: str) -> ConfigError:
        """The error for a parameter with an invalid value."""
        value = self.parameters[parameter]
        return ConfigError(f"model '{self.name}' has the parameter {parameter} '{value}', which must be {expected}")


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The settings in a normalised configuration."""
    operations: Mapping[str, Any] = config.get("model_operations", {})
    parameters: Mapping[str, Mapping[str, str]] = config.get("parameters", {})
    return Settings(
        name=config.get("name", ""),
        max_batch_size=config.get("max_batch_size", 0),
        inputs=_tensors(config.get("input", ())),
        outputs=_tensors(config.get("output", ())),
        filename=config.get("default_model_filename", ""),
        runtime=config.get("runtime", ""),
        libraries=tuple(operations.get("op_library_filename", ())),
        parameters={name: value.get("string_value", "") for name, value in parameters.items()},
        instance_count=sum(map(_instances_in, config.get("instance_group", ()))),
    )


def server_options(location: Mapping[str, str]) -> Dict[str, str]:
    """The server's options for this backend, as in Triton: the global ones and those of `--backend-config`.

    `location` is what the stub gives to a class that declares `location`.
    """
    options: Dict[str, str] = json.loads(location["command_line"])["cmdline"]
    return options


def _instances_in(group: Mapping[str, Any]) -> int:
    """An instance group has `count` instances on each of its GPUs."""
    count: int = group.get("count", 1)
    return count * max(1, len(group.get("gpus", ())))


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> Tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            tensor["name"],
            tensor.get("data_type", "TYPE_INVALID"),
            tuple(map(int, tensor["reshape"].get("shape", ()) if "reshape" in tensor else tensor.get("dims", ()))),
        )
        for tensor in tensors
    )
