# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Small models of every kind, and the check that each of them still answers rightly."""

import json
import socket
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from ...e2e.harness import raw
from ...e2e.harness.models import ECHO, write_model
from ...e2e.harness.server import Server
from ...e2e.harness.waiting import LIMIT_S

# Of Python: a stream of as many responses as the request says.
STEPS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(request.inputs()[0].as_numpy()[0]):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SUMS = """
class TritonPythonModel:
    def initialize(self, args):
        self.sum = 0

    def execute(self, requests):
        (request,) = requests
        value = request.inputs()[0].as_numpy().item()
        start = bool(pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item())
        self.sum = value if start else self.sum + value
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.sum]))])]
"""
TEXT = """
backend: "python"
input [ { name: "IN" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
SEQUENCES = """
sequence_batching {
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]
}
"""
# The backends in C++ that the models need, of tests/native.
BACKENDS = ("identity",)
LARGE = 100_000


def write_repository(folder: Path) -> None:
    """Write all models."""
    write_model(folder, "numbers", ECHO)
    write_model(folder, "texts", ECHO, TEXT)
    write_model(folder, "steps", STEPS, more="model_transaction_policy { decoupled: true }")
    write_model(folder, "sums", SUMS, more=SEQUENCES)
    write_model(folder, "native", None, raw.config("identity"))


def check_http(server: Server) -> None:
    """Ask every model over HTTP."""
    for size in (3, LARGE):
        numbers = np.arange(size)
        assert np.array_equal(server.infer("numbers", {"IN": numbers}).as_numpy("OUT"), numbers)
    assert server.infer("texts", {"IN": np.array([b"a", b""], np.object_)}).as_numpy("OUT").tolist() == [b"a", b""]
    values = np.arange(9, dtype=np.int32)
    assert np.array_equal(server.infer("native", {"INPUT0": values}).as_numpy("OUTPUT0"), values)
    assert [event["OUT"] for event in server.stream("steps", IN=[3])] == [0, 1, 2]
    ask = partial(server.infer, "sums", sequence_id=7)
    sums = [ask({"IN": np.array([n])}, sequence_start=n == 1, sequence_end=n == 3) for n in (1, 2, 3)]
    assert [each.as_numpy("OUT").item() for each in sums] == [1, 3, 6]
    assert json.loads(server.request("GET", "/v2/models/numbers").body)["name"] == "numbers"


def _check_grpc(server: Server) -> None:
    with closing(server.grpc()) as client:
        for size in (3, LARGE):
            numbers = np.arange(size)
            tensor = triton.InferInput("IN", [size], "INT64").set_data_from_numpy(numbers)
            answer = client.infer("numbers", [tensor], client_timeout=LIMIT_S).as_numpy("OUT")
            assert np.array_equal(answer, numbers)


def _check_lent(server: Server) -> None:
    """A connection that sends the same request so often that it is lent to the C++ model's thread."""
    client = raw.Client(server)
    with closing(client):
        request = raw.infer("native", 1, 2, 3)
        assert [raw.values_of(client.ask(request)[0]) for _ in range(30)] == [[1, 2, 3]] * 30


def check(server: Server) -> None:
    """Ask every model, over HTTP and gRPC. AssertionError, or an error of a client, if one does not answer rightly."""
    assert server.process.poll() is None, f"the server has exited with {server.process.returncode}"
    check_http(server)
    _check_grpc(server)
    _check_lent(server)
    with socket.create_connection(("127.0.0.1", server.metrics_port), timeout=LIMIT_S) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert sock.makefile("rb").readline().endswith(b" 200 OK\r\n")
