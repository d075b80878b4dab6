# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses encoded by hand and by native code, read by tritonclient's classes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc.infer_response import (
    empty_final,
    encode_any,
    encode_error_event,
    encode_infer,
    encode_infer_event,
    varint,
)
from pyruntime.runtime.native._codecs import write_message
from pyruntime.runtime.requests.types import InferResponse, OutputPlace, OutputTensor
from pyruntime.utils.errors import Code, InferenceError


def joined(parts):
    return b"".join(map(bytes, parts))


def read(parts):
    return service_pb2.ModelInferResponse.FromString(joined(parts))


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), NAMES)
OUTPUTS = st.lists(st.tuples(NAMES, NAMES, st.lists(st.integers(0, 2**63 - 1), max_size=4), st.binary(max_size=300)))


@given(NAMES, st.integers(1, 2**40), NAMES, st.dictionaries(NAMES, VALUES, max_size=4), OUTPUTS)
def test_whatever_a_model_answers(model, version, id, parameters, outputs):
    tensors = [OutputTensor(name, kind, shape, memoryview(data)) for name, kind, shape, data in outputs]
    response = InferResponse(model, version, id, tensors, parameters)
    assert joined(write_message(response, None)) == joined(encode_any(response))
    for encode in (encode_infer, encode_any):
        message = read(encode(response))
        assert (message.model_name, message.model_version, message.id) == (model, str(version), id)
        found = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()
        }
        assert found == parameters
        assert [(type(found[name]), name) for name in parameters] == [
            (type(value), name) for name, value in parameters.items()
        ]
        assert [(each.name, each.datatype, list(each.shape)) for each in message.outputs] == [
            each[:3] for each in outputs
        ]
        assert list(message.raw_output_contents) == [each[3] for each in outputs]


def test_outputs_in_shared_memory():
    place = OutputPlace("r", 0, 8, None)
    outputs = [
        OutputTensor("A", "INT8", [8], b"", place=place),
        OutputTensor("B", "INT8", [1], b"x"),
        OutputTensor("C", "INT8", [4], b"", place=OutputPlace("r", 16, 4, None)),
    ]
    message = read(encode_infer(InferResponse("m", 1, "", outputs)))
    assert list(message.raw_output_contents) == [b"", b"x", b""]
    first, second, third = message.outputs
    assert first.parameters["shared_memory_region"].string_param == "r"
    assert first.parameters["shared_memory_byte_size"].int64_param == 8
    assert "shared_memory_offset" not in first.parameters
    assert not second.parameters
    assert third.parameters["shared_memory_offset"].int64_param == 16


@pytest.mark.parametrize("value", [1, True, 1.0, "1", 0.0, -0.0, 0, False, "", "0", -(2**63), math.inf, math.nan])
def test_parameters_that_look_alike(value):
    response = InferResponse("m", 1, "", [], {"a": value, "b": 1})
    assert joined(write_message(response, None)) == joined(encode_any(response))
    parameter = read(encode_infer(response)).parameters["a"]
    found = getattr(parameter, parameter.WhichOneof("parameter_choice"))
    assert (type(found), repr(found)) == (type(value), repr(value))


@pytest.mark.parametrize("parameters", [{"a": "\ud800"}, {"a": 2**63}, {"\ud800": 1}, {"a": None}])
def test_what_protobuf_cannot_express(parameters):
    with pytest.raises(InferenceError) as caught:
        encode_infer(InferResponse("m", 1, "", [], parameters))
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    "response",
    [
        InferResponse("\ud800", 1, "", []),
        InferResponse("m", 1, "\ud800", []),
        InferResponse("m", 1, "", [OutputTensor("\ud800", "INT8", [1], b"x")]),
        InferResponse("m", 1, "", [OutputTensor("A", "INT8", [2**63], b"x")]),
        InferResponse("m", 1, "", [OutputTensor("A", "INT8", [1], b"", place=OutputPlace("r", 0, 1, None))]),
        InferResponse("m", 1, "", [OutputTensor("A", "INT8", (1,), b"x")]),
        InferResponse("m", 1, "", (), {"a": 1}),
    ],
    ids=["model", "id", "name", "shape", "place", "tuple", "tuples"],
)
def test_responses_that_native_code_leaves_to_the_reference(response):
    assert write_message(response, None) is None
    assert write_message(response, True) is None


@pytest.mark.parametrize("arguments", [(), (1, None), (InferResponse("m", 1, "", []),)])
def test_what_is_no_response(arguments):
    with pytest.raises((TypeError, AttributeError)):
        write_message(*arguments)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("place", [None, OutputPlace("r", 0, 300, None)], ids=["native", "reference"])
def test_events(final, place):
    response = InferResponse("m", 1, "7", [OutputTensor("A", "INT8", [300], bytes(300), place=place)], {"a": 1})
    parts = encode_infer_event(response, final)
    event = service_pb2.ModelStreamInferResponse.FromString(joined(parts))
    assert event.error_message == ""
    assert event.infer_response.id == "7"
    assert event.infer_response.parameters["triton_final_response"].bool_param is final
    assert event.infer_response.parameters["a"].int64_param == 1
    assert event.infer_response.raw_output_contents == [b"" if place else bytes(300)]


@given(NAMES, NAMES, st.dictionaries(NAMES, VALUES, max_size=2), OUTPUTS, st.booleans())
def test_events_have_the_same_bytes_from_native_code(model, id, parameters, outputs, final):
    tensors = [OutputTensor(*each) for each in outputs]
    response = InferResponse(model, 1, id, tensors, parameters)
    # Native code reads lists only.
    elsewhere = replace(response, outputs=(*tensors,))
    assert joined(encode_infer_event(response, final)) == joined(encode_infer_event(elsewhere, final))


def test_errors():
    event = service_pb2.ModelStreamInferResponse.FromString(encode_error_event("no \ud800", "m", "1", "7", None))
    assert event.error_message == "no \\ud800"
    assert (event.infer_response.id, event.infer_response.model_name) == ("7", "m")
    assert not event.infer_response.parameters
    event = service_pb2.ModelStreamInferResponse.FromString(encode_error_event("no", "m", "1", "7", True))
    assert event.infer_response.parameters["triton_final_response"].bool_param


def test_the_end_that_has_nothing_else():
    event = service_pb2.ModelStreamInferResponse.FromString(joined(empty_final("m", 3, "7")))
    message = event.infer_response
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "7")
    assert message.parameters["triton_final_response"].bool_param
    assert not message.outputs


@given(st.integers(0, 2**64 - 1))
def test_varint(number):
    assert service_pb2.InferParameter.FromString(b"\x28" + varint(number)).uint64_param == number
