# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that are refused: each with Triton's status and words, and nothing changes for anybody else."""

import json
from contextlib import closing

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

INFER = "/v2/models/add_sub/infer"
A = np.arange(16, dtype=np.float32)
GOOD = {"INPUT0": A, "INPUT1": A}
PREFIX = "[request id: <id_unknown>] "
EMPTY = "failed to parse the request JSON buffer: The document is empty. at 0"


def document(**members):
    """A valid request in JSON, but for `members`."""
    inputs = [{"name": name, "shape": [16], "datatype": "FP32", "data": A.tolist()} for name in GOOD]
    return {"inputs": inputs, **members}


def refused(server, body, headers=None, path=INFER):
    """Status and message of an error, whose body is JSON of one member."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    answer = server.request("POST", path, body, headers)
    assert answer.headers["Content-Type"] == "application/json"
    error = json.loads(answer.body)
    assert list(error) == ["error"]
    return answer.status, error["error"]


@pytest.fixture(autouse=True)
def still_good(samples):
    """The next request after each refusal is answered."""
    yield
    assert samples.infer("add_sub", GOOD).as_numpy("OUTPUT0").tolist() == (2 * A).tolist()


@pytest.mark.parametrize(
    ("model", "version", "status", "message"),
    [
        ("nobody", "", 404, "Request for unknown model: 'nobody' is not found"),
        ("add_sub", "2", 404, "Request for unknown model: 'add_sub' version 2 is not found"),
        ("nobody", "1", 404, "Request for unknown model: 'nobody' is not found"),
        ("..", "", 404, "Request for unknown model: '..' is not found"),
        ("../model_repository/add_sub", "", 404, "Not Found"),
        ("add_sub/../strings", "", 404, "Not Found"),
        (
            "add_sub",
            "0",
            400,
            "failed to get model version from specified version string '0', version should be an integral value > 0",
        ),
        ("add_sub", "x", 404, "Not Found"),
    ],
)
def test_unknown_model(samples, model, version, status, message):
    """A model or a version that is not there is an error that names it; slashes in it are the URL's."""
    assert samples.refusal(model, GOOD, model_version=version) == (status, message)


@pytest.mark.parametrize("ask", ["is_model_ready", "get_model_metadata", "get_model_config"])
def test_unknown_model_elsewhere(samples, ask):
    """Everything that is asked about an unknown model is answered so; only readiness is merely untrue."""
    with closing(samples.client()) as client:
        if ask == "is_model_ready":
            assert client.is_model_ready("nobody") is False
        else:
            with pytest.raises(InferenceServerException) as caught:
                getattr(client, ask)("nobody")
            assert caught.value.message() == "Request for unknown model: 'nobody' is not found"
            assert caught.value.status() == "404"


@pytest.mark.parametrize(
    ("model", "version", "message"),
    [
        ("nobody", "", "requested model 'nobody' is not available"),
        ("add_sub", "7", "requested model version is not available for model 'add_sub'"),
    ],
)
def test_statistics_of_unknown_model(samples, model, version, message):
    """Statistics of unknown models and versions have messages of their own."""
    with closing(samples.client()) as client, pytest.raises(InferenceServerException) as caught:
        client.get_inference_statistics(model, version)
    assert (caught.value.status(), caught.value.message()) == ("400", message)


