# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that read slowly, but steadily, are not taken for clients that read nothing.

The server has FASTER times less patience than otherwise, and its clients read so many times faster than 1000 bytes a
second. So what they read between two looks of the server is what it would be.
"""

import json
import time
from queue import SimpleQueue

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc import connection, keepalive, stream_stall_detector
from pyruntime.runtime.frontends.http import write_stall

FASTER = 50
STALLED_S = write_stall.STALLED_S_MAX / FASTER
BYTES_PER_S = 1000 * FASTER
# For how long they read slowly: a reader of whom nothing is noticed is cut off twice meanwhile.
SLOW_S = 2 * STALLED_S
PIECE = BYTES_PER_S // 10
# More than kernels and windows hold, so that the server always has something to send.
SIZE = 16 << 20
RESPONSES, RESPONSE_SIZE = 1024, 16 << 10

# Answers as often as it is told to, with as many zeros.
MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count, size = request.inputs()[0].as_numpy()
            for _ in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(size // 8, np.int64))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving, with_limits):
    repository = tmp_path_factory.mktemp("slow")
    write_model(repository, "once", MODEL)
    write_model(repository, "often", MODEL, more=DECOUPLED)
    modules = (write_stall, keepalive, stream_stall_detector, connection)
    rate = stream_stall_detector.READ_BYTES_PER_S_MIN * FASTER
    limits = {"STALLED_S_MAX": STALLED_S, "READ_BYTES_PER_S_MIN": rate, "CHECK_S": 0.1}
    with serving(repository, wrapper=with_limits(*modules, **limits)) as server:
        yield server


def slowly(read):
    """Call `read(size)` at the rate for SLOW_S, and catch up with it after any delay."""
    begun, taken = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < SLOW_S:
        while taken < passed * BYTES_PER_S:
            taken += read(PIECE)
        time.sleep(PIECE / BYTES_PER_S)


def read_http(server, path, body):
    """All bytes of an answer that is read slowly at first; what comes before the server hangs up."""
    answer = bytearray()

    def read(size):
        data = sock.recv(size)
        answer.extend(data)
        assert data, f"the server hung up after {len(answer)} bytes"
        return len(data)

    with server.connect() as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        slowly(read)
        with sock.makefile("rb") as stream:
            answer += stream.read()
    return bytes(answer)


def request(model, count, size):
    made = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[np.array([count, size]).tobytes()])
    made.inputs.add(name="IN", datatype="INT64", shape=[2])
    return made


def test_http(server):
    """The bytes of a tensor."""
    tensor = {"name": "IN", "datatype": "INT64", "shape": [2], "data": [1, SIZE]}
    body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    answer = read_http(server, "/v2/models/once/infer", body)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(bytes(SIZE))


def test_http_stream(server):
    """The events of a stream."""
    body = json.dumps({"IN": [RESPONSES, RESPONSE_SIZE]}).encode()
    answer = read_http(server, "/v2/models/often/generate_stream", body)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"data: ") == RESPONSES


def test_grpc(server, bare_client):
    """A message, of which the connection holds up all that follows."""
    with bare_client(server.grpc_port) as client:
        client.h2.increment_flow_control_window(1 << 30)
        stream = client.head(client.INFER)
        client.h2.increment_flow_control_window(1 << 30, stream)
        message = request("once", 1, SIZE).SerializeToString()
        client.send(stream, b"\0" + len(message).to_bytes(4, "big") + message, ended=True)

        def read(size):
            before = len(client.calls[stream].data)
            assert client.read(size), f"the server hung up after {before} bytes"
            return size

        slowly(read)
        assert client.status(stream) == "0"
        assert len(client.calls[stream].data) > SIZE


def test_grpc_client(server):
    """Responses of a stream, of which gRPC's own client opens windows late."""
    requests = SimpleQueue()
    requests.put(request("often", RESPONSES, RESPONSE_SIZE))
    with server.grpc() as client:
        responses = client._client_stub.ModelStreamInfer(iter(requests.get, None))
        taken = []

        def read(_):
            response = next(responses)
            assert not response.error_message
            taken.append(response)
            return RESPONSE_SIZE

        slowly(read)
        requests.put(None)
        taken.extend(responses)
    assert len(taken) == RESPONSES
