# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Response caches: libraries like tests/native/cache.cc, which logs its calls."""

import json
import queue
import re
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils.shared_memory as shm
from tritonclient.http import InferInput, InferRequestedOutput

from .harness.ensembles import ensemble, step
from .harness.models import parameters

CACHED = "response_cache { enable: true }\n"
# Each answer has the number of its execution beside the sum.
COUNTER = """
class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if numbers[0] < 0:
                error = pb_utils.TritonError("no negative numbers")
                responses.append(pb_utils.InferenceResponse([], error))
                continue
            self.count += 1
            out = pb_utils.Tensor("OUT", np.array([numbers.sum(), self.count], np.int64))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, "IN")]
            call = pb_utils.InferenceRequest(model_name="m", requested_output_names=["OUT"], inputs=inputs)
            responses.append(call.exec())
        return responses
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory, compile_library):
    """The folder of the cache."""
    folder = tmp_path_factory.mktemp("caches")
    (folder / "tested").mkdir()
    shutil.copy(compile_library("cache.cc"), folder / "tested" / "libtritoncache_tested.so")
    return folder


@pytest.fixture
def server(serve, directory, tmp_path, monkeypatch):
    """`server(*options, **settings)`: a server with the cache."""
    log = tmp_path / ".cache_log"
    log.touch()
    monkeypatch.setenv("CACHE_LOG", str(log))

    def start(*options, how=None, **settings):
        config = [f"--cache-config=tested,{key}={value}" for key, value in ({"some": "thing"} | settings).items()]
        server = serve(f"--cache-directory={directory}", *config, *options, **(how or {}))
        server.cache_log = log
        return server

    return start


@pytest.fixture
def model(write_model, tmp_path):
    """`model(more=)`: a model whose responses are cached."""
    return lambda code=COUNTER, more=CACHED: write_model(tmp_path, "m", code, more=more)


def told(server):
    """The calls of the cache, without keys."""
    return [line.split(" ")[0] for line in server.cache_log.read_text().splitlines()]


def ask(server, *numbers, model="m", **options):
    """The sum, and which execution that was."""
    return server.infer(model, {"IN": np.array(numbers, np.int64)}, **options).as_numpy("OUT").tolist()


def statistics(server, model="m"):
    """How many requests were which, by the statistics."""
    with closing(server.client()) as client:
        (found,) = client.get_inference_statistics(model)["model_stats"]
    counts = {name: value["count"] for name, value in found["inference_stats"].items()}
    return counts | {"inferences": found["inference_count"], "executions": found["execution_count"]}


def test_what_was_answered_before(server, model):
    """It is answered from the cache, without an execution; what differs is not."""
    model()
    server = server()
    assert ask(server, 1, 2) == [3, 1]
    assert ask(server, 1, 2) == [3, 1]
    assert ask(server, 2, 1) == [3, 2]
    assert ask(server, 1, 2, binary=False) == [3, 1]
    assert ask(server, 1, 2, outputs=["OUT"], request_id="with an id") == [3, 1]
    # As in Triton. A model that reads parameters should have no response cache.
    assert ask(server, 1, 2, parameters={"more": 1}) == [3, 1]
    assert statistics(server) == {
        "success": 6,
        "fail": 0,
        "queue": 6,
        "compute_input": 2,
        "compute_infer": 2,
        "compute_output": 2,
        "cache_hit": 4,
        "cache_miss": 2,
        "inferences": 2,
        "executions": 2,
    }
    server.stop()
    assert told(server) == ["initialize", *["lookup", "insert", "lookup"] * 2, *["lookup"] * 2, "finalize"]
    assert 'initialize {"some":"thing"}' in server.cache_log.read_text()


def test_large_tensors(server, model):
    """Contents of any size are returned unchanged, from any memory."""
    model(COUNTER.replace("np.array([numbers.sum(), self.count], np.int64)", "numbers"))
    server = server("--http-max-input-size=200000000")
    for size in (1, 1000, 1_000_000):
        for _ in range(2):
            assert ask(server, *range(size)) == list(range(size))
    assert statistics(server)["cache_hit"] == 3


def test_errors_are_not_kept(server, model):
    """The model is asked again."""
    model()
    server = server()
    for _ in range(2):
        assert server.refusal("m", {"IN": np.array([-1], np.int64)})[1] == "no negative numbers"
    assert told(server) == ["initialize", "lookup", "lookup"]
    counts = statistics(server)
    assert (counts["fail"], counts["cache_miss"], counts["cache_hit"]) == (2, 2, 0)


def test_models_that_do_not_ask_for_it(server, model):
    """Their requests never come to the cache, and their metrics have nothing of it."""
    model(more="")
    server = server()
    assert ask(server, 1) == [1, 1]
    assert ask(server, 1) == [1, 2]
    assert told(server) == ["initialize"]
    assert b"nv_cache" not in server.request("GET", "/metrics", port=server.metrics_port).body


@pytest.mark.parametrize("summaries", [False, True])
def test_metrics(server, model, summaries):
    """Triton's, of models that have a cache."""
    model()
    server = server(*["--metrics-config=summary_latencies=true"] * summaries)
    for number in (1, 1, 1, 2):
        ask(server, number)
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    labels = '{model="m",version="1"}'
    assert f"nv_cache_num_hits_per_model{labels} 2\n" in page
    assert f"nv_cache_num_misses_per_model{labels} 2\n" in page
    assert f"nv_inference_count{labels} 2\n" in page
    assert f"nv_inference_request_success{labels} 4\n" in page
    for name in ("hit", "miss"):
        assert re.search(rf"nv_cache_{name}_duration_per_model{labels} [1-9]", page)
        assert (f"nv_cache_{name}_summary_per_model_count{labels} 2\n" in page) is summaries


