# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of clients to native models, by both protocols, and requests that never reach a backend."""

import json
import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from .harness.waiting import LIMIT_S

HTTP, GRPC = tritonclient.http, tritonclient.grpc
BOTH = pytest.mark.parametrize("protocol", [HTTP, GRPC], ids=["http", "grpc"])
GATE = """
backend: "gate"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
BATCHED = """
backend: "gate"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 8 }
"""
TWO = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 2, -1 ] }
input { name: "INPUT1" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 2, -1 ] }
output { name: "OUTPUT1" data_type: TYPE_STRING dims: [ 1 ] }
"""
OPTIONAL = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1 ] optional: true }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ -1 ] }
"""
RESHAPED = """
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } } ]
"""
REPEAT = 'backend: "repeat"\n' + (Path(__file__).parent.parent / "native/repeat.pbtxt").read_text()
ANY = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
"""
TYPES = ["FP16", "BF16", "STRING", "UINT8"]


@pytest.fixture(scope="module")
def backends(install_backends):
    """The option that says where the backends are."""
    return f"--backend-directory={install_backends('identity', 'gate', 'repeat')}"


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, backends):
    """A server of models that hold nothing up."""
    repository = tmp_path_factory.mktemp("clients")
    configs = {
        "gate": GATE,
        "two": TWO,
        "bad": TWO,
        "optional": OPTIONAL,
        "reshaped": RESHAPED,
        "repeat": REPEAT,
    }
    configs |= {name: ANY % (name, name) for name in TYPES}
    for name, config in configs.items():
        write_model(repository, name, None, config)
    with serving(repository, backends, "--allow-client-shm=true") as server:
        yield server


