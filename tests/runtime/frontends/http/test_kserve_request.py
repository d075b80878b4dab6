# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.http.kserve_request import (
    ALL_BINARY,
    ALL_JSON,
    DIM_MAX,
    DIMS_MAX,
    TENSORS_MAX,
    OutputOptions,
    decode_infer,
)
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.dtypes import BY_NAME, DATATYPES
from pyruntime.utils.errors import Code, InferenceError

from ...model_specs import BARE_SPEC

SPEC = replace(
    BARE_SPEC,
    inputs={"X": TensorSpec("X", "INT8", (-1,), (-1,))},
    outputs={"Y": TensorSpec("Y", "INT8", (-1,), (-1,))},
    required_inputs=frozenset({"X"}),
)
SHM_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def body_of(document, *binary):
    """The body and the header length of a request with these parts."""
    header = json.dumps(document).encode()
    return memoryview(b"".join((header, *binary))), len(header)


def entry(name="X", shape=(2,), datatype="INT8", size=2, **members):
    tensor = {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}, **members}
    return {key: value for key, value in tensor.items() if value is not ...}


def refusal(document, *binary, code=Code.INVALID_ARG):
    """The message of the error, which must be the same with a header length and, if there can be one, without."""
    body, header_length = body_of(document, *binary)
    with pytest.raises(InferenceError) as caught:
        decode_infer(body, header_length, SPEC)
    if not binary:
        with pytest.raises(InferenceError) as again:
            decode_infer(body, None, SPEC)
        assert again.value.message == caught.value.message
    assert caught.value.code is code
    return caught.value.message


def refusal_of_input(*binary, code=Code.INVALID_ARG, **members):
    return refusal({"inputs": [entry(**members)]}, *binary, code=code)


def refusal_of_output(*outputs, code=Code.INVALID_ARG):
    return refusal({"inputs": [], "outputs": outputs}, code=code)


# --- requests of the real client


