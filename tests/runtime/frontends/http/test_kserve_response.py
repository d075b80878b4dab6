# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferResult
from tritonclient.utils import serialize_byte_tensor

from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY, ALL_JSON, OutputOptions
from pyruntime.runtime.frontends.http.kserve_response import (
    encode_error,
    encode_infer,
)
from pyruntime.runtime.requests.types import InferResponse, KeptOutputs, OutputTensor
from pyruntime.utils.dtypes import BY_NAME, DATATYPES
from pyruntime.utils.errors import Code, InferenceError


def respond(*outputs, name="m", version=1, id="", **members):
    return InferResponse(name, version, id, list(outputs), **members)


def array_of(datatype, shape):
    """An array of this datatype and shape, as the client gives it, and its contents as they are sent."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        array = np.empty(count, dtype=object)
        array[:] = [f"é{i}".encode() for i in range(count)]
        encoded = serialize_byte_tensor(array)
        return array.reshape(shape), encoded.item() if encoded.size else b""
    dtype = ml_dtypes.bfloat16 if datatype == "BF16" else BY_NAME[datatype].numpy
    array = (np.arange(count) % 2).astype(dtype).reshape(shape)
    return array, array.tobytes()


def read(response, options):
    """Decode the encoded response with the client library."""
    document, header_length, parts = encode_infer(response, options)
    assert header_length == (len(document) if parts else 0)
    return InferResult.from_response_body(b"".join([document, *parts]), header_length=header_length or None)


@pytest.mark.parametrize("shape", [(2, 3), (0,), (3, 0, 2), ()], ids=str)
@pytest.mark.parametrize("datatype", [each.name for each in DATATYPES])
@pytest.mark.parametrize("options", [ALL_BINARY, ALL_JSON], ids=["binary", "json"])
def test_client_reads_every_datatype(datatype, shape, options):
    """The client gets back the very array, in either form."""
    if options is ALL_JSON and datatype in ("FP16", "BF16"):
        return
    array, contents = array_of(datatype, shape)
    result = read(respond(OutputTensor("Y", datatype, list(shape), memoryview(contents)), id="7"), options)
    found = result.as_numpy("Y")
    if datatype == "BYTES" and options is ALL_JSON:
        array = np.array([element.decode() for element in array.ravel()], dtype=object).reshape(shape)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert (found == array).all()
    assert result.get_response()["id"] == "7"


def test_outputs_that_are_kept():
    """Responses with the same outputs share their document and parts: not the id, the parameters or the model."""
    contents = bytearray(2)
    outputs = KeptOutputs([OutputTensor("Y", "INT8", [2], memoryview(contents))])
    for number, (name, version, id, parameters) in enumerate(
        [("m", 1, "", {}), ("m", 1, "7", {}), ("m", 1, "", {"a": 1}), ("m", 2, "", {}), ("n", 1, "8", {"a": 2})] * 2
    ):
        contents[:] = [number, 0]
        result = read(InferResponse(name, version, id, outputs, parameters), ALL_BINARY)
        assert result.as_numpy("Y").tolist() == [number, 0]
        found = result.get_response()
        assert (found["model_name"], found["model_version"], found.get("id", "")) == (name, str(version), id)
        assert found.get("parameters", {}) == parameters


def test_client_reads_both_forms_at_once():
    """Binary parts stand in the order of the outputs that have them."""
    outputs = [OutputTensor(name, "INT8", [2], bytes([i, i])) for i, name in enumerate("ABCD")]
    result = read(respond(*outputs), OutputOptions(True, {"B": False, "C": False}))
    assert [result.as_numpy(name).tolist() for name in "ABCD"] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert ["data" in each for each in result.get_response()["outputs"]] == [False, True, True, False]


def test_binary_response_in_full():
    """Members stand in Triton's order; the parts are the very views of the response."""
    a, b = memoryview(bytes(64)), memoryview(bytes(8))
    document, header_length, parts = encode_infer(
        respond(OutputTensor("A", "FP32", [1, 16], a), OutputTensor("B", "INT64", [], b), id='say "1"', version=3),
        ALL_BINARY,
    )
    assert document == (
        rb'{"id":"say \"1\"","model_name":"m","model_version":"3","outputs":['
        b'{"name":"A","datatype":"FP32","shape":[1,16],"parameters":{"binary_data_size":64}},'
        b'{"name":"B","datatype":"INT64","shape":[],"parameters":{"binary_data_size":8}}]}'
    )
    assert header_length == len(document)
    assert parts[0] is a
    assert parts[1] is b


