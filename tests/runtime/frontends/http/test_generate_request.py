# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.frontends.common.request_parameters import PARAMETERS_MAX
from pyruntime.runtime.frontends.http.generate_request import (
    PARAMETER_CHARACTERS_MAX,
    VALUES_MAX,
    decode_generate,
    parsed_bytes,
)
from pyruntime.runtime.frontends.http.long_strings import LONG_BYTES, LongStrings
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.byte_tensors import serialize_byte_tensor
from pyruntime.utils.errors import Code, InferenceError

from ...model_specs import spec_from


def spec(*inputs, max_batch_size=0):
    """A model with these inputs, each of them (name, datatype, dims)."""
    text = f"name: 'm' max_batch_size: {max_batch_size} output {{ name: 'OUT' data_type: TYPE_INT32 dims: -1 }}"
    for name, datatype, dims in inputs:
        text += f" input {{ name: '{name}' data_type: TYPE_{datatype} dims: {list(dims)} }}"
    return spec_from(text)


LLM = spec(("PROMPT", "STRING", [1]), ("STREAM", "BOOL", [1]))


def decode(document, model=LLM):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_generate(LongStrings(text), model)


def refusal(document, model=LLM):
    with pytest.raises(InferenceError) as caught:
        decode(document, model)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def strings(*values):
    return bytes(serialize_byte_tensor(np.array([value.encode() for value in values], object)))


def test_members_are_inputs_and_parameters():
    """A member with an input's name is that input, any other one is a parameter; nested ones are no different."""
    nested = {"STREAM": False, "top_p": 0.5, "id": "x"}
    document = {"id": "7", "PROMPT": "hé", "temperature": 1, "parameters": nested, "echo": True, "stop": "."}
    assert decode(document) == InferRequest(
        "m",
        id="7",
        inputs=[InputTensor("PROMPT", "BYTES", [1], strings("hé")), InputTensor("STREAM", "BOOL", [1], b"\0")],
        parameters={"temperature": 1, "echo": True, "stop": ".", "top_p": 0.5, "id": "x"},
    )


def test_nothing_said():
    """Whether inputs are missing is not asked here."""
    assert decode({}) == InferRequest("m")
    assert decode({"parameters": {}}) == InferRequest("m")


def test_many_values():
    """An input may have many elements. A document with more values than the limit is refused before it is parsed."""
    model = spec(("IN", "INT32", [-1]))
    count = VALUES_MAX // 2
    assert decode(b'{"IN": [%b1]}' % (b"1," * (count - 1)), model).inputs[0].shape == [count]
    message = refusal(b'{"IN": [%b1]' % (b"1," * VALUES_MAX), model)
    assert message == f"failed to parse the request JSON buffer: it has more than {VALUES_MAX} values"


def test_no_parameter_is_reserved():
    """All of them are the model's, wherever they stand: as in Triton, none says anything to the server."""
    parameters = {"sequence_id": 3, "sequence_start": True, "triton_x": 1}
    request = decode(parameters | {"parameters": {"priority": -2, "timeout": "9"}})
    assert request == InferRequest("m", parameters=parameters | {"priority": -2, "timeout": "9"})


