# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Implicit states of sequences in a test: ordinary inputs and outputs. (pure)

A test may pass any state, and gets the states that the model returns with its outputs. Nothing is kept between
requests. A state that is not passed has its initial value.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pyruntime.runtime.config.spec import ModelSpec, StateSpec, TensorSpec
from pyruntime.runtime.requests.types import InputTensor


def with_states(spec: ModelSpec) -> ModelSpec:
    """The spec with the states of sequences among its inputs and outputs."""
    states = _states(spec)
    inputs = {each.input_name: _tensor(each, each.input_name) for each in states}
    outputs = {each.output_name: _tensor(each, each.output_name) for each in states}
    return replace(spec, inputs={**spec.inputs, **inputs}, outputs={**spec.outputs, **outputs})


def initial_states(spec: ModelSpec, passed: Collection[str]) -> list[InputTensor]:
    """The initial values of the states that are not among the inputs that were passed."""
    return [
        InputTensor(each.input_name, each.datatype, list(each.shape), each.initial)
        for each in _states(spec)
        if each.input_name not in passed and isinstance(each.initial, bytes)
    ]


def _states(spec: ModelSpec) -> tuple[StateSpec, ...]:
    return () if spec.sequence_batching is None else spec.sequence_batching.states


def _tensor(state: StateSpec, name: str) -> TensorSpec:
    batch = (1,) * (len(state.shape) - len(state.dims))
    return TensorSpec(name, state.datatype, state.dims, (*batch, *state.dims), optional=True)
