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
# The datatype of a control input by the field that has its values. CORRID has a datatype of its own.
_CONTROL_DATATYPES = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}


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
class StateSpec:
    """A state, which the server keeps for each sequence: the model takes `input`, and `output` is the next one.

    `is_in_place`: the next one takes the place of the input in memory, and is no part of the response.
    """

    input: TensorSpec
    output: TensorSpec
    is_in_place: bool


@dataclass(frozen=True)
class Settings:
    """A model's configuration. `libraries` are those of `model_operations`, `instance_count` counts all groups.

    `inputs` and `outputs` are those of clients; `controls` and `states` are what the server adds for sequences.
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
    controls: Tuple[TensorSpec, ...] = ()
    states: Tuple[StateSpec, ...] = ()

    @property
    def reads_gpu(self) -> bool:
        """Whether an instance on a GPU gets inputs there, and leaves states there."""
        return self.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS") == "no"

    @property
    def added_inputs(self) -> Tuple[TensorSpec, ...]:
        """What the server adds to a request: the controls and the states of its sequence."""
        return (*self.controls, *(state.input for state in self.states))

    @property
    def all_inputs(self) -> Tuple[TensorSpec, ...]:
        """What a request has: the inputs of the client, then those that the server adds."""
        return (*self.inputs, *self.added_inputs)

    @property
    def all_outputs(self) -> Tuple[TensorSpec, ...]:
        """What the model makes: the outputs for clients, then the states that are not among them."""
        names = {tensor.name for tensor in self.outputs}
        return (*self.outputs, *(state.output for state in self.states if state.output.name not in names))

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
    """The settings in a normalised configuration. Raises ConfigError."""
    operations: Mapping[str, Any] = config.get("model_operations", {})
    batching: Mapping[str, Any] = config.get("sequence_batching", {})
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
        controls=tuple(map(_control, batching.get("control_input", ()))),
        states=tuple(_state(state, config.get("name", "")) for state in batching.get("state", ())),
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


def _control(control_input: Mapping[str, Any]) -> TensorSpec:
    """A control input, which has one element for each request."""
    (control,) = control_input["control"]
    given = [datatype for field, datatype in _CONTROL_DATATYPES.items() if control.get(field)]
    return TensorSpec(control_input["name"], given[0] if given else control.get("data_type", "TYPE_INVALID"), (1,))


def _state(state: Mapping[str, Any], model: str) -> StateSpec:
    datatype, dims = state["data_type"], tuple(map(int, state.get("dims", ())))
    # What grows has another size each time, and so cannot stay where it is.
    is_in_place = bool(state.get("use_same_buffer_for_input_output")) and not state.get("use_growable_memory")
    if is_in_place and datatype == "TYPE_STRING":
        raise ConfigError(
            f"model '{model}' has the state '{state['input_name']}' of strings with use_same_buffer_for_input_output, "
            "and strings of frameworks are not in memory of the server: remove that field"
        )
    return StateSpec(
        TensorSpec(state["input_name"], datatype, dims), TensorSpec(state["output_name"], datatype, dims), is_in_place
    )