def sample(datatype, shape):
    """An array of this datatype and shape, as the client takes it."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        elements = np.empty(count, dtype=object)
        elements[:] = [f"é{i}".encode() for i in range(count)]
        return elements.reshape(shape)
    dtype = ml_dtypes.bfloat16 if datatype == "BF16" else BY_NAME[datatype].numpy
    return (np.arange(count) % 2).astype(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(2, 3), (0,), (3, 0, 2), ()], ids=str)
@pytest.mark.parametrize("datatype", [each.name for each in DATATYPES])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_client_inputs(datatype, shape, binary):
    """Every array that the client library sends, in either form, is decoded to the same contents."""
    array = sample(datatype, shape)
    tensor = InferInput("X", list(shape), datatype).set_data_from_numpy(array)
    contents = tensor._get_binary_data()
    if not binary:
        if datatype in ("FP16", "BF16"):
            return
        tensor.set_data_from_numpy(array, binary_data=False)
    body, header_length = InferenceServerClient.generate_request_body([tensor])
    assert (header_length is None) is not binary
    request, options = decode_infer(memoryview(body), header_length, SPEC)
    assert request == InferRequest("m", inputs=[InputTensor("X", datatype, list(shape), contents)])
    assert options is ALL_BINARY


def test_client_mixes_both_forms():
    """Binary contents stand in the order of the inputs that have them; only these lie in the request region."""
    inputs = [
        InferInput("A", [2], "INT16").set_data_from_numpy(np.array([1, 2], np.int16)),
        InferInput("B", [1], "INT16").set_data_from_numpy(np.array([3], np.int16), binary_data=False),
        InferInput("C", [1], "INT16").set_data_from_numpy(np.array([4], np.int16)),
    ]
    body, header_length = InferenceServerClient.generate_request_body(inputs)
    request, _ = decode_infer(memoryview(body), header_length, SPEC, base=640)
    assert [(each.name, bytes(each.data), each.offset) for each in request.inputs] == [
        ("A", b"\1\0\2\0", 640 + header_length),
        ("B", b"\3\0", -1),
        ("C", b"\4\0", 640 + header_length + 4),
    ]
    assert [each.offset for each in decode_infer(memoryview(body), header_length, SPEC)[0].inputs] == [-1, -1, -1]


def test_client_options():
    """Everything that the client can say about a request reaches it."""
    body, header_length = InferenceServerClient.generate_request_body(
        [InferInput("X", [1], "INT8").set_data_from_numpy(np.array([1], np.int8))],
        outputs=[InferRequestedOutput("Y"), InferRequestedOutput("Z", binary_data=False)],
        request_id="r-1",
        sequence_id="s",
        sequence_start=True,
        sequence_end=False,
        priority=3,
        timeout=250,
        parameters={"k": "v"},
    )
    request, options = decode_infer(memoryview(body), header_length, SPEC)
    assert request == InferRequest(
        "m",
        id="r-1",
        inputs=[InputTensor("X", "INT8", [1], b"\1")],
        requested_outputs=["Y", "Z"],
        parameters={"k": "v"},
        sequence_id="s",
        sequence_start=True,
        priority=3,
        timeout_us=250,
    )
    assert options.is_binary("Y")
    assert not options.is_binary("Z")


def test_contents_are_not_copied():
    """A binary input is a view of the body itself."""
    storage = bytearray(body_of({"inputs": [entry()]}, b"ab")[0])
    request, _ = decode_infer(memoryview(storage), len(storage) - 2, SPEC)
    storage[-1:] = b"z"
    assert bytes(request.inputs[0].data) == b"az"


def test_raw_request():
    """A header length of 0 makes all of the body the contents of the only input, and all outputs binary."""
    request, options = decode_infer(memoryview(b"abc"), 0, SPEC, base=64)
    assert request == InferRequest("m", inputs=[InputTensor("X", "INT8", [3], b"abc", 64)])
    assert options is ALL_BINARY


def test_unknown_members_are_ignored():
    """As Triton does."""
    body, header_length = body_of({"inputs": [entry(x=1)], "y": [2], "outputs": [{"name": "Y", "z": 3}]}, b"ab")
    assert decode_infer(body, header_length, SPEC)[0].requested_outputs == ["Y"]


# --- outputs


@pytest.mark.parametrize(
    ("default", "flags", "options"),
    [
        (None, None, ALL_JSON),
        (False, None, ALL_JSON),
        (True, None, ALL_BINARY),
        (True, [], ALL_BINARY),
        (None, [None, None], ALL_JSON),
        (True, [None, None], ALL_BINARY),
        (None, [True, True], ALL_BINARY),
        (True, [False, False], ALL_JSON),
        (True, [None, False], OutputOptions(False, {"0": True, "1": False})),
        (None, [None, True, False], OutputOptions(False, {"0": False, "1": True, "2": False})),
    ],
)
def test_output_options(default, flags, options):
    """An output is binary if it says so itself, or else if the request does."""
    document = {"inputs": []}
    if default is not None:
        document["parameters"] = {"binary_data_output": default}
    if flags is not None:
        document["outputs"] = [
            {"name": str(i)} if flag is None else {"name": str(i), "parameters": {"binary_data": flag}}
            for i, flag in enumerate(flags)
        ]
    request, found = decode_infer(body_of(document)[0], None, SPEC)
    assert found == options
    assert request.requested_outputs == ([str(i) for i in range(len(flags))] if flags else None)


def test_is_binary():
    """A name that is not listed follows the default."""
    options = OutputOptions(True, {"Y": False})
    assert [options.is_binary(name) for name in "YZ"] == [False, True]
    assert [options.is_binary("Y") for options in (ALL_BINARY, ALL_JSON)] == [True, False]


def test_outputs_that_make_no_sense():
    """The message names the output, the expected type and the value."""
    assert refusal_of_output(1) == "every output must be an object, got an integer"
    assert refusal_of_output({}) == "an output has no 'name'"
    assert refusal_of_output({"name": None}) == "the 'name' of every output must be a string, got null"
    assert refusal_of_output({"name": "Y"}, {"name": "Y"}) == (
        "[request id: <id_unknown>] output 'Y' already exists in request"
    )
    assert refusal_of_output({"name": "Y", "parameters": 1}) == "'parameters' of output 'Y' must be an object, got 1"
    assert refusal_of_output({"name": "Y", "parameters": {"binary_data": 0}}) == (
        "'binary_data' of output 'Y' must be true or false, got 0"
    )


@pytest.mark.parametrize("count", [-1, True, 1.0, "1", None])
def test_classes_are_counted(count):
    """The number of classes must be an integer."""
    assert refusal_of_output({"name": "Y", "parameters": {"classification": count}}) == (
        f"'classification' of output 'Y' must be an integer from 0 on, got {json.dumps(count)}"
    )


def test_classes():
    """Classes are requested by output; zero classes mean the contents."""
    outputs = [
        {"name": "A", "parameters": {"classification": 3}},
        {"name": "B", "parameters": {"classification": 2**63, "binary_data": True}},
        {"name": "C", "parameters": {"classification": 0}},
    ]
    body, _ = body_of({"inputs": [], "outputs": outputs})
    request, options = decode_infer(body, None, SPEC)
    assert request.requested_outputs == ["A", "B", "C"]
    assert options.classes == {"A": 3, "B": 2**63}
    assert [options.is_binary(name) for name in "ABC"] == [False, True, False]


def test_classes_do_not_go_to_shared_memory():
    """In Triton's own words."""
    parameters = {"classification": 0, "shared_memory_region": "r", "shared_memory_byte_size": 1}
    assert refusal_of_output({"name": "Y", "parameters": parameters}) == (
        "Output can't set both 'shared_memory_region' and 'classification'"
    )


