# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native models that call other models and ask the server, and that are called: see tests/native/server_steps.cc.

The other native models answer each request with the responses of another model: tests/native/calls.cc.
"""

import json
import shutil
import threading

import numpy as np
import pytest

FP32_IN_OUT = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
STEPS = """
backend: "steps"
input [ { name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
PLUS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if values.size and values.flat[0] == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("not that", pb_utils.TritonError.UNAVAILABLE))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values + 1)])
"""
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy():
                tensor = pb_utils.Tensor("OUT", np.array([value], np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Answers when its request is cancelled, and not before.
PATIENT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            while not request.is_cancelled():
                time.sleep(0.005)
        error = pb_utils.TritonError("nobody waits", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
# Gives a native model the steps that it is given itself.
PYTHON_CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        command = pb_utils.get_input_tensor_by_name(request, "COMMAND")
        call = pb_utils.InferenceRequest(
            model_name="steps", inputs=[command], requested_output_names=["RESULT"]
        )
        response = call.exec()
        return pb_utils.InferenceResponse(response.output_tensors(), response.error())
"""
REQUEST = ("new plus -1", "input IN 1 2", "data IN 1 2", "callbacks")
ANSWER = [
    "start",
    "allocate OUT 8",
    "response of plus 1 to '', flags 1, ok",
    "output OUT FP32 [1,2] 2 3",
    "free 8",
    "released, flags 1",
]


@pytest.fixture
def steps_model(model, compile_library):
    """`steps_model(name="steps", more="")`: a model whose backend performs the steps of its input."""

    def steps_model(name="steps", more=""):
        folder = model(name, None, STEPS, more)
        shutil.copy(compile_library("server_steps.cc"), folder / "1" / "libtriton_steps.so")

    return steps_model


@pytest.fixture
def models(model, steps_model):
    """A model that performs the steps of its input, and the models that it calls."""
    steps_model()
    model("plus", PLUS, 'backend: "python" max_batch_size: 4' + FP32_IN_OUT)
    model("stream", STREAM, 'backend: "python" model_transaction_policy { decoupled: true }' + FP32_IN_OUT)


def run(server, *lines, model="steps"):
    """The results of the steps, one line each."""
    command = np.array(["\n".join(lines)], object)
    (result,) = server.infer(model, {"COMMAND": command}).as_numpy("RESULT")
    return result.decode().splitlines()


def test_python_callee(models, serve):
    """A request to a Python model, with one response, with many, with an error; and those that are refused."""
    server = serve()
    assert run(server, *REQUEST, "infer")[-6:] == ANSWER
    assert run(server, "new stream -1", "input IN 2", "data IN 5 6", "callbacks", "infer")[4:] == [
        "infer: ok",
        "start",
        "allocate OUT 4",
        "response of stream 1 to '', flags 0, ok",
        "output OUT FP32 [1] 5",
        "free 4",
        "start",
        "allocate OUT 4",
        "response of stream 1 to '', flags 0, ok",
        "output OUT FP32 [1] 6",
        "free 4",
        "no response, flags 1",
        "released, flags 1",
    ]
    assert run(server, "new plus -1", "id seven", "input IN 1 1", "data IN -1", "callbacks", "infer")[-4:] == [
        "infer: ok",
        "start",
        "response of plus 1 to 'seven', flags 1, Unavailable: not that",
        "released, flags 1",
    ]
    assert run(server, "new nothing -1") == ["new: Not found: Request for unknown model: 'nothing' is not found"]
    assert run(server, "new plus 7") == ["new: Not found: Request for unknown model: 'plus' version 7 is not found"]
    assert run(server, "new plus -1", "id seven", "callbacks", "infer", "input IN 1 2", "data IN 1", "infer")[3:] == [
        "infer: Invalid argument: [request id: seven] expected 1 inputs but got 0 inputs for model 'plus'. Got "
        "input(s) [], but missing required input(s) ['IN']. Please provide all required input(s).",
        "input: ok",
        "data: ok",
        "infer: Invalid argument: [request id: seven] input byte size mismatch for input 'IN' for model 'plus'. "
        "Expected 8, got 4",
    ]
    assert run(server, *REQUEST, "output YY", "infer", "remove_output YY", "output OUT", "infer")[-6:] == ANSWER


