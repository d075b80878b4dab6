# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Servers at UNIX sockets, and clients of both protocols."""

import json
import shutil
import socket
import stat
import subprocess
from http.client import HTTPConnection

import numpy as np
import pytest
import tritonclient.grpc

from .harness.waiting import LIMIT_S

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""
BODY = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT64", "data": [7]}]})


class UnixConnection(HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=LIMIT_S)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@pytest.fixture
def paths(tmp_path):
    """The paths of the two sockets, for HTTP and for gRPC."""
    return tmp_path / ".http.sock", tmp_path / ".grpc.sock"


@pytest.fixture
def server(serve, model, paths, wait_until):
    """A server of one model, which listens at both; its metrics have a port."""
    model("m", ECHO)
    http, grpc = paths
    made = serve(f"--http-address=unix:{http}?mode=660", f"--grpc-address=unix:{grpc}", ready=False)
    wait_until(lambda: "| Model " in made.log)
    assert f"Started GRPCInferenceService at unix:{grpc}" in made.log
    return made


def test_http(server, paths):
    """Requests of a connection are answered as over TCP."""
    connection = UnixConnection(str(paths[0]))
    for _ in range(2):
        connection.request("POST", "/v2/models/m/infer", BODY)
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["outputs"][0]["data"] == [7]
    connection.close()
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o660


def test_curl(server, paths):
    """curl can be used."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    command = ["curl", "--silent", "--fail", "--unix-socket", paths[0], "http://localhost/v2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["name"] == "triton"


def test_grpc(server, paths):
    """Triton's client takes the address as it is; requests and streams are answered."""
    with tritonclient.grpc.InferenceServerClient(f"unix:{paths[1]}") as client:
        tensor = tritonclient.grpc.InferInput("IN", [1], "INT64")
        tensor.set_data_from_numpy(np.array([7]))
        assert client.infer("m", [tensor]).as_numpy("OUT").tolist() == [7]
    assert stat.S_IMODE(paths[1].stat().st_mode) == 0o600


def test_end(server, paths, serve, wait_until):
    """A server that is killed leaves its sockets, and the next one replaces them; one that stops removes its own."""
    server.process.kill()
    server.wait_exit()
    assert paths[0].exists()
    addresses = [f"--http-address=unix:{paths[0]}", f"--grpc-address=unix:{paths[1]}"]
    following = serve(*addresses, ready=False)
    wait_until(lambda: "Started HTTPService" in following.log)
    refused = serve(*addresses, ready=False)
    assert refused.wait_exit() == 1
    assert f"HTTP cannot be served at unix:{paths[0]}: Address already in use" in refused.log
    connection = UnixConnection(str(paths[0]))
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()
    following.stop()
    assert not any(path.exists() for path in paths)