@pytest.mark.parametrize(
    ("dims", "batches", "value", "shape"),
    [
        ([1], False, 5, [1]),
        ([1], False, [5], [1]),
        ([1], True, 5, [1, 1]),
        ([], False, 5, []),
        ([], False, [5], []),
        ([], True, 5, [1]),
        ([-1], False, 5, [1]),
        ([-1], False, [1, 2, 3], [3]),
        ([-1], True, [1, 2, 3], [1, 3]),
        ([-1], True, [[1, 2], [3, 4]], [1, 4]),
        ([-1], False, [], [0]),
        ([2], True, [1, 2, 3, 4], [2, 2]),
        ([1], True, [1, 2, 3], [3, 1]),
        ([-1, 2], False, [1, 2, 3, 4], [2, 2]),
        ([2, -1], False, [1, 2, 3, 4, 5, 6], [2, 3]),
        ([-1, -1], True, [1, 2], [1, 1, 2]),
        ([1, 1, 1], False, 5, [1, 1, 1]),
    ],
)
def test_shapes_follow_from_the_configuration(dims, batches, value, shape):
    """The last variable dimension takes all there is, and others are 1: a request is a batch of one where it can be."""
    model = spec(("X", "INT32", dims), max_batch_size=8 if batches else 0)
    request = decode({"X": value}, model)
    (tensor,) = request.inputs
    assert (tensor.shape, tensor.datatype) == (shape, "INT32")
    assert np.frombuffer(tensor.data, np.int32).tolist() == np.array(value, np.int32).ravel().tolist()
    check_request(model, request)


@given(st.lists(st.sampled_from([-1, 0, 1, 2, 3]), max_size=4), st.integers(0, 24))
def test_shapes_always_fit(dims, count):
    """A derived shape has as many elements as the data, and fits the configuration."""
    model = spec(("X", "INT32", dims or [1]))
    # Configurations have no dimensions of 0, but nothing here relies on that.
    try:
        (tensor,) = decode({"X": list(range(count))}, model).inputs
    except InferenceError:
        fixed = int(np.prod([dim for dim in model.inputs["X"].shape if dim != -1]))
        assert count % fixed if fixed and -1 in dims else count != fixed
        return
    assert int(np.prod(tensor.shape)) == count
    assert all(size == dim or dim == -1 for size, dim in zip(tensor.shape, model.inputs["X"].shape, strict=True))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[1]", "the request must be a JSON object, got a list"),
        ({"id": 1}, "'id' must be a string, got an integer"),
        ({"parameters": [1]}, "Expected JSON object for keyword: 'parameters', got a list"),
        ({"parameters": None}, "Expected JSON object for keyword: 'parameters', got null"),
        ({"PROMPT": 1}, "attempt to access JSON non-string as string: input 'PROMPT' takes strings, got an integer"),
        ({"PROMPT": None}, "attempt to access JSON non-string as string: input 'PROMPT' takes strings, got null"),
        ({"PROMPT": {}}, "attempt to access JSON non-string as string: input 'PROMPT' takes strings, got an object"),
        ({"STREAM": "no"}, "the data of input 'STREAM' must hold true or false for BOOL, got a string"),
        ({"STREAM": 1}, "the data of input 'STREAM' must hold true or false for BOOL, got an integer"),
        ({"PROMPT": ["a", "b"]}, "The schema can not convert input 'PROMPT' to tensor with proper shape"),
        ({"PROMPT": []}, "The schema can not convert input 'PROMPT' to tensor with proper shape"),
        (b'{"PROMPT": "a", "PROMPT": "b"}', "[request id: <id_unknown>] input 'PROMPT' already exists in request"),
        (
            b'{"id": "7", "PROMPT": "a", "parameters": {"PROMPT": "b"}}',
            "Converting keyword: 'parameters': [request id: 7] input 'PROMPT' already exists in request",
        ),
        (b'{"id": "7", "x": 1, "x": 1}', "[request id: 7] parameter 'x' already exists in request"),
        (
            b'{"x": 1, "parameters": {"x": 1}}',
            "Converting keyword: 'parameters': [request id: <id_unknown>] parameter 'x' already exists in request",
        ),
        ({"x": None}, "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (
            {"parameters": {"x": None}},
            "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"parameters": dict.fromkeys(map(str, range(PARAMETERS_MAX + 1)), 1)},
            f"the request has {PARAMETERS_MAX + 1} parameters, expected at most {PARAMETERS_MAX}",
        ),
    ],
)
def test_mistakes(document, message):
    """Each mistake has a message of its own."""
    assert refusal(document) == message


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["a", '\u00e9"', 1], '["a","\u00e9\\"",1]'),
        ([], "[]"),
        ([[1, 2.5], [None, True]], "[[1,2.5],[null,true]]"),
        ({"type": "json", "of": [{}]}, '{"type":"json","of":[{}]}'),
    ],
)
def test_lists_and_objects_as_parameters(value, text, nested):
    """A parameter can be neither, so the model gets their JSON text."""
    document = {"stop": value}
    request = decode({"PROMPT": "a", **({"parameters": document} if nested else document)})
    assert request.parameters == {"stop": text}
    assert json.loads(text) == value


