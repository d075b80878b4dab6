# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The budget for bytes of requests that are not in request memory, in a real server."""

import gzip
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.inference import pending_bytes as budget

from .harness.http2_client import BareClient
from .harness.waiting import LIMIT_S, wait_until

MIB = 1 << 20
BUDGET = 16 * MIB
CODE = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy().sum(keepdims=True))])
                for request in requests]
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.fixture
def server(model, serve):
    model("sum", CODE, CONFIG)
    return serve(f"--max-pending-bytes={BUDGET}")


def pending_bytes(server):
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("pyruntime_pending_bytes "))


def document(count):
    """A request whose document has two bytes for each number."""
    entry = {"name": "IN", "datatype": "FP32", "shape": [count], "data": [1] * count}
    return json.dumps({"inputs": [entry]}, separators=(",", ":")).encode()


def rss_bytes(server):
    with open(f"/proc/{server.process.pid}/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_more_clients_than_the_budget_has_room_for(server, encoding):
    """They wait for each other, and all of them are served: 16 bodies of 2 MiB, and 4 MiB of tensors, within 16 MiB."""
    body = document(MIB)
    headers = {"Content-Encoding": encoding} if encoding else {}
    sent = gzip.compress(body, 1) if encoding else body
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda _: server.request("POST", "/v2/models/sum/infer", sent, headers), range(16)))
    statuses = [answer.status for answer in answers]
    # Bodies that hold all of the budget between them cannot all go on; compressed ones are begun one after the other.
    assert set(statuses) <= ({200} if encoding else {200, 503})
    sums = [json.loads(answer.body)["outputs"][0]["data"] for answer in answers if answer.status == 200]
    assert sums
    assert set(map(tuple, sums)) == {(1.0 * MIB,)}
    wait_until(lambda: pending_bytes(server) == 0)


@pytest.mark.parametrize(
    "path", ["/v2/models/sum/infer", "/v2/models/sum/generate", "/v2/logging", "/v2/repository/index"]
)
def test_bombs(server, path):
    """Bodies that become 64 MiB are refused, and neither they nor what is made of them stay in memory."""
    compressor = zlib.compressobj(9)
    bomb = b"".join([compressor.compress(b"{}," * (MIB // 3)) for _ in range(64)]) + compressor.flush()
    before = rss_bytes(server)
    for _ in range(5):
        answer = server.request("POST", path, bomb, {"Content-Encoding": "deflate"})
        assert answer.status in (400, 503)
        assert rss_bytes(server) - before < BUDGET + 32 * MIB
    assert server.request("GET", "/v2/health/live").status == 200
    wait_until(lambda: pending_bytes(server) == 0)


def test_body_larger_than_the_share_of_a_connection(server):
    """It is refused with 503, which names the option; binary tensors of any size are not concerned."""
    answer = server.request("POST", "/v2/models/sum/infer", document(10 * MIB))
    assert answer.status == 503
    assert "--max-pending-bytes" in json.loads(answer.body)["error"]
    found = server.infer("sum", {"IN": np.ones(6 * MIB, np.float32)})
    assert found.as_numpy("OUT").tolist() == [6.0 * MIB]


def test_nested_lists(server):
    """Large lists may nest, as in small documents."""
    rows = [[[1.0, 2.0], [3.0, 4.0]]] * 20_000
    entry = {"name": "IN", "datatype": "FP32", "shape": [80_000], "data": rows}
    answer = server.request("POST", "/v2/models/sum/infer", json.dumps({"inputs": [entry]}).encode())
    assert json.loads(answer.body)["outputs"][0]["data"] == [200_000.0]


SLOW = """
import os
import time

class TritonPythonModel:
    def execute(self, requests):
        while not os.path.exists(GO):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))]) for request in requests]
"""


def compressed_numbers(count):
    """A request that is small, and whose tensor is large while the model executes it."""
    request = service_pb2.ModelInferRequest(model_name="slow")
    request.inputs.add(name="IN", datatype="INT64", shape=[count]).contents.int64_contents.extend([0] * count)
    return gzip.compress(request.SerializeToString())


def test_without_http(model, serve, with_limits, tmp_path):
    """What waits for room for too long is refused also where gRPC alone is served."""
    go = tmp_path / "go"
    model("slow", f"GO = {str(go)!r}\n{SLOW}", CONFIG.replace("FP32 dims: [ -1 ]", "INT64 dims: [ -1 ]"))
    wrapper = with_limits(budget, WAIT_S_MAX=1.0)
    server = serve("--allow-http=false", f"--max-pending-bytes={BUDGET}", ready=False, wrapper=wrapper)
    with server.grpc() as client:
        wait_until(lambda: "Started GRPCInferenceService" in server.log and client.is_server_ready())
    message = compressed_numbers(900_000)
    calls = []
    with ExitStack() as clients:
        for _ in range(3):
            client = clients.enter_context(BareClient(server.grpc_port))
            client.sock.settimeout(LIMIT_S)
            stream = client.head(BareClient.INFER, **{"grpc-encoding": "gzip"})
            client.send(stream, b"\1" + len(message).to_bytes(4, "big") + message, ended=True)
            calls.append((client, stream))
            if len(calls) < 3:  # the third one finds no room
                held = len(calls) * 7_000_000
                wait_until(lambda held=held: held < pending_bytes(server) < held + MIB)
        client, stream = calls.pop()
        assert client.status(stream) == "8"
        go.touch()
        assert [client.status(stream) for client, stream in calls] == ["0", "0"]
    wait_until(lambda: pending_bytes(server) == 0)
