# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests checked with a configuration: the accepted ones, and the messages of refusals."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.config.inputs import (
    STRINGS_AT_ONCE_BYTES_MAX,
    check_request,
    check_strings,
    client_shape,
    has_many_strings,
)
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.errors import Code, InferenceError

from ..model_specs import spec_from

NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def _spec(text):
    return spec_from(text)


def _tensors(*tensors):
    return " ".join(f"input {{ name: '{name}' data_type: TYPE_{kind} dims: {dims} }}" for name, kind, dims in tensors)


TWO = _tensors(("A", "FP32", [16]), ("B", "FP32", [16]))
OPTIONAL = TWO + " input { name: 'C' data_type: TYPE_INT8 dims: 1 optional: true }"


def _fp32(name, shape, size=None):
    count = 1
    for dim in shape:
        count *= dim
    return InputTensor(name, "FP32", shape, memoryview(bytes(count * 4 if size is None else size)))


def _int8(name):
    return InputTensor(name, "INT8", [1], b"\1")


def _bytes(shape, data):
    return InputTensor("A", "BYTES", shape, data)


def _elements(*elements):
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def _complaint(text, inputs, request_id="", **kwargs):
    request = InferRequest("m", id=request_id, inputs=inputs, **kwargs)
    with pytest.raises(InferenceError) as caught:
        check_request(_spec(text), request)
    assert caught.value.code is Code.INVALID_ARG
    message = caught.value.message
    # As in Triton, these have no id.
    if message.startswith(("unexpected inference", "incomplete string data")):
        return message
    prefix = f"[request id: {request_id or '<id_unknown>'}] "
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


@pytest.mark.parametrize(
    ("text", "inputs", "batch_size"),
    [
        ("", [], 1),
        ("max_batch_size: 4", [], 1),
        (TWO, [_fp32("A", [16]), _fp32("B", [16])], 1),
        (TWO, [_fp32("B", [16]), _fp32("A", [16])], 1),
        (f"max_batch_size: 4 {TWO}", [_fp32("A", [4, 16]), _fp32("B", [4, 16])], 4),
        (f"max_batch_size: 4 {TWO}", [_fp32("A", [0, 16]), _fp32("B", [0, 16])], 1),
        (OPTIONAL, [_fp32("A", [16]), _fp32("B", [16])], 1),
        (OPTIONAL, [_fp32("A", [16]), _int8("C"), _fp32("B", [16])], 1),
        (_tensors(("A", "FP32", [-1, 2])), [_fp32("A", [0, 2])], 1),
        (_tensors(("A", "FP32", [-1, 2])), [_fp32("A", [3, 2])], 1),
    ],
)
def test_what_fits(text, inputs, batch_size):
    """A request that fits gets its batch size, which is never less than one."""
    request = InferRequest("m", inputs=inputs, batch_size=77)
    shapes = [list(tensor.shape) for tensor in inputs]
    check_request(_spec(text), request)
    assert request.batch_size == batch_size
    assert [tensor.shape for tensor in inputs] == shapes


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        (
            TWO,
            [_fp32("A", [16])],
            "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) "
            "['B']. Please provide all required input(s).",
        ),
        (
            TWO,
            [],
            "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) "
            "['A','B']. Please provide all required input(s).",
        ),
        (
            TWO,
            [_fp32("A", [16]), _fp32("B", [16]), _fp32("X", [16])],
            "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['A','B','X'], but missing required "
            "input(s) []. Please provide all required input(s).",
        ),
        (
            OPTIONAL,
            [_int8("C")],
            "expected number of inputs between 2 and 3 but got 1 inputs for model 'm'. Got input(s) ['C'], but missing "
            "required input(s) ['A','B']. Please provide all required input(s).",
        ),
        (
            OPTIONAL,
            [_int8("C"), _fp32("A", [16])],
            "expected number of inputs between 2 and 3 but got 2 inputs for model 'm'. Got input(s) ['C','A'], but "
            "missing required input(s) ['B']. Please provide all required input(s).",
        ),
        (TWO, [_fp32("A", [16]), _fp32("X", [16])], "unexpected inference input 'X' for model 'm'"),
        (TWO, [_fp32("A", [16]), _fp32("A", [16])], "input 'A' already exists in request"),
        (TWO, [_fp32("A", [16]), _fp32("B", [16]), _fp32("B", [16])], "input 'B' already exists in request"),
    ],
)
def test_names(text, inputs, message):
    """Every required input is there once, and nothing else is that the model does not know."""
    assert _complaint(text, inputs) == message