def test_outputs_that_are_not_supported():
    """Client shared memory is disabled."""
    shm = {"name": "Y", "parameters": {"binary_data": False, "shared_memory_region": "r", "shared_memory_byte_size": 1}}
    assert refusal_of_output(shm, code=Code.UNSUPPORTED) == SHM_DISABLED


# --- inputs that make no sense


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "the request has no 'inputs'"),
        ({"inputs": None}, "'inputs' must be a list, got null"),
        ({"inputs": {}}, "'inputs' must be a list, got an object"),
        ({"inputs": [], "outputs": "Y"}, "'outputs' must be a list, got a string"),
        ({"inputs": [], "parameters": []}, "'parameters' must be an object, got a list"),
        ({"inputs": [], "id": 1}, "'id' must be a string, got an integer"),
        ({"inputs": [1]}, "every input must be an object, got an integer"),
        ({"inputs": ["name"]}, "every input must be an object, got a string"),
        ({"inputs": [[]]}, "every input must be an object, got a list"),
        ({"inputs": [entry(name=...)]}, "an input has no 'name'"),
        ({"inputs": [entry(shape=...)]}, "input \"X\" has no 'shape'"),
        ({"inputs": [entry(datatype=...)]}, "input \"X\" has no 'datatype'"),
        ({"inputs": [entry(name=5)]}, "the 'name' of every input must be a string, got 5"),
        ({"inputs": [entry(name=[])]}, "the 'name' of every input must be a string, got a list"),
        ({"inputs": [0] * (TENSORS_MAX + 1)}, f"the request has {TENSORS_MAX + 1} inputs, expected at most 4096"),
    ],
)
def test_documents_that_make_no_sense(document, message):
    """The message has the missing member, or the expected type and the value."""
    assert refusal(document) == message


def test_duplicate_inputs():
    """No input may be given twice."""
    for id, shown in (("", "<id_unknown>"), ("mine", "mine")):
        expected = f"[request id: {shown}] input 'X' already exists in request"
        assert refusal({"id": id, "inputs": [entry(), entry()]}, b"abcd") == expected