def tensor(protocol, name, array, datatype=None):
    """An input as a client of a protocol has it."""
    made = protocol.InferInput(name, array.shape, datatype or np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def client_of(server, protocol):
    return closing(server.client() if protocol is HTTP else server.grpc())


@BOTH
@pytest.mark.parametrize(
    ("model", "array"),
    [
        ("UINT8", np.zeros(16 << 20, np.uint8)),
        ("UINT8", np.zeros(0, np.uint8)),
        ("FP16", np.array([1.5, np.inf, -0.0], np.float16)),
        ("BF16", np.array([1.5, np.inf, -0.0], ml_dtypes.bfloat16)),
        ("STRING", np.array([b"", b"x" * (1 << 20), b"\0\xff"], object)),
        ("STRING", np.zeros(0, object)),
    ],
    ids=["16 MiB", "nothing", "FP16", "BF16", "long texts", "no texts"],
)
def test_sizes_and_types(server, protocol, model, array):
    """The output is the input, bit by bit."""
    with client_of(server, protocol) as client:
        datatype = model.replace("STRING", "BYTES")
        found = client.infer(model, [tensor(protocol, "INPUT0", array, datatype)]).as_numpy("OUTPUT0")
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes() if model != "STRING" else found.tolist() == array.tolist()


def test_json(server):
    """Tensors as JSON, with an id."""
    array = np.array([[1, 2], [3, -4]], np.int32)
    found = server.infer(
        "two",
        {"INPUT0": array, "INPUT1": np.array(["\u00e4"], object)},
        binary=False,
        outputs=["OUTPUT0", "OUTPUT1"],
        request_id="mine",
    ).get_response()
    assert found["id"] == "mine"
    assert [output["data"] for output in found["outputs"]] == [[1, 2, 3, -4], ["\u00e4"]]


def test_optional_inputs(server):
    """A backend sees the inputs that are there."""
    array = np.arange(3, dtype=np.int32)
    found = server.infer("optional", {"INPUT0": array}).get_response()
    assert [output["name"] for output in found["outputs"]] == ["OUTPUT0"]
    found = server.infer("optional", {"INPUT0": array, "INPUT1": array}).get_response()
    assert [output["name"] for output in found["outputs"]] == ["OUTPUT0", "OUTPUT1"]


def test_reshape(server):
    """A backend sees the shape that the configuration gives it; clients see theirs."""
    array = np.arange(3, dtype=np.int32).reshape(3, 1)
    assert server.infer("reshaped", {"INPUT0": array}).as_numpy("OUTPUT0").tolist() == array.tolist()


# Requests that never reach a backend.

GOOD = {"INPUT0": np.zeros((2, 3), np.int32), "INPUT1": np.array([b"x"], object)}
GOOD_0 = {"INPUT0": GOOD["INPUT0"]}
BAD = {
    "another input": (
        GOOD | {"NONE": np.zeros(1, np.int32)},
        "expected 2 inputs but got 3 inputs for model 'bad'",
    ),
    "unknown input": (
        GOOD_0 | {"NONE": np.zeros(1, np.int32)},
        "unexpected inference input 'NONE' for model 'bad'",
    ),
    "missing input": (GOOD_0, "expected 2 inputs but got 1 inputs for model 'bad'"),
    "type": (GOOD | {"INPUT0": np.zeros((2, 3), np.int64)}, "inference input 'INPUT0' data-type is 'INT64', but model"),
    "shape": (
        GOOD | {"INPUT0": np.zeros((3, 3), np.int32)},
        "unexpected shape for input 'INPUT0' for model 'bad'",
    ),
    "dims": (GOOD | {"INPUT0": np.zeros(2, np.int32)}, "unexpected shape for input 'INPUT0' for model 'bad'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(server, name):
    """Requests that do not fit the configuration end in front of the backend, which might not survive them."""
    arrays, reason = BAD[name]
    status, message = server.refusal("bad", arrays)
    assert status == 400
    assert reason in message
    with closing(server.client()) as client:
        (statistics,) = client.get_inference_statistics("bad")["model_stats"]
    assert statistics["execution_count"] == 0


@pytest.mark.parametrize(
    ("size", "data"),
    [(24, b"x" * 23), (24, b"x" * 25), (1 << 62, b"x"), (-1, b"x")],
)
def test_wrong_sizes(server, size, data):
    """A tensor whose bytes do not fit its shape is refused."""
    first = {"name": "INPUT0", "datatype": "INT32", "shape": [2, 3], "parameters": {"binary_data_size": size}}
    second = {"name": "INPUT1", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    document = json.dumps({"inputs": [first, second]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(document))}
    found = server.request("POST", "/v2/models/two/infer", document + data, headers)
    assert found.status == 400
    assert server.infer("two", GOOD).as_numpy("OUTPUT0").shape == (2, 3)


def test_unknown_outputs(server):
    """Outputs that a model has not are refused before it is asked."""
    status, message = server.refusal("two", GOOD, outputs=["OUTPUT0", "NONE"])
    assert (status, message) == (400, "unexpected inference output 'NONE' for model 'two'")


# Memory of clients.


@contextmanager
def shared(client, name, size):
    """Memory that a client shares with the server, under a unique name."""
    key = f"/pyruntime_e2e_{uuid4().hex}"
    handle = shm.create_shared_memory_region(name, key, size)
    try:
        client.register_system_shared_memory(name, key, size)
        yield handle
    finally:
        with suppress(InferenceServerException):
            client.unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(handle)


@BOTH
def test_shared_memory(server, protocol):
    """Inputs and outputs in a client's memory, one, the other, and both."""
    array = np.arange(1000, dtype=np.int32)
    with (
        client_of(server, protocol) as client,
        shared(client, "in", 4000) as source,
        shared(client, "out", 4096) as sink,
    ):
        shm.set_shared_memory_region(source, [array])
        given = protocol.InferInput("INPUT0", [1000], "INT32")
        given.set_shared_memory("in", 4000)
        wanted = protocol.InferRequestedOutput("OUTPUT0")
        assert client.infer("gate", [given], outputs=[wanted]).as_numpy("OUTPUT0").tolist() == array.tolist()
        wanted.set_shared_memory("out", 4000, offset=96)
        for each in (given, tensor(protocol, "INPUT0", array)):
            shm.set_shared_memory_region(sink, [np.zeros(1024, np.int32)])
            client.infer("gate", [each], outputs=[wanted])
            assert shm.get_contents_as_numpy(sink, np.int32, [1000], offset=96).tolist() == array.tolist()


@BOTH
def test_shared_memory_that_is_too_small(server, protocol):
    """An output that does not fit is not written, and the error has the size that it needs."""
    with client_of(server, protocol) as client, shared(client, "small", 8) as sink:
        shm.set_shared_memory_region(sink, [np.array([1, 2], np.int32)])
        wanted = protocol.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("small", 8)
        with pytest.raises(InferenceServerException, match=r"\(8 bytes\) should be at least 40 bytes") as caught:
            client.infer("gate", [tensor(protocol, "INPUT0", np.arange(10, dtype=np.int32))], outputs=[wanted])
        assert caught.value.status() == ("500" if protocol is HTTP else "StatusCode.INTERNAL")
        assert shm.get_contents_as_numpy(sink, np.int32, [2]).tolist() == [1, 2]


# Responses, many of them, and clients that do not wait for them.


def repeated(count, delay_ms=0):
    """The inputs of a request that has so many responses."""
    arrays = {"IN": np.arange(count), "DELAY": np.full(count, delay_ms), "WAIT": np.zeros(1)}
    types = {"IN": np.int32, "DELAY": np.uint32, "WAIT": np.uint32}
    return [tensor(GRPC, name, array.astype(types[name])) for name, array in arrays.items()]


@contextmanager
def stream(server):
    """A stream of gRPC, and its answers as they come."""
    answers = queue.SimpleQueue()
    with closing(server.grpc()) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        yield client, lambda: answers.get(timeout=LIMIT_S)
        client.stop_stream(cancel_requests=True)


def test_streams(server):
    """Requests of one stream have their responses as they come, each in order, and then the end of each."""
    with stream(server) as (client, answer):
        for name in ("a", "b"):
            client.async_stream_infer("repeat", repeated(50, 1), request_id=name, enable_empty_final_response=True)
        found = {"a": [], "b": []}
        ends = set()
        while len(ends) < 2:
            response = answer()
            document = response.get_response()
            if document.parameters["triton_final_response"].bool_param:
                ends.add(document.id)
            else:
                found[document.id].append(response.as_numpy("IDX").item())
    assert found == {"a": list(range(50)), "b": list(range(50))}


def test_cancelled_streams(server, wait_until):
    """A backend sees that the client of a stream is gone."""
    before = server.log.count("repeat: cancelled")
    with stream(server) as (client, answer):
        client.async_stream_infer("repeat", repeated(100_000, 1))
        assert answer().as_numpy("IDX").item() == 0
    wait_until(lambda: server.log.count("repeat: cancelled") == before + 1)


def test_slow_clients(server):
    """A client that looks away finds all responses when it looks again, in order; others do not wait for it."""
    count = 20_000
    with server.streaming("repeat", IN=list(range(count)), DELAY=[0] * count, WAIT=[0]) as events:
        assert next(events)["IDX"] == 0
        for _ in range(5):
            assert len(server.stream("repeat", IN=[1] * 10, DELAY=[0] * 10, WAIT=[0])) == 10
        assert [event["IDX"] for event in events] == list(range(1, count))


@pytest.fixture
def held(serve, model, backends):
    """`held(config)`: a server of a model that holds its requests, and the file that makes it do so."""

    def held(config):
        hold = model("gate", None, config) / "hold"
        hold.touch()
        return serve(backends), hold

    return held


def test_clients_that_hang_up(held, wait_until):
    """A backend that has a request, and looks, sees that its client has gone."""
    server, hold = held(GATE)
    with closing(server.connect()) as sock:
        document = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}'
        sock.sendall(b"POST /v2/models/gate/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(document), document))
        wait_until(lambda: "gate: 1 requests" in server.log)
    wait_until(lambda: "gate: cancelled" in server.log)
    hold.unlink()
    assert server.infer("gate", {"INPUT0": np.array([7], np.int32)}).as_numpy("OUTPUT0").tolist() == [7]


def test_clients_that_cancel(held, wait_until):
    """A cancelled gRPC call is visible to the backend; other calls are answered."""
    server, hold = held(GATE)
    with closing(server.grpc()) as client:
        answers = queue.SimpleQueue()
        call = client.async_infer(
            "gate", [tensor(GRPC, "INPUT0", np.array([7], np.int32))], lambda result, error: answers.put(error)
        )
        wait_until(lambda: "gate: 1 requests" in server.log)
        call.cancel()
        wait_until(lambda: "gate: cancelled" in server.log)
        assert "CANCELLED" in str(answers.get(timeout=LIMIT_S))
    hold.unlink()


def test_clients_in_one_batch(held, wait_until):
    """Requests of several clients, by both protocols, are one batch to the backend, and each has its own answer."""
    server, hold = held(BATCHED)

    def ask(number):
        with client_of(server, (HTTP, GRPC)[number % 2]) as client:
            given = tensor((HTTP, GRPC)[number % 2], "INPUT0", np.full((1, 2), number, np.int32))
            found = client.infer("gate", [given])
        response = found.get_response()
        together = response["parameters"]["together"] if isinstance(response, dict) else None
        together = together or response.parameters["together"].int64_param
        return found.as_numpy("OUTPUT0").tolist(), together

    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(ask, number) for number in range(8)]
        wait_until(lambda: "gate: 8 requests" in server.log)
        hold.unlink()
        assert [each.result() for each in asked] == [([[number] * 2], 8) for number in range(8)]