def test_requested_outputs():
    """Outputs may be named if the model has them."""
    text = "output { name: 'O' data_type: TYPE_FP32 dims: 1 }"
    check_request(_spec(text), InferRequest("m", requested_outputs=["O"]))
    message = _complaint(text, [], requested_outputs=["O", "X"])
    assert message == "unexpected inference output 'X' for model 'm'"


def test_the_request_id_is_in_the_message():
    """The prefix carries the client's own id."""
    assert _complaint(TWO, [_fp32("A", [16])], request_id="r7").startswith("expected 2 inputs")


@pytest.mark.parametrize(
    ("datatype", "shape", "what"),
    [
        ("FP32", [2**62, 2**62], "element count"),
        ("INT8", [2**62, 2], "element count"),
        ("BYTES", [2**62, 2], "element count"),
        ("FP32", [2**31, 2**31], "byte size"),
        ("INT64", [2**60, 1], "byte size"),
    ],
)
def test_more_elements_than_there_can_be(datatype, shape, what):
    """Triton counts elements and bytes in signed 64-bit integers."""
    request = InferRequest("m", inputs=[InputTensor("A", datatype, shape, b"")])
    with pytest.raises(InferenceError) as caught:
        check_request(_spec(_tensors(("A", datatype.replace("BYTES", "STRING"), [-1, -1]))), request)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == f"{what} for tensor 'A' exceeds maximum size of 9223372036854775807"


def test_datatype():
    """The datatype is compared before the shape."""
    message = _complaint(_tensors(("A", "FP32", [16])), [InputTensor("A", "INT32", [1, 1], b"")])
    assert message == "inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'"
    message = _complaint(_tensors(("A", "FP32", [16])), [InputTensor("A", "fp32", [16], b"")])
    assert message == "inference input 'A' data-type is '<invalid>', but model 'm' expects 'FP32'"


@pytest.mark.parametrize("shape", [[], [15], [16, 1]])
def test_shape_without_batching(shape):
    """The shape is the dims."""
    message = _complaint(_tensors(("A", "FP32", [16])), [_fp32("A", shape)])
    got = "[" + ",".join(map(str, shape)) + "]"
    assert message == f"unexpected shape for input 'A' for model 'm'. Expected [16], got {got}. "


@pytest.mark.parametrize("shape", [[], [16], [1, 8], [1, 1, 16]])
def test_shape_with_batching(shape):
    """The shape is the dims behind the batch, and the message explains that."""
    message = _complaint(f"max_batch_size: 4 {_tensors(('A', 'FP32', [16]))}", [_fp32("A", shape)])
    got = "[" + ",".join(map(str, shape)) + "]"
    assert message == f"unexpected shape for input 'A' for model 'm'. Expected [-1,16], got {got}.{NOTE}"


def test_batch_size():
    """The batch fits the model, and is the same for all inputs."""
    text = f"max_batch_size: 4 {TWO}"
    message = _complaint(text, [_fp32("A", [5, 16]), _fp32("B", [5, 16])])
    assert message == "inference request batch-size must be <= 4 for 'm'"
    for first, second in ((1, 2), (0, 2), (2, 0)):
        message = _complaint(text, [_fp32("A", [first, 16]), _fp32("B", [second, 16])])
        assert message == "input 'B' batch size does not match other inputs for 'm'"


