# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of native code: every field arrives, and fields that a raw input lacks are the model's."""

import pytest

from pyruntime.runtime.instances.native.request import NativeRequest
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.errors import Code, InferenceError

from ...model_specs import spec_from


def spec_of(inputs, batch=0):
    text = f"name: 'm' max_batch_size: {batch} {inputs} output {{ name: 'OUT' data_type: TYPE_FP32 dims: 1 }}"
    return spec_from(text)


def input_of(datatype, *dims, name="IN"):
    return f"input {{ name: '{name}' data_type: TYPE_{datatype} dims: [ {', '.join(map(str, dims))} ] }}"


def request_of(*inputs, outputs=None):
    return NativeRequest(5, "m", 3, "7", "abc", 3, 2, 12, {"p": 1}, inputs, outputs, "", "", None)


def raw(size, name="IN"):
    return name, None, [], bytes(size)


def test_fields():
    """A request as a client could have sent it."""
    request = request_of(("IN", "FP32", [2], b"12345678"), outputs=["OUT"]).infer_request(spec_of(input_of("FP32", 2)))
    assert request == InferRequest(
        "m", 3, "7", [InputTensor("IN", "FP32", [2], b"12345678")], ["OUT"], {"p": 1}, "abc", True, True, 2, 12
    )


@pytest.mark.parametrize(
    ("inputs", "batch", "size", "shape"),
    [
        (input_of("FP32", 3), 0, 12, [3]),
        (input_of("FP32", 3), 4, 12, [1, 3]),
        (input_of("FP32", 2, -1), 0, 24, [2, 3]),
        (input_of("UINT8", -1), 0, 5, [5]),
        (input_of("UINT8", -1), 0, 0, [0]),
    ],
)
def test_raw(inputs, batch, size, shape):
    """The one shape that the model takes and that has as many bytes. The name is not looked at."""
    (tensor,) = request_of(raw(size, "ANY")).infer_request(spec_of(inputs, batch)).inputs
    assert (tensor.name, tensor.shape, len(tensor.data)) == ("IN", shape, size)


def test_raw_bytes():
    """Bytes become one element."""
    (tensor,) = request_of(("IN", None, [], b"abc")).infer_request(spec_of(input_of("STRING", -1), 4)).inputs
    assert tensor == InputTensor("IN", "BYTES", [1, 1], b"\3\0\0\0abc")


@pytest.mark.parametrize(
    ("inputs", "raws", "message"),
    [
        (
            input_of("FP32", 1) + input_of("FP32", 1, name="TWO"),
            [raw(4)],
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
        ),
        (
            input_of("FP32", 1),
            [raw(4), raw(4, "TWO")],
            "Raw request must only have 1 input (found 2) to be deduced but got 1 inputs in 'm' model configuration",
        ),
        (
            input_of("FP32", -1, -1),
            [raw(4)],
            "The shape of the raw input 'IN' can not be deduced because there are more than one variable-sized "
            "dimension",
        ),
        (
            input_of("STRING", 2),
            [raw(4)],
            "For BYTE datatype raw input 'IN', the model must have input shape [1]",
        ),
    ],
)
def test_raw_that_cannot_be(inputs, raws, message):
    """A shape that the model leaves open cannot be found."""
    with pytest.raises(InferenceError) as caught:
        request_of(*raws).infer_request(spec_of(inputs))
    assert (caught.value.message, caught.value.code) == (f"[request id: 7] {message}", Code.INVALID_ARG)


def test_negative_dimensions():
    """Two of them make a product that looks right."""
    with pytest.raises(InferenceError, match="input 'IN' has a negative dimension"):
        request_of(("IN", "FP32", [-1, -2], bytes(8))).infer_request(spec_of(input_of("FP32", -1, -1)))
