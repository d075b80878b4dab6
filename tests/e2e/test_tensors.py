# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Data between tritonclient and models: shapes, both encodings, parameters, ids and requested outputs."""

import json

import numpy as np
import pytest

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(tensor.name().replace("IN", "OUT"), tensor.as_numpy())
                                        for tensor in request.inputs()])
            for request in requests
        ]
"""
ECHO_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_%(datatype)s dims: [ %(dims)s ] } ]
output [ { name: "OUT" data_type: TYPE_%(datatype)s dims: [ %(dims)s ] } ]
"""
# Returns the request as the model saw it.
MIRROR = """
def text(string):
    return np.array([string.encode()], dtype=np.object_)

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = {
                "id": request.request_id(),
                "parameters": json.loads(request.parameters()),
                "outputs": sorted(request.requested_output_names()),
                "inputs": [tensor.name() for tensor in request.inputs()],
                "shapes": [tensor.shape() for tensor in request.inputs()],
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
            }
            outputs = [pb_utils.Tensor("SEEN", text(json.dumps(seen))), pb_utils.Tensor("OTHER", text("other"))]
            parameters = {"a_string": "text", "an_integer": -7, "a_boolean": True}
            responses.append(pb_utils.InferenceResponse(outputs, parameters=parameters))
        return responses
"""
MIRROR_CONFIG = """
backend: "python"
input [
  { name: "NEEDED" data_type: TYPE_FP32 dims: [ 2, -1 ] },
  { name: "OPTIONAL" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
]
output [ { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }, { name: "OTHER" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
NEEDED = {"NEEDED": np.zeros((2, 3), dtype=np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("tensors")
    for name, datatype, dims in (
        ("grid", "FP32", "-1, 3, -1"),
        ("fixed", "INT16", "2, 2"),
        ("line", "INT32", "-1"),
        ("two_variable", "INT32", "-1, -1"),
        ("string", "STRING", "1"),
        ("strings", "STRING", "-1, 2"),
    ):
        write_model(repository, name, ECHO, ECHO_CONFIG % {"datatype": datatype, "dims": dims})
    write_model(repository, "rows", ECHO, ECHO_CONFIG % {"datatype": "INT32", "dims": "2"}, "max_batch_size: 4")
    write_model(repository, "mirror", MIRROR, MIRROR_CONFIG)
    with serving(repository) as server:
        yield server


@pytest.fixture(params=[True, False], ids=["binary", "json"])
def binary(request):
    """Both ways in which tensors travel."""
    return request.param


def seen_by_model(result):
    """The request as the mirror saw it."""
    return json.loads(result.as_numpy("SEEN").item())


@pytest.mark.parametrize("shape", [(1, 3, 1), (4, 3, 5), (0, 3, 5), (2, 3, 0)])
def test_variable_dimensions(server, binary, shape):
    """Where the configuration says -1 a tensor has the size that it likes, none included."""
    sent = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    result = server.infer("grid", {"IN": sent}, binary=binary, outputs=["OUT"])
    np.testing.assert_array_equal(result.as_numpy("OUT"), sent)
    assert result.as_numpy("OUT").shape == shape


def test_strings_of_several_dimensions(server, binary):
    """BYTES tensors have shapes like all others."""
    sent = np.array([[b"a", b""], ["ü".encode(), b"long " * 1000]], dtype=np.object_)
    result = server.infer("strings", {"IN": sent}, binary=binary, outputs=["OUT"])
    expected = sent if binary else np.vectorize(bytes.decode)(sent)
    assert result.as_numpy("OUT").tolist() == expected.tolist()


def test_scalars(tmp_path, model, serve):
    """A tensor with `dims: [ ]` has one element and no dimensions."""
    model("scalar", ECHO, ECHO_CONFIG % {"datatype": "FP32", "dims": ""})
    server = serve()
    for binary in (True, False):
        result = server.infer("scalar", {"IN": np.array(2.5, dtype=np.float32)}, binary=binary, outputs=["OUT"])
        assert result.as_numpy("OUT").shape == ()
        assert result.as_numpy("OUT").item() == 2.5


def test_json_may_nest_its_data(server):
    """The elements of a tensor in JSON may be nested by its shape, or stand in one flat list."""
    for data in ([[1, 2], [3, 4]], [1, 2, 3, 4]):
        body = json.dumps({"inputs": [{"name": "IN", "shape": [2, 2], "datatype": "INT16", "data": data}]})
        answer = server.request("POST", "/v2/models/fixed/infer", body)
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert json.loads(answer.body)["outputs"] == [
            {"name": "OUT", "datatype": "INT16", "shape": [2, 2], "data": [1, 2, 3, 4]}
        ]


def test_large_tensor(server):
    """A tensor far larger than any buffer comes back unharmed, several times over."""
    for size in (1 << 20, 3 << 20, (1 << 20) + 1):
        sent = np.arange(size, dtype=np.int32)
        np.testing.assert_array_equal(server.infer("line", {"IN": sent}).as_numpy("OUT"), sent)


def test_rows_of_a_batching_model(server):
    """A model that batches gets its rows as a first dimension, up to max_batch_size of them."""
    for rows in (1, 4):
        sent = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
        np.testing.assert_array_equal(server.infer("rows", {"IN": sent}).as_numpy("OUT"), sent)


def test_optional_input(server):
    """A model sees the inputs that were sent, and only those."""
    assert seen_by_model(server.infer("mirror", NEEDED))["inputs"] == ["NEEDED"]
    both = {**NEEDED, "OPTIONAL": np.zeros(1, dtype=np.float32)}
    seen = seen_by_model(server.infer("mirror", both))
    assert sorted(seen["inputs"]) == ["NEEDED", "OPTIONAL"]
    assert sorted(seen["shapes"]) == [[1], [2, 3]]


def test_requested_outputs(server):
    """A model sees which outputs are wanted, all where none was named, and no others are sent."""
    result = server.infer("mirror", NEEDED)
    assert seen_by_model(result)["outputs"] == ["OTHER", "SEEN"]
    assert {output["name"] for output in result.get_response()["outputs"]} == {"OTHER", "SEEN"}
    result = server.infer("mirror", NEEDED, outputs=["SEEN"])
    assert seen_by_model(result)["outputs"] == ["SEEN"]
    assert [output["name"] for output in result.get_response()["outputs"]] == ["SEEN"]


def test_outputs_of_one_response_may_travel_differently(server):
    """`binary_data` is each output's own, over `binary_data_output` of the request."""
    document = {
        "parameters": {"binary_data_output": True},
        "inputs": [{"name": "NEEDED", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "SEEN"}, {"name": "OTHER", "parameters": {"binary_data": False}}],
    }
    answer = server.request("POST", "/v2/models/mirror/infer", json.dumps(document))
    length = int(answer.headers["Inference-Header-Content-Length"])
    outputs = {output["name"]: output for output in json.loads(answer.body[:length])["outputs"]}
    assert outputs["OTHER"]["data"] == ["other"]
    assert outputs["SEEN"]["parameters"] == {"binary_data_size": len(answer.body) - length}