@pytest.mark.parametrize(("shape", "size"), [([2], 7), ([2], 9), ([0], 1), ([2**40, 2**20], 0), ([2**60], 0)])
def test_byte_size(shape, size):
    """The contents are as long as shape and datatype say, however large that is."""
    text = _tensors(("A", "FP32", [-1] * len(shape)))
    expected = 4
    for dim in shape:
        expected *= dim
    message = _complaint(text, [InputTensor("A", "FP32", shape, bytes(size))])
    assert message == f"input byte size mismatch for input 'A' for model 'm'. Expected {expected}, got {size}"


@pytest.mark.parametrize(
    ("datatype", "size"),
    [("BOOL", 1), ("UINT8", 1), ("INT16", 2), ("FP16", 2), ("BF16", 2), ("UINT32", 4), ("INT64", 8), ("FP64", 8)],
)
def test_byte_size_of_datatypes(datatype, size):
    """Each datatype has its own size."""
    request = InferRequest("m", inputs=[InputTensor("A", datatype, [3], bytes(3 * size))])
    check_request(_spec(_tensors(("A", datatype, [3]))), request)


@pytest.mark.parametrize(("shape", "elements"), [([0], []), ([1], [b""]), ([2, 2], [b"a", b"", b"ccc", b"\0" * 300])])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_bytes_that_fit(shape, elements, kind):
    """Elements of any length, as many as the shape has, are accepted in any kind of buffer."""
    text = _tensors(("A", "STRING", [-1] * len(shape)))
    check_request(_spec(text), InferRequest("m", inputs=[_bytes(shape, kind(_elements(*elements)))]))


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ([2], _elements(b"a"), "expected 2 string elements for inference input 'A' for model 'm', got 1"),
        (
            [1],
            _elements(b"a", b""),
            "unexpected number of string elements 2 for inference input 'A' for model 'm', expecting 1",
        ),
        ([2**62], b"", f"expected {2**62} string elements for inference input 'A' for model 'm', got 0"),
        (
            [1],
            b"\1\0\0",
            "incomplete string length indicator for inference input 'A' for model 'm', expecting 4 bytes but only 3 "
            "bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            [2],
            _elements(b"a") + b"\xff\xff\xff\xffabc",
            "incomplete string data for inference input 'A', expecting string of length 4294967295 but only 3 bytes "
            "available",
        ),
    ],
)
def test_bytes_that_do_not_fit(shape, data, message):
    """A mistake in the elements is reported exactly."""
    assert _complaint(_tensors(("A", "STRING", [-1])), [_bytes(shape, data)]) == message


BYTES_SPEC = _spec(_tensors(("A", "STRING", [-1])))


@given(st.lists(st.binary(max_size=9), max_size=9), st.data())
def test_any_cut_of_bytes_is_found(elements, draw):
    """All elements pass; a part of the data never does for the same count."""
    data = _elements(*elements)
    check_request(BYTES_SPEC, InferRequest("m", inputs=[_bytes([len(elements)], data)]))
    if data:
        part = data[: draw.draw(st.integers(0, len(data) - 1))]
        with pytest.raises(InferenceError):
            check_request(BYTES_SPEC, InferRequest("m", inputs=[_bytes([len(elements)], part)]))


@given(st.binary(max_size=40), st.integers(0, 11))
def test_bytes_pass_if_and_only_if_they_are_elements(data, count):
    """The walk agrees with a reader that takes one element after another off the front."""
    found, rest = 0, data
    while len(rest) >= 4 and len(rest) - 4 >= int.from_bytes(rest[:4], "little"):
        found, rest = found + 1, rest[4 + int.from_bytes(rest[:4], "little") :]
    try:
        check_request(BYTES_SPEC, InferRequest("m", inputs=[_bytes([count], data)]))
        passed = True
    except InferenceError:
        passed = False
    assert passed == (not rest and found == count)