def test_long_lists_as_parameters():
    """Their texts count as strings."""
    with pytest.raises(InferenceError, match="parameters have more than 4194304 characters"):
        decode({"a": ["x" * 1000] * (PARAMETER_CHARACTERS_MAX // 1000)})


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        ("INT8", 200, "input 'X' holds 200, which is out of range for INT8"),
        ("INT8", 1.5, "the data of input 'X' must hold integers for INT8, got a double"),
        (
            "FP16",
            1.5,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input 'X'",
        ),
    ],
)
def test_values_that_an_input_cannot_have(datatype, value, message):
    """Values are checked with the datatype in the configuration."""
    assert refusal({"X": value}, spec(("X", datatype, [1]))) == message


@given(st.dictionaries(st.text(max_size=4), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_any_object(document):
    """An object is a request or refused, and nothing else happens."""
    try:
        inputs = decode(document).inputs
    except InferenceError:
        inputs = []
    assert inputs == []


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", '"', "\\", "\n"])
def test_long_strings_are_inputs_like_short_ones(character):
    """A string of any length is an input, a part of one, a parameter, a part of one, or a name."""
    long = character * (LONG_BYTES + 1)
    model = spec(("IN", "STRING", [-1]), ("ONE", "STRING", [1]))
    document = {"IN": ["a", long, "", long[1:]], "ONE": long, "p": long, "q": ["b", {"c": long}], long: 1}
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False)):
        request = decode(text.encode(), model)
        assert [each.name for each in request.inputs] == ["IN", "ONE"]
        assert bytes(request.inputs[0].data) == strings("a", long, "", long[1:])
        assert bytes(request.inputs[1].data) == strings(long)
        assert request.parameters["p"] == long
        assert json.loads(request.parameters["q"]) == ["b", {"c": long}]
        assert request.parameters[long] == 1


def test_long_strings_are_no_other_inputs():
    """Where another kind of value, or another name, is wanted, a long string is refused as a short one is."""
    long = "x" * (LONG_BYTES + 1)
    assert "must hold true or false for BOOL, got a string" in refusal({"STREAM": long, "PROMPT": "x"})
    assert "got an integer" in refusal({"PROMPT": [1, long]}, spec(("PROMPT", "STRING", [2])))
    assert decode({"id": long}).id == long


def test_long_parameters():
    """Strings of parameters have a limit together; those of tensors have none."""
    half = "x" * (PARAMETER_CHARACTERS_MAX // 2)
    spec = spec_from("name: 'm' input { name: 'IN' data_type: TYPE_STRING dims: 1 }")
    assert decode({"IN": 3 * half, "a": half, "b": half}, spec).parameters["b"] == half
    with pytest.raises(InferenceError, match="parameters have more than 4194304 characters"):
        decode({"IN": "", "a": half, "parameters": {"b": half, "c": "x"}}, spec)


@pytest.mark.parametrize(
    ("text", "factor"), [(b'{"a":"b"}', 2), ('{"a":"é"}'.encode(), 5), (b'{"a":"\\u00e9"}', 5), (b'{"a":"\\n"}', 2)]
)
def test_bytes_that_parsing_takes(text, factor):
    """A character that is not ASCII makes its whole string wider."""
    assert parsed_bytes(LongStrings(bytearray(text))) == factor * len(text)