@pytest.mark.parametrize("datatype", ["FP8", "fp32", "TYPE_FP32", "", None, 1, ["INT8"]])
def test_unknown_datatypes(datatype):
    """A text that names none has Triton's message."""
    message = refusal_of_input(b"ab", datatype=datatype)
    if isinstance(datatype, str):
        assert message == "invalid datatype for input X"
    else:
        assert message.startswith("'datatype' of input 'X' must be a string, got ")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (2, "'shape' of input 'X' must be a list, got 2"),
        (None, "'shape' of input 'X' must be a list, got null"),
        ([2, -1], f"'shape' of input 'X' must hold integers from 0 to {DIM_MAX}, got -1"),
        ([True], f"'shape' of input 'X' must hold integers from 0 to {DIM_MAX}, got true"),
        ([2.0], f"'shape' of input 'X' must hold integers from 0 to {DIM_MAX}, got 2.0"),
        ([[2]], f"'shape' of input 'X' must hold integers from 0 to {DIM_MAX}, got a list"),
        (["2"], f"'shape' of input 'X' must hold integers from 0 to {DIM_MAX}, got \"2\""),
        ([DIM_MAX + 1], f"'shape' of input 'X' must hold integers from 0 to {DIM_MAX}, got {DIM_MAX + 1}"),
        ([1] * (DIMS_MAX + 1), f"input 'X' has {DIMS_MAX + 1} dimensions, expected at most {DIMS_MAX}"),
    ],
)
def test_shapes_that_are_none(shape, message):
    """A shape is a list of integers that are not negative."""
    assert refusal_of_input(b"ab", shape=shape) == message


@pytest.mark.parametrize("shape", [[DIM_MAX], [1] * DIMS_MAX, []], ids=["long", "deep", "scalar"])
def test_shapes_at_their_limits(shape):
    """Dimensions reach their limits; whether contents suit them is for others to check."""
    body, header_length = body_of({"inputs": [entry(shape=shape)]}, b"ab")
    assert decode_infer(body, header_length, SPEC)[0].inputs[0].shape == shape


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (3, "unexpected size for input 'X', expecting 1 additional bytes for model 'm'"),
        (2**64 - 1, f"unexpected size for input 'X', expecting {2**64 - 3} additional bytes for model 'm'"),
        (-1, "'binary_data_size' of input 'X' must be an integer from 0 on, got -1"),
        (True, "'binary_data_size' of input 'X' must be an integer from 0 on, got true"),
        (2.0, "'binary_data_size' of input 'X' must be an integer from 0 on, got 2.0"),
        ("2", "'binary_data_size' of input 'X' must be an integer from 0 on, got \"2\""),
        (None, "'binary_data_size' of input 'X' must be an integer from 0 on, got null"),
        (1, "unexpected additional input data for model 'm'"),
    ],
)
def test_binary_sizes_that_make_no_sense(size, message):
    """Every binary byte belongs to an input, and none to two."""
    assert refusal_of_input(b"ab", size=size) == message


def test_second_input_has_what_the_first_left():
    """Binary data is counted input by input."""
    assert refusal({"inputs": [entry("A"), entry("B")]}, b"abc") == (
        "unexpected size for input 'B', expecting 1 additional bytes for model 'm'"
    )


def test_binary_input_without_binary_data():
    """A body that is all document has no binary data."""
    assert refusal_of_input() == "unexpected size for input 'X', expecting 2 additional bytes for model 'm'"


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({"parameters": ...}, "no field is set"),
        ({"parameters": {"x": 1}}, "no field is set"),
        ({"data": [1, 2]}, "set 'data' 'binary_data_size'"),
        ({"data": None}, "set 'data' 'binary_data_size'"),
        ({"data": [1], "parameters": {"shared_memory_region": "r"}}, "set 'data' 'shared_memory_region'"),
        (
            {"parameters": {"binary_data_size": 2, "shared_memory_region": "r"}},
            "set 'binary_data_size' 'shared_memory_region'",
        ),
    ],
)
def test_contents_are_given_in_one_way(members, found):
    """Inputs with no contents or several are refused, with Triton's message."""
    assert refusal_of_input(**members) == (
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {found}"
    )