RESHAPES = [
    # dims, reshape, the client's shape, the model's shape
    ("[ 4 ]", "[ 2, 2 ]", [4], [2, 2]),
    ("[ 1 ]", "[]", [1], []),
    ("[ -1, 4 ]", "[ -1, 2, 2 ]", [3, 4], [3, 2, 2]),
    ("[ 2, -1, 6, -1 ]", "[ 2, -1, 2, 3, -1, 1 ]", [2, 5, 6, 7], [2, 5, 2, 3, 7, 1]),
    ("[]", "[ 1, 1 ]", [], [1, 1]),
]


@pytest.mark.parametrize("batch", [[], [3]])
@pytest.mark.parametrize(("dims", "reshape", "outside", "inside"), RESHAPES)
def test_reshape_in_and_out(dims, reshape, outside, inside, batch):
    """The model sees the reshape, variable dims in their order; the client sees the dims, also in responses."""
    tensor = f"{{ name: 'A' data_type: TYPE_FP32 dims: {dims} reshape {{ shape: {reshape} }} }}"
    spec = _spec(f"max_batch_size: {4 if batch else 0} input {tensor} output {tensor}")
    request = InferRequest("m", inputs=[_fp32("A", batch + outside)])
    check_request(spec, request)
    assert request.inputs[0].shape == batch + inside
    assert request.batch_size == (3 if batch else 1)
    assert client_shape(spec, "A", batch + inside) == batch + outside


def test_reshape_does_not_replace_the_check():
    """The client's shape is compared with the dims, not with the model's shape."""
    text = "input { name: 'A' data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }"
    message = _complaint(text, [_fp32("A", [2, 2])])
    assert message == "unexpected shape for input 'A' for model 'm'. Expected [4], got [2,2]. "


@pytest.mark.parametrize("shape", [[], [3], [3, 4], [3, 2, 3], [3, 2, 2, 1]])
def test_outputs_of_another_shape_than_configured(shape):
    """They are sent as they were made."""
    spec = _spec(
        "max_batch_size: 4 output { name: 'A' data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } } "
        "output { name: 'B' data_type: TYPE_FP32 dims: 4 }"
    )
    assert client_shape(spec, "A", shape) == shape
    assert client_shape(spec, "B", shape) == shape
    assert client_shape(spec, "unknown", shape) == shape


def test_strings_counted_beforehand():
    """They are not counted again, unless the shape says something else then."""
    data = _elements(b"a", b"")
    request = InferRequest("m", inputs=[_bytes([2], data)])
    check_strings(request)
    assert request.inputs[0].strings == 2
    request.inputs[0].data = b"anything"
    check_request(BYTES_SPEC, request)
    request.inputs[0].shape = [1]
    with pytest.raises(InferenceError):
        check_request(BYTES_SPEC, request)
    with pytest.raises(InferenceError, match="expected 3 string elements"):
        check_strings(InferRequest("m", inputs=[_bytes([3], data)]))


@pytest.mark.parametrize(
    ("shape", "nbytes", "many"),
    [
        ([STRINGS_AT_ONCE_BYTES_MAX], STRINGS_AT_ONCE_BYTES_MAX + 1, True),
        ([STRINGS_AT_ONCE_BYTES_MAX], STRINGS_AT_ONCE_BYTES_MAX, False),
        ([1, STRINGS_AT_ONCE_BYTES_MAX // 4], STRINGS_AT_ONCE_BYTES_MAX + 1, False),
        ([2**62, 2**62], 4, False),
    ],
)
def test_many_strings(shape, nbytes, many):
    """There are no more than the shape says, and than have room in the contents."""
    tensor = _bytes(shape, bytes(nbytes))
    assert has_many_strings(InferRequest("m", inputs=[InputTensor("B", "INT8", shape, bytes(nbytes)), tensor])) is many
    tensor.strings = 1
    assert not has_many_strings(InferRequest("m", inputs=[tensor]))