@pytest.mark.parametrize(
    ("model", "arrays", "message"),
    [
        (
            "add_sub",
            {"INPUT0": A},
            "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing required "
            "input(s) ['INPUT1']. Please provide all required input(s).",
        ),
        (
            "add_sub",
            {**GOOD, "INPUT2": A},
            "expected 2 inputs but got 3 inputs for model 'add_sub'. Got input(s) ['INPUT0','INPUT1','INPUT2'], but "
            "missing required input(s) []. Please provide all required input(s).",
        ),
        ("add_sub", {"INPUT0": A, "INPUT2": A}, "unexpected inference input 'INPUT2' for model 'add_sub'"),
        (
            "add_sub",
            {"INPUT0": A, "INPUT1": A.astype(np.float64)},
            "inference input 'INPUT1' data-type is 'FP64', but model 'add_sub' expects 'FP32'",
        ),
        (
            "add_sub",
            {"INPUT0": A, "INPUT1": A[:15]},
            "unexpected shape for input 'INPUT1' for model 'add_sub'. Expected [16], got [15]. ",
        ),
        (
            "add_sub",
            {"INPUT0": A, "INPUT1": A.reshape(1, 16)},
            "unexpected shape for input 'INPUT1' for model 'add_sub'. Expected [16], got [1,16]. ",
        ),
        (
            "batched",
            {"INPUT": A[:4]},
            "unexpected shape for input 'INPUT' for model 'batched'. Expected [-1,4], got [4]. NOTE: Setting a "
            "non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
            "shape. If you want to specify the full shape including the batch dim in your input dims config, try "
            "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size.",
        ),
        ("batched", {"INPUT": np.zeros((9, 4), np.float32)}, "inference request batch-size must be <= 8 for 'batched'"),
        (
            "identity",
            {"NOBODY": A},
            "unexpected inference input 'NOBODY' for model 'identity'",
        ),
    ],
)
def test_inputs_that_do_not_fit(samples, model, arrays, message):
    """Inputs that are not those of the configuration are refused in Triton's words, mostly under the request's id."""
    prefixes = ("", "") if message.startswith("unexpected inference input") else (PREFIX, "[request id: mine] ")
    assert samples.refusal(model, arrays) == (400, prefixes[0] + message)
    assert samples.refusal(model, arrays, request_id="mine") == (400, prefixes[1] + message)


def test_unknown_output(samples):
    """An output that the model does not have cannot be asked for."""
    message = "unexpected inference output 'NOBODY' for model 'add_sub'"
    assert samples.refusal("add_sub", GOOD, outputs=["OUTPUT0", "NOBODY"]) == (400, message)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"parameters": {"triton_anything": 1}},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            {"outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]},
            PREFIX + "output 'OUTPUT0' already exists in request",
        ),
        ({"inputs": document()["inputs"][:1] * 2}, PREFIX + "input 'INPUT0' already exists in request"),
        ({"inputs": 1}, "'inputs' must be a list, got an integer"),
        ({"id": 1}, "'id' must be a string, got an integer"),
        (
            {"parameters": {"any": None}},
            "parameter 'any' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
    ],
)
def test_document_that_does_not_fit(samples, members, message):
    """A JSON document with wrong members is refused."""
    assert refused(samples, document(**members)) == (400, message)


@pytest.mark.parametrize(
    "members",
    [
        {
            "inputs": [
                {"name": "INPUT0", "shape": [16], "datatype": "FP32", "parameters": {"shared_memory_region": "any"}}
            ]
        },
        {"outputs": [{"name": "OUTPUT0", "parameters": {"shared_memory_region": "any"}}]},
    ],
)
def test_what_is_not_supported(samples, members):
    """Shared memory of clients is refused as unsupported unless it is allowed, and not passed over."""
    status, message = refused(samples, document(**members))
    assert status == 501
    assert "Client shared memory is disabled." in message


def test_data_given_twice_or_not_at_all(samples):
    """An input has its contents in exactly one way."""
    for change, found in (
        ({"parameters": {"binary_data_size": 64}}, "But set 'data' 'binary_data_size'"),
        ({"data": None}, "But no field is set"),
    ):
        one, other = document()["inputs"]
        one = {key: value for key, value in {**one, **change}.items() if value is not None}
        status, message = refused(samples, {"inputs": [one, other]})
        assert status == 400
        assert message.startswith("Input must set only one of the following fields: ")
        assert message.endswith(found)


def test_json_without_a_form(samples):
    """FP16 and BF16 travel in binary only, both ways."""
    half = {"name": "INPUT_FP16", "shape": [1], "datatype": "FP16"}
    path = "/v2/models/identity/infer"
    message = "receiving FP16 data via JSON is not supported. Please use the binary data format for input 'INPUT_FP16'"
    assert refused(samples, {"inputs": [{**half, "data": [1]}]}, path=path) == (400, message)
    status, message = samples.refusal(
        "identity", {"INPUT_FP16": np.ones(1, np.float16)}, outputs=["OUTPUT_FP16"], output_binary=False
    )
    assert status == 400
    assert message.startswith(
        "sending FP16 data via JSON is not supported. Please use the binary data format for output"
    )


