# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses encoded by hand, read by tritonclient's classes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc import infer_response
from pyruntime.runtime.frontends.grpc.infer_response import (
    empty_final,
    encode_error_event,
    encode_event,
    encode_infer,
    final_parameter,
    varint,
)
from pyruntime.runtime.requests.types import InferResponse, OutputPlace, OutputTensor
from pyruntime.utils.errors import Code, InferenceError


def read(parts):
    return service_pb2.ModelInferResponse.FromString(b"".join(map(bytes, parts)))


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), NAMES)
OUTPUTS = st.lists(st.tuples(NAMES, NAMES, st.lists(st.integers(0, 2**63 - 1), max_size=4), st.binary(max_size=300)))


@given(NAMES, st.integers(1, 2**40), NAMES, st.dictionaries(NAMES, VALUES, max_size=4), OUTPUTS)
def test_whatever_a_model_answers(model, version, id, parameters, outputs):
    tensors = [OutputTensor(name, kind, shape, memoryview(data)) for name, kind, shape, data in outputs]
    for _ in range(2):  # the second time from memory
        message = read(encode_infer(InferResponse(model, version, id, tensors, parameters)))
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


def test_heads_that_look_alike():
    """A remembered head is not used for another response."""
    seen = set()
    for names in (["A", "B"], ["A"], ["AB"], []):
        for shape in ([], [1], [1, 2], [12]):
            outputs = [OutputTensor(name, "INT8", shape, b"") for name in names]
            for model in ("m", "n"):
                for version in (1, 12):
                    seen.add(read(encode_infer(InferResponse(model, version, "", outputs))).SerializeToString())
    assert len(seen) == 3 * 4 * 4 + 4


def test_what_is_remembered_is_limited():
    for number in range(infer_response.HEADS_KEPT_MAX + 10):
        output = OutputTensor("A", "INT8", [number], bytes(number))
        assert read(encode_infer(InferResponse("m", 1, "", [output]))).outputs[0].shape == [number]
    assert len(infer_response._heads) <= infer_response.HEADS_KEPT_MAX
    assert len(infer_response._raw_prefixes) <= infer_response.SIZES_KEPT_MAX


def test_parameters_that_look_alike():
    """Parameters are remembered by what they are, not by what they are equal to."""
    for value in (1, True, 1.0, "1", 0.0, -0.0, 0, False, "", "0"):
        for _ in range(2):
            answer = read(encode_infer(InferResponse("m", 1, "", [], {"a": value})))
            parameter = answer.parameters["a"]
            found = getattr(parameter, parameter.WhichOneof("parameter_choice"))
            assert (type(found), repr(found)) == (type(value), repr(value))
    for number in range(infer_response.PARAMETERS_KEPT_MAX + 10):
        answer = read(encode_infer(InferResponse("m", 1, "", [], {"a": number})))
        assert answer.parameters["a"].int64_param == number
    assert len(infer_response._encoded_parameters) <= infer_response.PARAMETERS_KEPT_MAX


@pytest.mark.parametrize("parameters", [{"a": "\ud800"}, {"a": 2**63}, {"\ud800": 1}])
def test_what_protobuf_cannot_express(parameters):
    with pytest.raises(InferenceError) as caught:
        encode_infer(InferResponse("m", 1, "", [], parameters))
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize("final", [False, True])
def test_events(final):
    parts = encode_infer(InferResponse("m", 1, "7", [OutputTensor("A", "INT8", [300], bytes(300))]))
    data = b"".join(encode_event([*parts, final_parameter(final)]))
    event = service_pb2.ModelStreamInferResponse.FromString(data)
    assert event.error_message == ""
    assert event.infer_response.id == "7"
    assert event.infer_response.parameters["triton_final_response"].bool_param is final
    assert event.infer_response.raw_output_contents == [bytes(300)]


def test_errors():
    event = service_pb2.ModelStreamInferResponse.FromString(encode_error_event("no \ud800", "m", "1", "7", None))
    assert event.error_message == "no \\ud800"
    assert (event.infer_response.id, event.infer_response.model_name) == ("7", "m")
    assert not event.infer_response.parameters
    event = service_pb2.ModelStreamInferResponse.FromString(encode_error_event("no", "m", "1", "7", True))
    assert event.infer_response.parameters["triton_final_response"].bool_param


def test_the_end_that_has_nothing_else():
    message = read(empty_final("m", 3, "7"))
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "7")
    assert message.parameters["triton_final_response"].bool_param
    assert not message.outputs


@given(st.integers(0, 2**64 - 1))
def test_varint(number):
    assert service_pb2.InferParameter.FromString(b"\x28" + varint(number)).uint64_param == number
