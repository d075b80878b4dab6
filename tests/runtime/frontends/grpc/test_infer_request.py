# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""ModelInferRequests that protobuf has encoded are decoded, or refused with Triton's messages."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc.infer_request import PLAIN, decode_infer, describe_typed, read_target
from pyruntime.runtime.native._http2 import pack, split
from pyruntime.runtime.requests.types import InputTensor, OutputPlace
from pyruntime.utils.errors import Code, InferenceError

BASE = 1 << 20
ALIGNMENT = 64


class Memory:
    """The shared memory of a client, which returns the arguments of its calls."""

    def input(self, name, datatype, shape, region, offset, byte_size):
        return InputTensor(name, datatype, shape, f"{region} {offset} {byte_size}".encode(), 7)

    def output(self, region, offset, byte_size):
        return OutputPlace(region, offset, byte_size, None)


def decode(message):
    """As calls do it, with the contents where they are in the message."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    key, id, raws, size, typed = split(data, ALIGNMENT)
    packed = bytearray(0 if raws else size)
    fits = [True] * len(typed) if raws else pack(data, typed, packed, ALIGNMENT)
    view = memoryview(data if raws else packed)
    return decode_infer(read_target(key), id.decode(), raws, describe_typed(typed, fits), view, BASE, Memory())


def refusal(message):
    with pytest.raises(InferenceError) as caught:
        decode(message)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def tensor(message, name="IN", datatype="INT64", shape=(1,), raw=None, **contents):
    entry = message.inputs.add(name=name, datatype=datatype, shape=shape)
    for member, values in contents.items():
        getattr(entry.contents, member).extend(values)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return entry


def infer(**fields):
    return service_pb2.ModelInferRequest(model_name="m", **fields)


def parameter(**value):
    return service_pb2.InferParameter(**value)


@pytest.mark.parametrize(
    ("datatype", "member", "values", "code"),
    [
        ("BOOL", "bool_contents", [True, False], "<2?"),
        ("INT8", "int_contents", [-128, 127], "<2b"),
        ("INT16", "int_contents", [-32768, 32767], "<2h"),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1], "<2i"),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1], "<2q"),
        ("UINT8", "uint_contents", [0, 255], "<2B"),
        ("UINT16", "uint_contents", [0, 65535], "<2H"),
        ("UINT32", "uint_contents", [0, 2**32 - 1], "<2I"),
        ("UINT64", "uint64_contents", [0, 2**64 - 1], "<2Q"),
        ("FP32", "fp32_contents", [1.5, float("inf")], "<2f"),
        ("FP64", "fp64_contents", [1.5, -0.0], "<2d"),
    ],
)
def test_typed_contents(datatype, member, values, code):
    message = infer()
    tensor(message, datatype=datatype, shape=[2], **{member: values})
    request, options = decode(message)
    (found,) = request.inputs
    assert options is PLAIN
    assert (found.datatype, found.shape, bytes(found.data), found.offset) == (
        datatype,
        [2],
        struct.pack(code, *values),
        BASE,
    )


def test_typed_strings():
    message = infer()
    tensor(message, datatype="BYTES", shape=[2], bytes_contents=[b"ab", b""])
    assert decode(message)[0].inputs[0].data == b"\2\0\0\0ab\0\0\0\0"


def test_typed_contents_that_are_none():
    def typed(datatype, **contents):
        message = infer()
        tensor(message, datatype=datatype, **contents)
        return refusal(message)

    assert typed("INT64", int_contents=[5], int64_contents=[5]) == (
        "unexpected explicit tensor data for input tensor 'IN' for model 'm' of type 'INT32', expected datatype 'INT64'"
    )
    assert typed("FP16", fp32_contents=[5]) == (
        "unexpected explicit tensor data for input tensor 'IN' for model 'm' of type 'FP32', expected datatype 'FP16'"
    )
    assert typed("UINT8", uint_contents=[300]) == "'uint_contents' of input 'IN' has values out of the range of UINT8"
    assert typed("INT8", int_contents=[-129]) == "'int_contents' of input 'IN' has values out of the range of INT8"


def test_contents_that_are_missing_or_too_many():
    message = infer()
    tensor(message)
    assert refusal(message) == "unable to find data for input tensor 'IN' for model 'm' in request."
    tensor(message, "OTHER", raw=bytes(8))
    assert refusal(message) == "unable to find data for input tensor 'OTHER' for model 'm' in request."
    message = infer()
    tensor(message, raw=bytes(8), int64_contents=[1])
    assert refusal(message) == (
        "contents field must not be specified when using raw_input_contents for 'IN' for model 'm'"
    )
    message = infer(raw_input_contents=[b"1", b"2"])
    tensor(message, datatype="UINT8")
    assert bytes(decode(message)[0].inputs[0].data) == b"1"  # as in Triton


def test_shapes():
    message = infer(id="7")
    tensor(message, shape=[2, -1, 3], raw=b"")
    assert refusal(message) == (
        "[request id: 7] All input dimensions should be specified for input 'IN' for model 'm', got [2,-1,3]"
    )
    message = infer(id="7")
    tensor(message, shape=[2, -1, -2], raw=b"")
    assert refusal(message) == "tensor 'IN' contains an invalid dimension [2,-1,-2]"
    message = infer()
    tensor(message, shape=[1] * 33, raw=b"")
    assert refusal(message) == "'shape' of input 'IN' has 33 dimensions, expected at most 32"


def test_parameters():
    message = infer()
    values = {
        "sequence_id": parameter(int64_param=-1),
        "sequence_start": parameter(bool_param=True),
        "sequence_end": parameter(bool_param=True),
        "priority": parameter(uint64_param=2**64 - 1),
        "timeout": parameter(int64_param=5),
        "text": parameter(string_param="a"),
        "number": parameter(int64_param=-3),
        "flag": parameter(bool_param=False),
        "ratio": parameter(double_param=0.5),
        "binary_data_output": parameter(string_param="a word of HTTP"),
    }
    for name, value in values.items():
        message.parameters[name].CopyFrom(value)
    request, options = decode(message)
    assert options is PLAIN
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (2**64 - 1, True, True)
    assert (request.priority, request.timeout_us) == (2**64 - 1, 5)
    assert request.parameters == {
        "text": "a",
        "number": -3,
        "flag": False,
        "ratio": 0.5,
        "binary_data_output": "a word of HTTP",
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "sequence_id",
            {"bool_param": True},
            "invalid value type for 'sequence_id' parameter, expected int64_param or ",
        ),
        (
            "sequence_start",
            {"int64_param": 1},
            "invalid value type for 'sequence_start' parameter, expected bool_param.",
        ),
        ("sequence_end", {}, "invalid value type for 'sequence_end' parameter, expected bool_param."),
        ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
        (
            "priority",
            {"string_param": "1"},
            "invalid value type for 'priority' parameter, expected int64_param or uint",
        ),
        ("timeout", {"uint64_param": 1}, "invalid value type for 'timeout' parameter, expected int64_param."),
        ("own", {}, "invalid value type for 'own' parameter, expected int64_param, bool_param, or string_param."),
        ("triton_x", {"int64_param": 1}, "parameter keys starting with 'triton_' are reserved for Triton usage. Only "),
        (
            "triton_enable_empty_final_response",
            {"int64_param": 1},
            "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
        ),
    ],
)
def test_parameters_that_are_refused(name, value, message):
    request = infer()
    request.parameters[name].CopyFrom(parameter(**value))
    assert refusal(request).startswith(message)


def test_too_many():
    def refused(message):
        with pytest.raises(ValueError, match=r".") as caught:
            split(message if isinstance(message, bytes) else message.SerializeToString(), ALIGNMENT)
        return str(caught.value)

    message = infer()
    for number in range(1025):
        message.parameters[str(number)].int64_param = 1
    assert refused(message) == "the request has 1025 parameters, expected at most 1024"
    assert refused(b"\x2a\0" * 4097) == "the request has 4097 inputs, expected at most 4096"
    assert refused(b"\x32\0" * 4097) == "the request has 4097 outputs, expected at most 4096"
    assert refused(infer(inputs=[{"shape": range(131_072)}])).startswith("the request has 131075 fields besides its ")
    assert refused(b"\x48\0" * 131_073) == "the request has 131073 fields besides its contents, expected at most 131072"
    assert refused(infer(model_version="x" * (4 << 20))).startswith(
        "the request has 4194312 bytes besides its contents"
    )
    assert refused(infer(id="x" * (4 << 20 | 1))).startswith(
        "the request has 4194305 bytes in its id, expected at most"
    )
    assert split(b"\x2a\0" * 4096 + b"\x32\0" * 4096, ALIGNMENT) is not None


def test_final_response():
    message = infer()
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    assert decode(message)[1].empty_final_response
    message.parameters["triton_enable_empty_final_response"].bool_param = False
    assert decode(message)[1] is PLAIN


def test_outputs():
    message = infer()
    for name in ("B", "A"):
        message.outputs.add(name=name)
    assert decode(message)[0].requested_outputs == ["B", "A"]
    message.outputs.add(name="C").parameters["classification"].int64_param = 3
    request, options = decode(message)
    assert request.requested_outputs == ["B", "A", "C"]
    assert options.classes == {"C": 3}
    assert decode(infer())[0].requested_outputs is None


@pytest.mark.parametrize(("id", "shown"), [("", "<id_unknown>"), ("mine", "mine")])
def test_duplicate_outputs(id, shown):
    """No output may be requested twice, with or without parameters."""
    message = infer(id=id)
    for name in ("A", "B", "C", "B", "A"):
        message.outputs.add(name=name)
    expected = f"[request id: {shown}] output 'B' already exists in request"
    assert refusal(message) == expected
    message.outputs[1].parameters["classification"].int64_param = 3
    assert refusal(message) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"int64_param": 0}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"int64_param": -1}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"string_param": "1"}, "invalid value type for 'classification' parameter, expected int64_param"),
    ],
)
def test_classes_that_are_none(value, message):
    request = infer()
    request.outputs.add(name="A").parameters["classification"].CopyFrom(parameter(**value))
    assert refusal(request) == message


def in_region(entry, **more):
    entry.parameters["shared_memory_region"].string_param = "r"
    entry.parameters["shared_memory_byte_size"].int64_param = 8
    for name, value in more.items():
        entry.parameters[name].int64_param = value
    return entry


def test_shared_memory():
    message = infer()
    in_region(tensor(message, "A"), shared_memory_offset=3)
    tensor(message, "B", raw=bytes(8))
    in_region(message.outputs.add(name="C"))
    request, _ = decode(message)
    assert request.inputs[0].data == b"r 3 8"
    assert request.inputs[1].offset > BASE
    assert request.output_places["C"] == OutputPlace("r", 0, 8, None)


def test_shared_memory_that_is_refused():
    def refused(change, **contents):
        message = infer()
        change(in_region(tensor(message, **contents)).parameters)
        return refusal(message)

    assert refused(lambda entries: entries.pop("shared_memory_byte_size")) == (
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'IN'"
    )
    assert refused(lambda entries: entries.pop("shared_memory_region")) == (
        "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'IN'"
    )
    wrong = parameter(bool_param=True)
    assert refused(lambda entries: entries["shared_memory_region"].CopyFrom(wrong)) == (
        "invalid value type for 'shared_memory_region' parameter for tensor 'IN', expected string_param."
    )
    assert refused(lambda entries: entries["shared_memory_byte_size"].CopyFrom(wrong)) == (
        "invalid value type for 'shared_memory_byte_size' parameter for tensor 'IN', expected int64_param."
    )
    assert refused(lambda entries: None, int64_contents=[1]) == (
        "unexpected 'content' provided when using shared memory for input tensor 'IN' for model 'm'"
    )
    message = infer()
    in_region(message.outputs.add(name="A"), classification=1)
    assert refusal(message) == "output can't set both 'shared_memory_region' and 'classification'"


def test_keys_that_are_no_message():
    with pytest.raises(InferenceError) as caught:
        read_target(b"\x0a\xff")
    assert caught.value.code is Code.INTERNAL
    with pytest.raises(InferenceError) as caught:
        read_target(infer(model_version="x").SerializeToString())
    assert caught.value.code is Code.INVALID_ARG


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
TENSORS = st.lists(
    st.tuples(NAMES, st.sampled_from(["INT64", "FP32", "BYTES", "X"]), st.lists(st.integers(0, 9), max_size=4)),
    max_size=4,
)


@given(NAMES, NAMES, TENSORS, st.lists(st.binary(max_size=300), min_size=4, max_size=4), st.booleans())
def test_whatever_protobuf_makes(model, id, tensors, raws, later):
    """Every message that protobuf encodes is decoded to the same request, in any order of its fields."""
    message = service_pb2.ModelInferRequest(id=id, raw_input_contents=raws[: len(tensors)])
    rest = service_pb2.ModelInferRequest(model_name=model)
    for name, datatype, shape in tensors:
        tensor(rest, name, datatype, shape)
    halves = [message.SerializeToString(), rest.SerializeToString()]
    request, _ = decode(b"".join(halves if later else reversed(halves)))
    assert (request.model_name, request.id, request.version) == (model, id, -1)
    assert [(each.name, each.datatype, each.shape, bytes(each.data)) for each in request.inputs] == [
        (*entry, raw) for entry, raw in zip(tensors, raws, strict=False)
    ]


@given(st.binary(max_size=200))
def test_whatever_comes(data):
    """It is refused, or read as protobuf reads it."""
    if split(data, ALIGNMENT) is None:
        return
    with suppress(InferenceError, UnicodeDecodeError):
        request, _ = decode(data)
        assert request.model_name == service_pb2.ModelInferRequest.FromString(data).model_name