def binary_body(sizes=(64, 64), length=128):
    """The document and the contents of a binary request for add_sub."""
    inputs = [
        {"name": name, "shape": [16], "datatype": "FP32", "parameters": {"binary_data_size": size}}
        for name, size in zip(GOOD, sizes, strict=True)
    ]
    return json.dumps({"inputs": inputs}).encode(), bytes(length)


@pytest.mark.parametrize(
    ("sizes", "length", "message"),
    [
        (
            (64, 60),
            124,
            PREFIX + "input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 64, got 60",
        ),
        (
            (60, 64),
            124,
            PREFIX + "input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 64, got 60",
        ),
        ((64, 64), 127, "unexpected size for input 'INPUT1', expecting 1 additional bytes for model 'add_sub'"),
        ((64, 64), 129, "unexpected additional input data for model 'add_sub'"),
        (
            (64, 2**62),
            128,
            f"unexpected size for input 'INPUT1', expecting {2**62 - 64} additional bytes for model 'add_sub'",
        ),
        ((64, -1), 128, "'binary_data_size' of input 'INPUT1' must be an integer from 0 on, got -1"),
    ],
)
def test_binary_data_of_the_wrong_size(samples, sizes, length, message):
    """Binary contents have the size that the document says, and that is the size of their shape."""
    text, contents = binary_body(sizes, length)
    assert refused(samples, text + contents, {"Inference-Header-Content-Length": str(len(text))}) == (400, message)


@pytest.mark.parametrize("length", ["-1", "x", "", "1e2", "999999", str(2**64), "9" * 100])
def test_header_length_out_of_range(samples, length):
    """Inference-Header-Content-Length is a number of bytes that the body has."""
    text, contents = binary_body()
    status, message = refused(samples, text + contents, {"Inference-Header-Content-Length": length})
    assert status == 400
    size = len(text) + len(contents)
    assert message.startswith(f"inference header size should be in range (0, {size}), got: ")


def test_header_length_that_lies(samples):
    """Where the JSON document does not end where the header says, there is no JSON document."""
    text, contents = binary_body()
    for length in (1, len(text) - 1, len(text) + 1, len(text) + len(contents)):
        status, message = refused(samples, text + contents, {"Inference-Header-Content-Length": str(length)})
        assert status == 400
        assert message.startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", EMPTY),
        (b"{", "failed to parse the request JSON buffer: "),
        (b"\xff\xfe{}", "failed to parse the request JSON buffer: "),
        (b"[]", "the request must be a JSON object, got a list"),
        (b"null", "the request must be a JSON object, got null"),
        (b"{}", "the request has no 'inputs'"),
        (b'{"inputs": []}' + b"x", "failed to parse the request JSON buffer: "),
        (
            b'{"inputs":' + b"[" * 100 + b"]" * 100 + b"}",
            "JSON nesting depth exceeds maximum allowed limit (100)",
        ),
        (b"[" * 1_000_000, "failed to parse the request JSON buffer: "),
        (b'{"a":' * 100_000 + b"NaN" + b"}" * 100_000, "failed to parse the request JSON buffer: "),
        (b'{"inputs": [NaN]}', "every input must be an object, got a double"),
        (b'{"inputs": ["\xed\xa0\x80"]}', "failed to parse the request JSON buffer: "),
    ],
)
def test_json_that_is_none(samples, body, message):
    """A body that is not a JSON document, of any depth, is refused."""
    status, found = refused(samples, body)
    assert (status, found[: len(message)]) == (400, message)


