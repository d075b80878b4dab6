# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where tensors may lie on GPUs, by the instances and FORCE_CPU_ONLY_INPUT_TENSORS."""

from operator import eq

import pytest

from pyruntime.runtime.gpus.tensor_places import (
    TensorPlaces,
    check_input_tensors,
    outputs_for,
    places_of_model,
    reads_of,
)
from pyruntime.utils.errors import Code, LoadError
from pyruntime.utils.request_codec import MEMORY_GPU
from tests.runtime.model_specs import spec_from

CONFIG = 'name: "m" backend: "python" max_batch_size: 0\n'


def spec(value):
    parameter = f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: {{ string_value: "{value}" }} }}'
    return spec_from(CONFIG + parameter)


@pytest.mark.parametrize("value", ["yes", "no"])
def test_values(value):
    """Triton's two values."""
    check_input_tensors(spec(value))


def test_default():
    """None is needed."""
    check_input_tensors(spec_from(CONFIG))


@pytest.mark.parametrize("value", ["maybe", "No", "true", ""])
def test_other_values(value):
    """The refusal is Triton's, with its quotation mark."""
    with pytest.raises(LoadError) as caught:
        check_input_tensors(spec(value))
    assert str(caught.value) == f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {value}'"
    assert caught.value.code is Code.UNSUPPORTED


GPU_1 = (0, 0, MEMORY_GPU, 1)


@pytest.mark.parametrize(
    ("instances", "value", "expected"),
    [
        ("kind: KIND_GPU gpus: [ 1 ] count: 2", "no", ({"A": 1, "B": 1}, {"C": GPU_1})),
        ("kind: KIND_GPU gpus: [ 1 ]", "yes", ({}, {"C": GPU_1})),
        ("kind: KIND_GPU gpus: [ 0, 1 ]", "no", None),
        ("kind: KIND_CPU", "no", None),
    ],
)
def test_places(instances, value, expected):
    """All tensors of a model have one GPU, if its instances have."""
    tensors = " ".join(
        f"{kind} {{ name: '{name}' data_type: TYPE_INT8 dims: 1 }}"
        for kind, name in (("input", "A"), ("input", "B"), ("output", "C"))
    )
    parameter = f"parameters {{ key: 'FORCE_CPU_ONLY_INPUT_TENSORS' value: {{ string_value: '{value}' }} }}"
    made = spec_from(f"{CONFIG} {tensors} instance_group {{ {instances} }} {parameter}", gpus=(0, 1))
    assert places_of_model(made) == expected


def test_nowhere():
    """Without places all tensors are in main memory."""
    assert reads_of(None) == {}


def test_outputs_for_a_gpu():
    """The outputs of an ensemble may be on several GPUs, of which others can read some."""
    places = TensorPlaces({}, {"A": GPU_1, "B": (0, 0, MEMORY_GPU, 0)})
    assert outputs_for(places, 1, eq) == {"A": GPU_1}
    assert outputs_for(places, 2, eq) == {}
    assert outputs_for(places, 2, lambda source, target: True) == places.outputs