@pytest.mark.parametrize("options", [ALL_BINARY, ALL_JSON], ids=["binary", "json"])
def test_parameters_stand_before_the_outputs(options):
    """The parameters of a response are written where Triton writes them, in either form."""
    document, _, _ = encode_infer(
        respond(OutputTensor("A", "INT8", [1], b"\5"), id="1", parameters={"s": "é", "i": 1, "b": True, "d": 0.5}),
        options,
    )
    tensor = b'"parameters":{"binary_data_size":1}' if options is ALL_BINARY else b'"data":[5]'
    assert document.decode() == (
        '{"id":"1","model_name":"m","model_version":"1","parameters":{"s":"é","i":1,"b":true,"d":0.5},'
        '"outputs":[{"name":"A","datatype":"INT8","shape":[1],' + tensor.decode() + "}]}"
    )


@pytest.mark.parametrize("options", [ALL_BINARY, ALL_JSON], ids=["binary", "json"])
def test_response_without_outputs(options):
    """There may be no outputs, and then there is no binary data either."""
    assert encode_infer(respond(), options) == (b'{"model_name":"m","model_version":"1","outputs":[]}', 0, [])


def test_json_of_numbers_that_are_not_finite():
    """NaN and the infinities are written by name, which the client reads."""
    contents = np.array([[1, math.nan], [math.inf, -math.inf]], "<f4").tobytes()
    response = respond(OutputTensor("Y", "FP32", [2, 2], contents))
    document, header_length, parts = encode_infer(response, ALL_JSON)
    assert document.endswith(b'"shape":[2,2],"data":[1.0,NaN,Infinity,-Infinity]}]}')
    assert (header_length, parts) == (0, [])
    assert np.array_equal(
        read(response, ALL_JSON).as_numpy("Y"), [[1, math.nan], [math.inf, -math.inf]], equal_nan=True
    )


def test_output_without_a_json_form():
    """The error says so, in Triton's words."""
    with pytest.raises(InferenceError) as caught:
        encode_infer(respond(OutputTensor("Y", "FP16", [1], b"\0\0")), ALL_JSON)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        "sending FP16 data via JSON is not supported. Please use the binary data format for output 'Y'"
    )


def test_a_document_is_that_of_its_response():
    """Responses that differ in anything but contents and id have documents of their own."""

    def output(name="A", datatype="INT8", shape=(2, 1), size=2):
        return OutputTensor(name, datatype, list(shape), bytes(size))

    responses = [
        respond(output()),
        respond(output(), name="n"),
        respond(output(), version=2),
        respond(output(name="B")),
        respond(output(datatype="UINT8")),
        respond(output(shape=(1, 2))),
        respond(output(shape=(2,))),
        respond(output(shape=(), size=2)),
        respond(output(size=3)),
        respond(output(), output(name="B")),
        respond(),
    ]
    documents = [encode_infer(response, ALL_BINARY)[0] for response in responses]
    assert len(set(documents)) == len(responses)
    for response, document in zip(responses, documents, strict=True):
        response.id = "x"
        assert encode_infer(response, ALL_BINARY)[0] == b'{"id":"x",' + document[1:]


def test_ids_and_parameters_are_members_whatever_they_contain():
    """So they are beside names and strings that look like members."""
    tensor = OutputTensor('"outputs":[', "INT8", [1], b"\1")
    for id in ("", "1", '"outputs":['):
        for parameters in ({"a": 0}, {"a": False}, {"a": 0.0}, {"outputs": '"outputs":['}, {}):
            response = respond(tensor, name='"outputs":', id=id, parameters=parameters)
            document, _, (contents,) = encode_infer(response, ALL_BINARY)
            members = {"id": id} if id else {}
            members |= {"model_name": '"outputs":', "model_version": "1"}
            members |= {"parameters": parameters} if parameters else {}
            described = {"datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": 1}}
            members["outputs"] = [{"name": '"outputs":['} | described]
            assert (document, contents) == (json.dumps(members, separators=(",", ":")).encode(), b"\1")


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("no", b'{"error":"no"}'),
        ('it\'s "é"\n', '{"error":"it\'s \\"é\\"\\n"}'.encode()),
        ("file \udcff", rb'{"error":"file \\udcff"}'),
    ],
)
def test_errors(message, body):
    """An error is one member, for any message."""
    assert encode_error(message) == body
    assert list(json.loads(body)) == ["error"]