def test_every_frontend(server, model):
    """Over gRPC as well as over HTTP, and from a stream."""
    model()
    server = server()
    assert ask(server, 4) == [4, 1]
    tensor = tritonclient.grpc.InferInput("IN", [1], "INT64").set_data_from_numpy(np.array([4], np.int64))
    with closing(server.grpc()) as client:
        assert client.infer("m", [tensor]).as_numpy("OUT").tolist() == [4, 1]
    answer = server.request("POST", "/v2/models/m/generate", '{"IN": 4}')
    assert (answer.status, b"[4,1]" in answer.body) == (200, True)
    assert statistics(server)["cache_hit"] == 2


def test_calls_of_models(server, model, write_model, tmp_path):
    """Calls of models are cached as well."""
    model()
    write_model(tmp_path, "caller", CALLER)
    server = server()
    assert ask(server, 5, model="caller") == [5, 1]
    assert ask(server, 5, model="caller") == [5, 1]
    assert ask(server, 5) == [5, 1]
    assert statistics(server)["cache_hit"] == 2


def test_many_at_once(server, model):
    """Several threads ask the cache; everybody gets what he asked for, with or without batches."""
    model(more=CACHED + "instance_group { count: 2 kind: KIND_CPU }\n")
    server = server()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: ask(server, number % 10), range(200)))
    assert [total for total, _ in answers] == [number % 10 for number in range(200)]
    counts = statistics(server)
    assert counts["cache_hit"] + counts["cache_miss"] == counts["success"] == 200
    assert counts["cache_hit"] >= 200 - 10 * 8


def test_memory_of_clients(server, model):
    """Inputs count by what lies there, and outputs are put there from the cache; what lies there is not kept."""
    model()
    server = server("--allow-client-shm=true")
    key = f"/pyruntime_test_cache_{server.port}"
    region = shm.create_shared_memory_region("numbers", key, 32)
    try:
        with closing(server.client()) as client:
            client.register_system_shared_memory("numbers", key, 32)
            tensor = InferInput("IN", [1], "INT64")
            tensor.set_shared_memory("numbers", 8)
            for number, expected in ((6, 1), (7, 2), (6, 1)):
                shm.set_shared_memory_region(region, [np.array([number], np.int64)])
                assert client.infer("m", [tensor]).as_numpy("OUT").tolist() == [number, expected]
            there = InferRequestedOutput("OUT")
            there.set_shared_memory("numbers", 16, offset=16)
            client.infer("m", [tensor], outputs=[there])
            assert shm.get_contents_as_numpy(region, np.int64, [2], offset=16).tolist() == [6, 1]
            for expected in (3, 4):
                shm.set_shared_memory_region(region, [np.array([8], np.int64)])
                client.infer("m", [tensor], outputs=[there])
                assert shm.get_contents_as_numpy(region, np.int64, [2], offset=16).tolist() == [8, expected]
            client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(region)


