# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large answers in JSON, and clients that do not read them to the end."""

import json
import re
from pathlib import Path

import pytest

MIB = 1 << 20
# As JSON it has twice as many bytes, and as objects of Python many times as many.
SIZE = 96 * MIB
# What the server may have more while it sends the answer: some pieces, in each of its forms.
MORE_BYTES = 32 * MIB
ASK = json.dumps({"inputs": [{"name": "IN", "datatype": "INT64", "shape": [1], "data": [SIZE]}]}).encode()
GENERATE = b'{"IN": %d}' % SIZE
ANSWER = 2 * SIZE

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        sizes = [request.inputs()[0].as_numpy()[0] for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(size, np.uint8))]) for size in sizes]
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] } ]
"""


@pytest.fixture
def server(model, serve):
    model("large", MODEL, CONFIG)
    return serve("--exit-timeout-secs=1")


def heap_bytes(server):
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def pending_bytes(server):
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    return int(re.search(r"^pyruntime_pending_bytes (\d+)", page, re.MULTILINE)[1])


def ask(sock, kind, body):
    head = f"POST /v2/models/large/{kind} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)


@pytest.mark.parametrize(("kind", "body"), [("infer", ASK), ("generate", GENERATE), ("generate_stream", GENERATE)])
def test_clients_that_do_not_read(server, kind, body, wait_until):
    """They cost some pieces of their answers, which count as pending bytes, and nothing once they have left."""
    assert server.request("POST", "/v2/models/large/generate", b'{"IN": 2}').status == 200
    before = heap_bytes(server)
    clients = [server.connect() for _ in range(4)]
    for client in clients:
        ask(client, kind, body)
        assert client.recv(17) == b"HTTP/1.1 200 OK\r\n"
    wait_until(lambda: pending_bytes(server) > len(clients) * MIB // 2)
    assert heap_bytes(server) - before < len(clients) * MORE_BYTES
    for client in clients:
        client.close()
    wait_until(lambda: pending_bytes(server) == 0)
    assert server.request("POST", "/v2/models/large/generate", b'{"IN": 2}').status == 200


def test_a_client_that_reads(server):
    """It gets all of the answer."""
    answer = server.request("POST", "/v2/models/large/infer", ASK)
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert answer.body.count(b"0,") == SIZE - 1
    assert ANSWER < len(answer.body) < ANSWER + 1000


def test_a_stream_that_a_client_reads(server):
    (event,) = server.stream("large", IN=SIZE)
    assert len(event["OUT"]) == SIZE


def test_an_exit_meanwhile(server):
    """The server exits when the time for its requests is over, whatever is left of their answers."""
    with server.connect() as client:
        ask(client, "infer", ASK)
        assert client.recv(17) == b"HTTP/1.1 200 OK\r\n"
        server.stop()
