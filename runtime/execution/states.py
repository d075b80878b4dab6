# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Implicit state: tensors that the server keeps for a sequence from one request to the next. (pure)

A request receives them as inputs, and its model replaces them by its state outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyruntime.runtime.config.spec import StateSpec
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import Code, InferenceError


class State(NamedTuple):
    """A state as an input of the model; `name` is the name of the input."""

    name: str
    datatype: str
    shape: list[int]
    data: bytes


class SequenceStates:
    """The states of one sequence. Their first values come from the configuration."""

    __slots__ = ("_model_name", "_specs", "_states")

    def __init__(self, specs: Iterable[StateSpec], model_name: str) -> None:
        self._model_name = model_name
        self._specs = {spec.output_name: spec for spec in specs}
        self._states = {
            spec.output_name: State(spec.input_name, spec.datatype, list(spec.shape), spec.initial)
            for spec in self._specs.values()
        }

    def __repr__(self) -> str:
        return f"<SequenceStates {self._model_name} [{', '.join(state.name for state in self.inputs)}]>"

    @property
    def inputs(self) -> Sequence[State]:
        """The additional inputs of the sequence's next request."""
        return list(self._states.values())

    def update(self, output_name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> None:
        """Replace a state. The data is copied, unless it is `bytes`.

        Raises InferenceError INVALID_ARG if the configuration has no such state, or another datatype or shape; the
        state is then unchanged.
        """
        spec = self._specs.get(output_name)
        if spec is None:
            raise self._refused(output_name, f"State configuration is missing for model '{self._model_name}'.")
        if datatype != spec.datatype:
            raise self._refused(output_name, f"Its datatype is {spec.datatype}, got {datatype}")
        wanted = [1] * (len(spec.shape) - len(spec.dims)) + list(spec.dims)
        if len(shape) != len(wanted) or any(dim not in (-1, size) for size, dim in zip(shape, wanted, strict=True)):
            raise self._refused(output_name, f"Its shape is {wanted}, got {list(shape)}")
        size = BY_NAME[datatype].size
        if size and math.prod(shape) * size != len(data):
            raise self._refused(output_name, f"It has {math.prod(shape) * size} bytes, got {len(data)}")
        self._states[output_name] = State(spec.input_name, datatype, list(shape), bytes(data))

    def _refused(self, output_name: str, why: str) -> InferenceError:
        return InferenceError(f"unable to add state '{output_name}'. {why}", Code.INVALID_ARG)