@pytest.mark.parametrize(
    ("settings", "logged"),
    [
        ({"fail": "lookup"}, "tested: lookup of a response of 'm' failed: no lookup"),
        ({"throw": "lookup"}, "failed: TRITONCACHE_CacheLookup threw an exception: no lookup"),
        ({"fail": "insert"}, "tested: a response of 'm' was not inserted: no insert"),
        ({"throw": "insert"}, "was not inserted: TRITONCACHE_CacheInsert threw an exception: no insert"),
        ({"lose": "true"}, "TRITONCACHE_CacheLookup has found an entry and did not copy it"),
        ({"spoil": "true"}, "tested: lookup of a response of 'm' failed: "),
    ],
)
def test_a_cache_that_fails(server, model, settings, logged):
    """The log has it, and requests are executed as if there was none."""
    model()
    server = server(**settings)
    assert ask(server, 1) == [1, 1]
    assert ask(server, 1) == [1, 2]
    assert logged in server.log


def test_misuse(server, model):
    """A wrong call of a cache is refused with a message; the response is kept all the same."""
    model()
    server = server(misuse="true")
    assert [ask(server, 1), ask(server, 1)] == [[1, 1], [1, 1]]
    lines = server.cache_log.read_text().splitlines()
    (size,) = (line for line in lines if line.startswith("size: "))
    assert [line for line in lines if line.split(" ")[0] in ("index:", "set:", "gpu:", "null:")] == [
        "index: index 9 is out of bounds: the entry has 1 buffers",
        "set: index 9 is out of bounds: the entry has 1 buffers",
        "gpu: Only buffers in CPU memory are allowed in cache currently",
        "null: TRITONCACHE_CacheEntryAddBuffer: base is null",
    ]
    assert re.fullmatch(r"size: Expected size of buffer in cache does not match. Expected: \d+, received: 1", size)


def test_unloaded_while_asked(server, model):
    """Accepted requests are answered; the cache stays for the model that is loaded next."""
    model()
    server = server("--model-control-mode=explicit", "--load-model=m")
    assert ask(server, 1) == [1, 1]
    with closing(server.client()) as client:
        client.unload_model("m")
        client.load_model("m")
    assert ask(server, 1) == [1, 1]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("model_transaction_policy { decoupled: true }\n", "with 'decoupled' transaction policy"),
        ("sequence_batching {}\n", "with sequence batching scheduler"),
    ],
)
def test_models_that_cannot_have_it(server, model, wait_until, more, expected):
    """Triton's message."""
    model(more=CACHED + more)
    server = server("--exit-on-error=false", how={"ready": False})
    message = f"Response Cache does not currently support model m {expected}. Please disable the response cache."
    wait_until(lambda: message in server.log)
    with closing(server.client()) as client:
        (row,) = client.get_model_repository_index()
    assert message in row["reason"]


def test_a_server_without_a_cache(serve, write_model, tmp_path):
    """The model is served all the same, and the log says so."""
    write_model(tmp_path, "m", COUNTER, more=CACHED)
    server = serve()
    assert [ask(server, 1), ask(server, 1)] == [[1, 1], [1, 2]]
    assert "model 'm' asks for a response cache, and the server has none: see --cache-config" in server.log


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--cache-config=none,size=1"], "unable to find 'libtritoncache_none.so' for cache. Searched: {}"),
        (["--cache-config=../x,size=1"], "unable to find 'libtritoncache_../x.so' for cache. Searched: {}"),
        (["--cache-config=local,sizes=1"], "config didn't contain a valid 'size' field"),
        (["--cache-config=redis,host=localhost"], "didn't specify address"),
        (["--cache-config=redis,host=127.0.0.1", "--cache-config=redis,port=1"], "Failed to initialize RedisCache"),
        (["--cache-config=tested,fail=begin"], "no begin"),
        (
            ["--cache-config=wrong,size=1"],
            "unable to find required entrypoint 'TRITONCACHE_CacheInitialize' in shared library: {}/wrong",
        ),
    ],
)
def test_a_cache_that_cannot_be_had(serve, directory, compile_library, options, expected):
    """The server does not start, and says why."""
    (directory / "wrong").mkdir(exist_ok=True)
    shutil.copy(compile_library("identity.cc"), directory / "wrong" / "libtritoncache_wrong.so")
    server = serve(f"--cache-directory={directory}", *options, ready=False)
    assert server.wait_exit() == 1
    assert expected.format(directory) in server.log