def test_input_in_shared_memory():
    """Client shared memory is disabled."""
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 2}
    assert refusal_of_input(parameters=parameters, code=Code.UNSUPPORTED) == SHM_DISABLED


def test_input_parameters_are_an_object():
    """Parameters must be an object, or null, which some clients write for none."""
    assert refusal_of_input(parameters=[1]) == "'parameters' of input 'X' must be an object, got a list"
    body, _ = body_of({"inputs": [entry(data=[1, 2], parameters=None)], "outputs": [{"name": "Y", "parameters": None}]})
    request, options = decode_infer(body, None, SPEC)
    assert request.inputs == [InputTensor("X", "INT8", [2], b"\1\2")]
    assert options == ALL_JSON


def test_json_contents_that_make_no_sense():
    """A mistake in a tensor of the document is reported with the input's name."""
    assert refusal_of_input(parameters=..., data=[1, 300]) == "input 'X' holds 300, which is out of range for INT8"


@pytest.mark.parametrize("header_length", [-1, 5, 2**63])
def test_header_lengths_that_make_no_sense(header_length):
    """A document lies within the body."""
    with pytest.raises(InferenceError) as caught:
        decode_infer(memoryview(b"{}ab"), header_length, SPEC)
    assert caught.value.message == f"inference header size should be in range (0, 4), got: {header_length}"
    assert caught.value.code is Code.INVALID_ARG


# --- anything at all


def test_truncated_at_any_byte():
    """A body that ends early is refused wherever it ends."""
    inputs = [
        InferInput("A", [2, 2], "FP32").set_data_from_numpy(np.ones((2, 2), np.float32)),
        InferInput("B", [2], "BYTES").set_data_from_numpy(np.array([b"ab", b""], object)),
    ]
    body, header_length = InferenceServerClient.generate_request_body(inputs, request_id="é")
    assert len(decode_infer(memoryview(body), header_length, SPEC)[0].inputs) == 2
    for end in range(len(body)):
        for length in (header_length, None):
            with pytest.raises(InferenceError):
                decode_infer(memoryview(body)[:end], length, SPEC)


def decodes_or_refuses(body, header_length):
    try:
        request, options = decode_infer(memoryview(body), header_length, SPEC)
    except InferenceError:
        return
    assert type(request) is InferRequest
    assert type(options) is OutputOptions


@given(st.binary(), st.none() | st.integers(-2, 40))
def test_any_bytes(body, header_length):
    """Bytes are a request or refused, and nothing else happens."""
    decodes_or_refuses(body, header_length)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([*BY_NAME, "X", 0, 1, 2])
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner), max_leaves=8
)


def members(**strategies):
    return st.fixed_dictionaries({}, optional={key: value | anything for key, value in strategies.items()})


parameters = members(
    binary_data_size=st.integers(0, 4),
    shared_memory_region=st.just("r"),
    binary_data=st.booleans(),
    classification=st.integers(0, 1),
)
documents = members(
    id=st.text(),
    inputs=st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from("XYZ") | anything, "shape": st.lists(st.integers(0, 2), max_size=2) | anything},
            optional={
                "datatype": st.sampled_from([*BY_NAME]) | anything,
                "data": st.lists(scalars, max_size=4) | anything,
                "parameters": parameters | anything,
            },
        ),
        max_size=3,
    ),
    outputs=st.lists(members(name=st.sampled_from("YZ"), parameters=parameters), max_size=3),
    parameters=members(
        sequence_id=st.text(), priority=st.integers(), timeout=st.integers(), binary_data_output=st.booleans()
    ),
)


@given(documents | anything, st.binary(max_size=8), st.booleans())
def test_any_document(document, binary, has_length):
    """Every document is decoded or refused."""
    header = json.dumps(document).encode()
    decodes_or_refuses(header + binary if has_length else header, len(header) if has_length else None)