def test_raw_request(models, serve):
    """A request whose datatype and shape are the model's to say."""
    assert run(serve(), "new plus -1", "raw IN", "data IN 1 2 3", "callbacks", "infer")[-4:-2] == [
        "response of plus 1 to '', flags 1, ok",
        "output OUT FP32 [1,3] 2 3 4",
    ]


def test_many_at_once(models, serve):
    """Requests that wait for one another, and large ones."""
    server = serve()
    count = 20
    lines = run(server, *(*REQUEST, "nested plus", "send") * count, "wait")
    assert lines.count("output OUT FP32 [1,2] 2 3") == count
    assert lines.count("nested output OUT FP32 [1,1] 8") == count
    values = " ".join(["1"] * 300_000)
    (line,) = [
        line
        for line in run(server, "new plus -1", "input IN 1 300000", f"data IN {values}", "callbacks", "infer")
        if line.startswith("output OUT")
    ]
    assert line == f"output OUT FP32 [1,300000] {' '.join(['2'] * 300_000)}"


def test_native_callee(models, model, compile_library, serve):
    """A native model calls a native model, which calls a Python model."""
    config = 'backend: "calls" parameters { key: "MODEL" value { string_value: "plus" } }' + FP32_IN_OUT
    folder = model("forward", None, config.replace("dims: [ -1 ]", "dims: [ -1, -1 ]"))
    shutil.copy(compile_library("calls.cc"), folder / "1" / "libtriton_calls.so")
    lines = run(serve(), "new forward -1", "input IN 1 2", "data IN 1 2", "callbacks", "infer")
    assert "response of forward 1 to '', flags 1, ok" in lines
    assert "output OUT FP32 [1,2] 2 3" in lines


def test_python_caller(models, model, serve):
    """A Python model calls a native model, which calls a Python model."""
    model("caller", PYTHON_CALLER, STEPS.replace('"steps"', '"python"'))
    assert run(serve(), *REQUEST, "infer", model="caller")[-6:] == ANSWER


def test_cancellation(models, model, serve):
    """The model that is called sees that its caller has given up, and its answer still comes."""
    model("patient", PATIENT, 'backend: "python"' + FP32_IN_OUT)
    server = serve()
    lines = run(server, "new patient -1", "input IN 1", "data IN 1", "callbacks", "send", "cancel", "cancelled", "wait")
    assert lines[4:8] == ["send: ok", "cancel: ok", "cancelled: true", "wait: ok"]
    assert "response of patient 1 to '', flags 1, Cancelled" in "\n".join(lines)
    assert lines[-1] == "released, flags 1"


def test_call_to_itself(steps_model, serve):
    """With a second instance it is served. With one it never would be, and is refused after a while."""
    steps_model("twice", "instance_group [ { kind: KIND_CPU count: 2 } ]")
    steps_model("once", "instance_group [ { kind: KIND_CPU count: 1 } ]")
    server = serve()
    for name in ("twice", "once"):
        with_no_steps = (f"new {name} -1", "raw COMMAND", "callbacks", "infer")
        lines = run(server, *with_no_steps, model=name)
        (line,) = [line for line in lines if line.startswith("response")]
        if name == "twice":
            assert line == "response of twice 1 to '', flags 1, ok"
        else:
            assert line.startswith("response of once 1 to '', flags 1, Unavailable: the request would wait for ever")
            assert "once -> once" in line