@pytest.mark.parametrize("levels", [["TIMESTAMPS"], ["TIMESTAMPS", "TENSORS"]])
def test_traces(server, model, tmp_path, levels):
    """A request that is answered from the cache has a trace that says when it came and went, and of no execution."""
    model()
    file = tmp_path / ".trace.json"
    options = [f"--trace-config=level={level}" for level in levels]
    server = server("--trace-config=rate=1", f"--trace-config=triton,file={file}", *options)
    assert [ask(server, 1, request_id=name) for name in ("miss", "hit")] == [[1, 1], [1, 1]]
    server.stop()
    activities = {}
    names = {}
    for event in json.loads(file.read_text()):
        names[event["id"]] = event.get("request_id") or names.get(event["id"])
        activities.setdefault(event["id"], set()).update(each["name"] for each in event.get("timestamps", ()))
    found = {names[number]: noted for number, noted in activities.items()}
    assert {"REQUEST_START", "COMPUTE_START", "REQUEST_END"} <= found["miss"]
    assert {"REQUEST_START", "REQUEST_END"} <= found["hit"]
    assert "COMPUTE_START" not in found["hit"]


@pytest.fixture
def redis_options(tmp_path_factory, reserve_ports, wait_until):
    """The options for a Redis server."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    folder = tmp_path_factory.mktemp("redis")
    with reserve_ports(1) as (port,):
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: is_open(port))
            yield ["--cache-config=redis,host=127.0.0.1", f"--cache-config=redis,port={port}"]
        finally:
            process.terminate()
            process.wait()


def is_open(port):
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


LOCAL = ["--cache-config=local,size=1000000"]


@pytest.mark.parametrize("cache", ["local", "older option", "redis"])
def test_ours(serve, model, request, cache):
    """The caches that come with the server answer as a library does: at once, and with large tensors."""
    options = {"local": LOCAL, "older option": ["--response-cache-byte-size=1000000"]}
    model()
    server = serve(*(options.get(cache) or request.getfixturevalue("redis_options")))
    large = np.arange(20_000)
    for _ in range(3):
        assert server.infer("m", {"IN": np.array([1, 2])}).as_numpy("OUT").tolist() == [3, 1]
        assert server.infer("m", {"IN": large}).as_numpy("OUT").tolist() == [large.sum(), 2]
    assert server.refusal("m", {"IN": np.array([-1])})[0] == 500
    (found,) = json.loads(server.request("GET", "/v2/models/m/stats").body)["model_stats"]
    assert found["execution_count"] == 3
    assert [found["inference_stats"][key]["count"] for key in ("cache_hit", "cache_miss", "success")] == [4, 3, 6]


def test_redis_that_ends(serve, model, redis_options, wait_until):
    """Without its Redis server requests are executed, with a line in the log for each; nothing waits for long."""
    model()
    server = serve(*redis_options)
    assert server.infer("m", {"IN": np.array([5])}).as_numpy("OUT").tolist() == [5, 1]
    port = redis_options[1].rpartition("=")[2]
    with socket.create_connection(("127.0.0.1", int(port))) as control:
        control.sendall(b"SHUTDOWN NOSAVE\r\n")
        assert control.recv(1) == b""
    assert server.infer("m", {"IN": np.array([5])}).as_numpy("OUT").tolist() == [5, 2]
    assert "redis: lookup of a response of 'm' failed" in server.log


def over_http(server, numbers, **headers):
    """The whole response to a request with JSON, on a connection of its own."""
    document = json.dumps({"inputs": [{"name": "IN", "datatype": "INT64", "shape": [len(numbers)], "data": numbers}]})
    answer = server.request("POST", "/v2/models/m/infer", document, headers)
    return answer.status, answer.body


def over_grpc(client, id):
    """The id and the numbers of the response to a request with an id."""
    tensor = tritonclient.grpc.InferInput("IN", [1], "INT64").set_data_from_numpy(np.array([4], np.int64))
    result = client.infer("m", [tensor], request_id=id)
    return result.get_response().id, result.as_numpy("OUT").tolist()


def test_repeated_requests(serve, model):
    """The same bytes get the same response, and count as any hit; a version that is loaded anew checks them anew."""
    folder = model()
    server = serve(*LOCAL, "--model-control-mode=explicit", "--load-model=m")
    forms = [{}, {"binary": False}, {"outputs": ["OUT"]}, {"request_id": "with an id"}, {"parameters": {"more": 1}}]
    for form in forms * 3:
        assert ask(server, 1, 2, **form) == [3, 1]
    first = over_http(server, [1, 2])
    assert [over_http(server, [1, 2]), over_http(server, [1, 2], Connection="close")] == [first] * 2
    assert over_http(server, [2, 2]) == (200, first[1].replace(b"[3,1]", b"[4,2]"))
    with closing(server.grpc()) as client:
        for id in ("a", "b", "", "c"):
            assert over_grpc(client, id) == (id, [4, 3])
    assert over_http(server, [-1]) == over_http(server, [-1])
    counts = statistics(server)
    assert {name: counts[name] for name in ("cache_hit", "cache_miss", "success", "fail", "executions")} == {
        "cache_hit": 20,
        "cache_miss": 5,
        "success": 23,
        "fail": 2,
        "executions": 5,
    }
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert "nv_cache_num_hits 20\n" in page
    assert 'nv_cache_num_hits_per_model{model="m",version="1"} 20\n' in page
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ -1 ]", "dims: [ 3 ]", 1))
    assert server.request("POST", "/v2/repository/models/m/load").status == 200
    assert over_http(server, [1, 2])[0] == 400
    assert server.request("POST", "/v2/repository/models/m/unload").status == 200
    assert over_http(server, [1, 2])[0] == 404


def test_usage_of_local(serve, model):
    """Triton's gauges of the cache `local`."""
    model()
    server = serve(*LOCAL)
    for number in (1, 1, 2):
        ask(server, number)
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    found = dict(re.findall(r"^(nv_cache_\w+) (\S+)$", page, re.MULTILINE))
    for name in ("nv_cache_lookup_duration", "nv_cache_insertion_duration"):
        assert int(found.pop(name)) >= 0
    assert 0 < float(found.pop("nv_cache_util")) < 1
    assert found == {
        "nv_cache_num_entries": "2",
        "nv_cache_num_hits": "1",
        "nv_cache_num_misses": "2",
        "nv_cache_num_lookups": "3",
        "nv_cache_num_evictions": "0",
    }


