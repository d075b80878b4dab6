# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.http.raw_request import decode_raw
from pyruntime.runtime.requests.types import InputTensor
from pyruntime.utils.errors import Code, InferenceError

from ...model_specs import BARE_SPEC


def spec(*inputs, max_batch_size=0):
    tensors = {name: TensorSpec(name, datatype, dims, dims) for name, datatype, dims in inputs}
    return replace(BARE_SPEC, max_batch_size=max_batch_size, inputs=tensors, required_inputs=frozenset(tensors))


PREFIX = "[request id: <id_unknown>] "


def refusal(body, model):
    with pytest.raises(InferenceError) as caught:
        decode_raw(memoryview(body), model, -1)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith(PREFIX)
    return caught.value.message.removeprefix(PREFIX)


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "shape"),
    [
        ((2, 3), 0, [2, 3]),
        ((2, 3), 8, [1, 2, 3]),
        ((-1,), 0, [6]),
        ((-1, 3), 0, [2, 3]),
        ((3, -1), 4, [1, 3, 2]),
        ((), 4, [1]),
        ((5,), 0, [5]),
    ],
)
def test_shape_is_deduced(dims, max_batch_size, shape):
    """A variable dimension follows from the size; whether fixed ones suit the size is for others to check."""
    body = memoryview(bytes(24))
    request = decode_raw(body, spec(("X", "FP32", dims), max_batch_size=max_batch_size), 640)
    assert request.model_name == "m"
    assert request.requested_outputs is None
    assert request.inputs == [InputTensor("X", "FP32", shape, body, 640)]


def test_nothing_is_zero_elements():
    """An empty body is a tensor without elements."""
    assert decode_raw(memoryview(b""), spec(("X", "INT8", (-1, 2))), -1).inputs[0].shape == [0, 2]


@pytest.mark.parametrize(("max_batch_size", "shape"), [(0, [1]), (8, [1, 1])])
def test_bytes_are_the_bare_string(max_batch_size, shape):
    """The body of a BYTES input is one element, whose length is put before it here."""
    request = decode_raw(memoryview(b"hi"), spec(("X", "BYTES", (1,)), max_batch_size=max_batch_size), 640)
    assert request.inputs == [InputTensor("X", "BYTES", shape, b"\x02\0\0\0hi", -1)]


def test_one_input_is_needed():
    """A raw body needs a model with exactly one input."""
    assert refusal(b"", spec()) == (
        "Raw request must only have 1 input (found 1) to be deduced but got 0 inputs in 'm' model configuration"
    )
    assert "got 2 inputs in 'm'" in refusal(b"", spec(("X", "INT8", (1,)), ("Y", "INT8", (1,))))


@pytest.mark.parametrize("dims", [(2,), (-1,), (1, 1), ()])
def test_bytes_of_another_shape(dims):
    """Several strings cannot be told apart in a raw body."""
    wanted = "For BYTE datatype raw input 'X', the model must have input shape [1]"
    assert refusal(b"hi", spec(("X", "BYTES", dims))) == wanted


def test_two_variable_dimensions():
    """Two unknowns do not follow from one size."""
    assert refusal(bytes(4), spec(("X", "INT8", (-1, -1)))) == (
        "The shape of the raw input 'X' can not be deduced because there are more than one variable-sized dimension"
    )


@pytest.mark.parametrize(("dims", "step"), [((-1,), 4), ((3, -1), 12), ((0, -1), 0)])
def test_size_that_no_dimension_makes(dims, step):
    """The size must be whole rows."""
    assert refusal(bytes(10), spec(("X", "FP32", dims))) == (
        f"The shape of the raw input 'X' can not be deduced: its size must be a multiple of {step} bytes, got 10"
    )