@pytest.mark.parametrize(
    ("elements", "contents", "message"),
    [
        (2, b"\x01\0\0\0a", "expected 2 string elements for inference input 'TEXT' for model 'strings', got 1"),
        (
            1,
            b"\x02\0\0\0a",
            "incomplete string data for inference input 'TEXT', expecting string of length 2 but only 1 bytes "
            "available",
        ),
        (
            1,
            b"\xff\xff\xff\xff",
            "incomplete string data for inference input 'TEXT', expecting string of length 4294967295 but only 0 bytes "
            "available",
        ),
        (
            1,
            b"\x01\0",
            "incomplete string length indicator for inference input 'TEXT' for model 'strings', expecting 4 bytes but "
            "only 2 bytes available. Please make sure the string length indicator is in one buffer.",
        ),
    ],
)
def test_strings_that_are_none(samples, elements, contents, message):
    """The contents of a BYTES tensor are as many strings as its shape says, each of them whole."""
    parameters = {"binary_data_size": len(contents)}
    tensor = {"name": "TEXT", "shape": [elements], "datatype": "BYTES", "parameters": parameters}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    prefix = "" if message.startswith("incomplete string data") else PREFIX
    assert refused(samples, text + contents, headers, "/v2/models/strings/infer") == (400, prefix + message)


def test_body_above_the_limit(tmp_path, write_model, serving):
    """A body larger than --http-max-input-size is refused and the limit named; one as large as it is welcome."""
    write_model(tmp_path, "nothing", "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n")
    with serving(tmp_path, "--http-max-input-size=1000") as server:
        path = "/v2/models/nothing/infer"
        status, message = refused(server, b" " * 1001, path=path)
        assert status == 400
        assert message == (
            "request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. Use "
            "--http-max-input-size to increase the limit."
        )
        assert refused(server, b" " * 1001, {"Inference-Header-Content-Length": "0"}, path) == (
            400,
            "Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. Use "
            "--http-max-input-size to increase the limit.",
        )
        assert refused(server, b" " * 1001, {"Inference-Header-Content-Length": "20"}, path) == (
            400,
            "request size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. Use "
            "--http-max-input-size to increase the limit.",
        )
        assert refused(server, b" " * 998 + b"{}", path=path) == (400, "the request has no 'inputs'")
        chunks = iter([b" " * 600] * 2)
        answer = server.request("POST", path, chunks)
        assert answer.status == 400
        assert "--http-max-input-size" in json.loads(answer.body)["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v2/", 404, "Not Found; did you mean /v2?"),
        ("GET", "/v2/models", 404, "Not Found"),
        ("GET", "/v2/models/add_sub/nothing", 404, "Not Found"),
        ("GET", "/v2/models//infer", 404, "Not Found"),
        ("POST", "/v2/models/add_sub%2Finfer", 405, "Method Not Allowed"),
        ("GET", "/v2/models/add_sub%2Fready", 404, "Request for unknown model: 'add_sub/ready' is not found"),
        ("GET", "/v2/models/..%2f..%2fetc%2fpasswd", 404, "Request for unknown model: '../../etc/passwd' is not found"),
        ("GET", "/v2/models/%2e%2e/config", 404, "Request for unknown model: '..' is not found"),
        ("GET", "/v2/models/%00", 404, "Request for unknown model: '\0' is not found"),
        ("GET", "/v2/models/../v2", 404, "Not Found"),
        ("GET", "/" + "x" * 5000, 414, "the URL is longer than 4096 bytes"),
        ("POST", "/v2", 405, "Method Not Allowed"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("GET", INFER, 405, "Method Not Allowed"),
        ("PUT", INFER, 405, "Method Not Allowed"),
        ("DELETE", "/v2/models/add_sub", 405, "Method Not Allowed"),
        ("GET", "/v2/repository/index", 405, "Method Not Allowed"),
        ("POST", "/v2/repository/any/index", 501, "'repository_name' specification is not supported"),
    ],
)
def test_no_such_endpoint(samples, method, path, status, message):
    """An unknown URL is not found, a method that the endpoint does not have is not allowed, and names stay names."""
    answer = samples.request(method, path)
    assert (answer.status, json.loads(answer.body)) == (status, {"error": message})


def test_index_wants_a_boolean(samples):
    """The repository index takes a boolean or nothing for `ready`."""
    body = (400, "Invalid value for 'ready': expected a boolean")
    assert refused(samples, {"ready": "yes"}, path="/v2/repository/index") == body