# Sends as many responses as IN says, of as many numbers, and fails behind them if there are more than ten.
REPEATER = """
class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        for request in requests:
            self.count += 1
            sender = request.get_response_sender()
            (repeats, size) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for number in range(repeats):
                out = pb_utils.Tensor("OUT", np.full(size, 1000 * self.count + number))
                sender.send(pb_utils.InferenceResponse([out]))
            if repeats > 10:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("too many")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
STREAMS = CACHED + DECOUPLED + parameters(CACHE_STREAMS="true")
# A step that adds nothing, for an ensemble.
PASS = """
class TritonPythonModel:
    def execute(self, requests):
        read = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in read]
"""


def streamed(server, repeats, size, model="m"):
    """The first numbers of the responses, over gRPC."""
    tensor = tritonclient.grpc.InferInput("IN", [2], "INT64").set_data_from_numpy(np.array([repeats, size], np.int64))
    results = queue.Queue()
    with closing(server.grpc()) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
        found = []
        while True:
            result, error = results.get()
            if error is not None:
                found.append(str(error))
                continue
            response = result.get_response()
            if response.outputs:
                array = result.as_numpy("OUT")
                assert array.tolist() == [array[0]] * size
                found.append(int(array[0]))
            if response.parameters["triton_final_response"].bool_param:
                return found


@pytest.mark.parametrize("cache", ["local", "redis"])
def test_streams(serve, model, request, cache):
    """A stream that was sent before is replayed, whatever its size; one with an error is executed again."""
    model(REPEATER, STREAMS)
    server = serve(*(LOCAL if cache == "local" else request.getfixturevalue("redis_options")))
    for repeats, size, count in ((3, 1, 1), (0, 1, 2), (2, 20_000, 3)):
        for _ in range(3):
            assert streamed(server, repeats, size) == [1000 * count + number for number in range(repeats)]
    event = server.request("POST", "/v2/models/m/generate_stream", '{"IN": [3, 1]}').body
    assert [json.loads(line[6:])["OUT"] for line in event.decode().splitlines() if line] == [1000, 1001, 1002]
    for count in (4, 5):
        assert streamed(server, 11, 1)[:11] == [1000 * count + number for number in range(11)]
    counts = statistics(server)
    assert [counts[name] for name in ("cache_hit", "cache_miss", "executions")] == [7, 5, 5]


def test_stream_of_a_slow_client(serve, model, wait_until):
    """A replay waits for its client, and ends with it; the next one has all of it."""
    model(REPEATER.replace("> 10", "> 10_000"), STREAMS)
    server = serve("--cache-config=local,size=50000000")
    assert len(streamed(server, 1500, 1000)) == 1500
    # No socket has room for such a stream as text.
    body = b'{"IN": [1500, 1000]}'
    head = f"POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    wait_until(lambda: statistics(server)["fail"] == 1)
    assert statistics(server)["cache_hit"] == 0
    assert streamed(server, 1500, 1000)[-1] == 1000 + 1499
    assert statistics(server)["cache_hit"] == 1


def test_streams_of_ensembles(serve, model, write_model, tmp_path):
    """An ensemble with a decoupled step can have its streams kept, and so can the step."""
    write_model(tmp_path, "m", REPEATER, more=STREAMS)
    write_model(tmp_path, "pass", PASS)
    steps = step("m", {"IN": "IN"}, {"OUT": "t"}), step("pass", {"IN": "t"}, {"OUT": "OUT"})
    write_model(tmp_path, "steps", None, ensemble(*steps))
    write_model(tmp_path, "whole", None, ensemble(*steps), CACHED + parameters(CACHE_STREAMS="true"))
    server = serve(*LOCAL)
    for name in ("steps", "steps", "whole", "whole"):
        assert streamed(server, 3, 2, name) == [1000, 1001, 1002]
    assert [statistics(server, name)["cache_hit"] for name in ("m", "whole")] == [2, 1]
    assert statistics(server, "pass")["executions"] == 9


IDENTITY = """backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


