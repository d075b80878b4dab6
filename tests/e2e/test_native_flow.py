# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that read slowly, of native backends that answer fast: see tests/native/flow.cc.

A backend that is held up has sent far less than it was asked for, and sends nothing more; who looks twice in vain has
seen that.
"""

import http.client
import json
import queue
import signal
import threading
from contextlib import closing, contextmanager

import numpy as np
import pytest
import tritonclient.grpc

from .harness.waiting import LIMIT_S

# More than there is room for on the way to a client, with PAD_BYTES, which JSON makes longer.
COUNT = 40_000
PAD_BYTES = 2000
TENSORS = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 3 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "PAD" data_type: TYPE_UINT8 dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
"""
ISOLATED = 'parameters { key: "EXECUTION_MODE" value { string_value: "process" } }\n'
FLOOD = {"IN": [COUNT, PAD_BYTES, 0]}


@pytest.fixture(scope="module")
def backends(install_backends):
    """The option that says where the backends are."""
    return f"--backend-directory={install_backends('flow')}"


@pytest.fixture(params=["", ISOLATED], ids=["server", "process"])
def flow(request, serve, model, backends):
    """`flow(*options)`: a server of the model, whose backend runs in it or in a process of its own."""
    model("flow", None, f'backend: "flow"\n{request.param}{TENSORS}')
    return lambda *options: serve(backends, "--model-control-mode=explicit", "--load-model=flow", *options)


def report(server):
    """How many responses the backend has sent, and how many of its threads have come to their end."""
    (event,) = server.stream("flow", IN=[0, 0, 0], id="report")
    return event["OUT"][:2]


def wait_until_held_up(server, wait_until):
    """Wait until the backend waits for its client."""
    seen = []

    def stands():
        seen.append(report(server)[0])
        return len(seen) > 1 and seen[-1] and seen[-1] == seen[-2]

    wait_until(stands)
    assert report(server)[0] < COUNT


@contextmanager
def http_stream(server):
    """The numbers of the responses by HTTP, as they are read."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)) as connection:
        connection.request("POST", "/v2/models/flow/generate_stream", json.dumps(FLOOD))
        with connection.getresponse() as response:
            events = (json.loads(line[6:]) for line in response if line.startswith(b"data: "))
            yield (event["OUT"] for event in events)


@contextmanager
def grpc_stream(server):
    """The numbers of the responses by gRPC: a client that is behind by one lets the others wait."""
    responses = queue.Queue(1)
    over = threading.Event()

    def take(result, error):
        while not over.is_set():
            try:
                responses.put((result, error), timeout=0.1)
                return
            except queue.Full:
                pass

    def numbers():
        while True:
            result, error = responses.get(timeout=LIMIT_S)
            assert error is None
            response = result.get_response()
            if response.outputs:
                yield result.as_numpy("OUT").item()
            if response.parameters["triton_final_response"].bool_param:
                return

    tensor = tritonclient.grpc.InferInput("IN", [3], "INT64")
    tensor.set_data_from_numpy(np.array(FLOOD["IN"]))
    with closing(server.grpc()) as client:
        client.start_stream(take)
        client.async_stream_infer("flow", [tensor], enable_empty_final_response=True)
        try:
            yield numbers()
        finally:
            over.set()
            client.stop_stream(cancel_requests=True)


@pytest.fixture(params=[http_stream, grpc_stream], ids=["http", "grpc"])
def stream(request):
    """One of both."""
    return request.param


def test_a_slow_client(flow, stream, wait_until):
    """Its backend waits, others do not; once it reads all is there, in order."""
    server = flow()
    with stream(server) as numbers:
        assert next(numbers) == 0
        wait_until_held_up(server, wait_until)
        assert [event["OUT"] for event in server.stream("flow", IN=[3, 0, 0])] == [0, 1, 2]
        assert list(numbers) == list(range(1, COUNT))
    wait_until(lambda: report(server) == [COUNT + 3, 2])


def test_the_client_hangs_up(flow, stream, wait_until):
    """The backend that waits for it comes to its end."""
    server = flow()
    with stream(server) as numbers:
        assert next(numbers) == 0
        wait_until_held_up(server, wait_until)
    wait_until(lambda: report(server)[1] == 1)


def test_unload(flow, stream, wait_until):
    """A client that does not read keeps its model for as long as requests may take, and no longer."""
    server = flow("--exit-timeout-secs=1")
    with stream(server) as numbers:
        assert next(numbers) == 0
        wait_until_held_up(server, wait_until)
        assert server.request("POST", "/v2/repository/models/flow/unload").status == 200
        wait_until(lambda: server.request("GET", "/v2/models/flow/ready").status != 200)
        assert server.request("POST", "/v2/repository/models/flow/load").status == 200
        assert [event["OUT"] for event in server.stream("flow", IN=[3, 0, 0])] == [0, 1, 2]


def test_exit(flow, stream, wait_until):
    """The server that ends does not wait for it longer either."""
    server = flow("--exit-timeout-secs=1")
    with stream(server) as numbers:
        assert next(numbers) == 0
        wait_until_held_up(server, wait_until)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() in (0, 1), server.log