def test_call_in_a_circle(models, model, serve):
    """A Python model calls a native one, which calls the Python model: that is refused as well."""
    model("caller", PYTHON_CALLER, STEPS.replace('"steps"', '"python"'))
    lines = run(serve(), "new caller -1", "raw COMMAND", "callbacks", "infer", model="caller")
    (line,) = [line for line in lines if line.startswith("response")]
    assert line.startswith("response of caller 1 to '', flags 1, Unavailable: the request would wait for ever")
    assert "steps -> caller -> steps" in line


def initialize(*steps):
    return f'parameters {{ key: "INITIALIZE" value {{ string_value: "{";".join(steps)}" }} }}'


def test_calls_while_loading(models, steps_model, serve):
    """A native model that loads waits for the models that it calls, and not for one that would wait for it."""
    steps_model("eager", initialize(*REQUEST, "infer"))
    steps_model("hen", initialize("new egg -1"))
    steps_model("egg", initialize("new hen -1"))
    log = serve().log
    assert "output OUT FP32 [1,2] 2 3" in log
    refusals = [line for line in log.splitlines() if "new: Unavailable" in line]
    assert len(refusals) == 1
    assert "each of these models would wait for the next one to load: " in refusals[0]


def test_queries(models, serve):
    """Native code gets the same answers about the server and its models as clients."""
    server = serve()

    def document(*line):
        (answer,) = run(server, " ".join(line))
        return json.loads(answer.partition(": ")[2])

    def told(path):
        return json.loads(server.request("GET", f"/v2{path}").body)

    assert run(
        server,
        "live",
        "ready",
        "model_ready plus",
        "model_ready nothing",
        "batch plus",
        "batch stream",
        "batch nothing",
        "transaction plus",
        "transaction stream",
        "config plus 2",
        "statistics nothing",
        "metrics",
    ) == [
        "live: true",
        "ready: true",
        "model_ready: true",
        "model_ready: false",
        "batch: 2",
        "batch: 1",
        "batch: Not found: Request for unknown model: 'nothing' is not found",
        "transaction: 1",
        "transaction: 2",
        "config: Invalid argument: model configuration version 2 not supported, supported versions are: 1",
        "statistics: Invalid argument: requested model 'nothing' is not available",
        f"metrics: {server.request('GET', '/metrics', port=server.metrics_port).body.decode().splitlines()[0]}",
    ]
    assert document("metadata") == told("")
    assert document("model_metadata", "plus") == told("/models/plus")
    assert document("config", "plus", "1") == told("/models/plus/config")
    assert document("statistics", "plus")["model_stats"][0]["name"] == "plus"
    assert {row["name"] for row in document("index", "0")} == {"plus", "steps", "stream"}


def test_model_control(models, serve):
    """A native model unloads another one and loads it again. Requests that are under way are served to their end."""
    server = serve("--model-control-mode=explicit", "--load-model=*")
    assert run(server, *REQUEST, "infer", "unload plus", "model_ready plus", "new plus -1")[-3:] == [
        "unload: ok",
        "model_ready: false",
        "new: Not found: Request for unknown model: 'plus' has no available versions",
    ]
    assert run(server, "load plus", "model_ready plus") == ["load: ok", "model_ready: true"]
    assert run(server, *REQUEST, "unload plus", "infer")[-1] == (
        "infer: Not found: Request for unknown model: 'plus' has no available versions"
    )
    assert run(server, "load nothing", "unload nothing") == [
        "load: Internal: failed to load 'nothing', failed to poll from model repository",
        "unload: ok",
    ]


def test_model_control_is_off(models, serve):
    """Where models cannot be loaded, native code cannot load them either."""
    assert run(serve(), "load plus") == [
        "load: Unavailable: explicit model load / unload is not allowed if polling is enabled"
    ]


def test_clients_at_once(models, serve):
    """Several clients of a model that calls another one."""
    server = serve()
    results = []
    threads = [threading.Thread(target=lambda: results.append(run(server, *REQUEST, "infer"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [lines[-6:] for lines in results] == [ANSWER] * 8