def test_parameters_both_ways(server):
    """Parameters reach the model with their types, and the response carries those of the model."""
    sent = {"a_string": "text", "an_integer": -(2**63), "a_boolean": False, "a_double": 0.5}
    result = server.infer("mirror", NEEDED, parameters=sent)
    assert seen_by_model(result)["parameters"] == sent
    assert result.get_response()["parameters"] == {"a_string": "text", "an_integer": -7, "a_boolean": True}


def test_sequence_and_timeout(server):
    """Parameters that have a meaning in Triton reach the model by methods of their own."""
    result = server.infer("mirror", NEEDED, sequence_id=42, sequence_start=True, sequence_end=True, timeout=5000000)
    seen = seen_by_model(result)
    assert (seen["correlation_id"], seen["flags"], seen["timeout"], seen["parameters"]) == (42, 3, 5000000, {})


def test_request_id(server):
    """The ID of a request is in the response; without one there is none."""
    result = server.infer("mirror", NEEDED, request_id="any id ü")
    assert (seen_by_model(result)["id"], result.get_response()["id"]) == ("any id ü", "any id ü")
    assert "id" not in server.infer("mirror", NEEDED).get_response()


def raw(server, model, body):
    """A request that is nothing but its one input's contents."""
    return server.request("POST", f"/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": "0"})


def test_raw_request(server):
    """A body without a JSON document is the contents of the only input; its shape follows from its size."""
    sent = np.arange(5, dtype=np.int32).tobytes()
    answer = raw(server, "line", sent)
    length = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.body[:length])["outputs"]
    assert (answer.status, output["shape"], answer.body[length:]) == (200, [5], sent)


def test_raw_request_of_a_string(server):
    """The one string of a raw request goes without its length, and comes back with it."""
    answer = raw(server, "string", b"bare\x00string")
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert (answer.status, answer.body[length:]) == (200, b"\x0b\0\0\0bare\x00string")


def test_raw_request_of_a_batching_model(server):
    """A raw request to a model that batches is one row."""
    answer = raw(server, "rows", bytes(8))
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [1, 2]


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (
            "mirror",
            b"",
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
            "'mirror' model",
        ),
        (
            "two_variable",
            bytes(4),
            "[request id: <id_unknown>] The shape of the raw input 'IN' can not be deduced because there are more than "
            "one",
        ),
        ("line", bytes(5), "[request id: <id_unknown>] The shape of the raw input 'IN' can not be deduced"),
        ("fixed", bytes(6), "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'fixed'."),
        (
            "strings",
            b"text",
            "[request id: <id_unknown>] For BYTE datatype raw input 'IN', the model must have input shape [1]",
        ),
    ],
)
def test_raw_request_that_is_not_deducible(server, model, body, message):
    """A raw request whose shape cannot be deduced is the client's mistake, and says which."""
    answer = raw(server, model, body)
    assert answer.status == 400
    assert json.loads(answer.body)["error"].startswith(message)