@pytest.mark.parametrize("mode", ["in_process", "process"])
def test_backends(serve, write_model, tmp_path, install_backends, mode):
    """Responses of C++ backends are kept, small and large ones."""
    write_model(tmp_path, "m", None, IDENTITY, CACHED + parameters(EXECUTION_MODE=mode))
    server = serve(f"--backend-directory={install_backends('identity')}", *LOCAL)
    for size in (3, 50_000):
        array = np.arange(size, dtype=np.int32)
        for _ in range(2):
            assert np.array_equal(server.infer("m", {"INPUT0": array}).as_numpy("OUTPUT0"), array)
    assert [statistics(server)[name] for name in ("cache_hit", "cache_miss")] == [2, 2]


ORDERED = CACHED + "max_batch_size: 1\ndynamic_batching { preserve_ordering: true }\n"
# Waits for a file where the number is 9.
WAITER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            while numbers[0][0] == 9 and not os.path.exists(__file__ + ".go"):
                time.sleep(0.001)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numbers)]))
        return responses
"""


def test_preserved_order(serve, model):
    """A response from the cache does not overtake those of the requests that are being executed."""
    folder = model(WAITER, ORDERED)
    server = serve(*LOCAL)

    def tensor(number):
        given = tritonclient.grpc.InferInput("IN", [1, 1], "INT64")
        return given.set_data_from_numpy(np.array([[number]], np.int64))

    with closing(server.grpc()) as client:
        client.infer("m", [tensor(1)])
        results = queue.Queue()
        client.start_stream(lambda result, error: results.put(result))
        for number in (9, 1, 1):
            client.async_stream_infer("m", [tensor(number)])
        # The statistics count a hit when it is found.
        while statistics(server)["cache_hit"] < 2:
            assert results.empty()
        (folder / "1" / "model.py.go").touch()
        assert [results.get().as_numpy("OUT").tolist() for _ in range(3)] == [[[9]], [[1]], [[1]]]
