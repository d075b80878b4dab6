# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document of a real server, and whether the server conforms to it: schemathesis sends valid and invalid
requests, and checks each answer.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Requests for each operation and each way of making them up.
EXAMPLES = 8
# An answer must have a status, a type and a body that the document has for it.
CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)

# The answer is finite for every input: other numbers have no JSON.
MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            text = pb_utils.get_input_tensor_by_name(request, "TEXT")
            signs = pb_utils.Tensor("SIGNS", np.nan_to_num(np.sign(numbers)))
            echo = np.array([b"none"], dtype=np.object_) if text is None else text.as_numpy()
            made.append(pb_utils.InferenceResponse([signs, pb_utils.Tensor("ECHO", echo)]))
        return made
"""
CONFIG = """
backend: "python"
input [
  { name: "NUMBERS" data_type: TYPE_FP32 dims: [ 2, -1 ] },
  { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "SIGNS" data_type: TYPE_FP32 dims: [ 2, -1 ] },
  { name: "ECHO" data_type: TYPE_STRING dims: [ 1 ] }
]
"""
BATCHED = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT16 dims: [ 3 ] }, { name: "FLAG" data_type: TYPE_BOOL dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT16 dims: [ 3 ] } ]
"""
IN = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            if count > 200:
                error = pb_utils.TritonError("too many", pb_utils.TritonError.UNAVAILABLE)
                sender.send(pb_utils.InferenceResponse(error=error))
            for number in range(count % 3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([number], np.uint8))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STREAM_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_UINT8 dims: [ 1 ] } ]
output [ { name: "N" data_type: TYPE_UINT8 dims: [ 1 ] } ]
"""


def document_of(server):
    answer = server.request("GET", "/openapi.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    return json.loads(answer.body)


def test_conformance(model, serve, tmp_path):
    """The server does what its document says, and nothing that it does not say."""
    model("mixed", MODEL, CONFIG)
    model("batched", IN, BATCHED)
    model("stream", STREAM, STREAM_CONFIG)
    options = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")
    server = serve(*options)
    command = [Path(sys.executable).parent / "st", "--no-color", "run", f"http://127.0.0.1:{server.port}/openapi.json"]
    command += [f"--checks={','.join(CHECKS)}", "--phases=examples,coverage,fuzzing", f"--max-examples={EXAMPLES}"]
    command += ["--seed=1", "--continue-on-failure", "--suppress-health-check=all", "--warnings=off", "--mode=all"]
    command += ["--request-timeout=60"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert server.is_ready()


def test_follows_the_models(model, serve):
    """A model that is loaded is in the document, and one that is unloaded is not."""
    model("m", IN, BATCHED)
    server = serve("--model-control-mode=explicit")
    path = "/v2/models/m/versions/1/infer"
    assert path not in document_of(server)["paths"]
    assert server.request("POST", "/v2/repository/models/m/load").status == 200
    schemas = document_of(server)["components"]["schemas"]
    (tensor, _) = schemas["InferRequest-m-1"]["properties"]["inputs"]["items"]["anyOf"]
    assert tensor["properties"]["datatype"] == {"const": "INT16"}
    assert server.request("POST", "/v2/repository/models/m/unload").status == 200
    assert path not in document_of(server)["paths"]


def test_restricted(model, serve):
    """The document is metadata: where that is closed so is the document. The page itself says nothing of the server."""
    model("m", IN, BATCHED)
    server = serve("--http-restricted-api=metadata,statistics:key=secret")
    answer = server.request("GET", "/openapi.json")
    assert (answer.status, json.loads(answer.body)) == (
        403,
        {"error": "This API is restricted, expecting header 'key'"},
    )
    assert server.request("GET", "/").status == 200
    answer = server.request("GET", "/openapi.json", headers={"key": "secret"})
    assert answer.status == 200
    assert b"secret" not in answer.body
    assert json.loads(answer.body)["components"]["securitySchemes"]["key"]["name"] == "key"


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/openapi.json"])
def test_verbs(samples, path):
    """The page is there to be read."""
    assert samples.request("GET", path).status == 200
    assert samples.request("POST", path, b"{}").status == 405
