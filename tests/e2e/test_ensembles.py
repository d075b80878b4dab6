# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles, by the models of their steps."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from .harness.ensembles import chain, ensemble, step
from .harness.models import parameters
from .harness.waiting import LIMIT_S, wait_until

ADD = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.n = int(config["parameters"].get("n", {"string_value": "1"})["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            read = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", read + self.n)]))
        return responses
"""
# Is of another sequence than its request.
MARK = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())],
                parameters={"sequence_id": "other", "sequence_end": True, "more": 1},
            )
            for request in requests
        ]
"""
TELL = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
                    json.loads(request.parameters() or "{}"), sorted(request.requested_output_names())]
            text = np.frombuffer(json.dumps(seen).encode(), np.uint8).astype(np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]))
        return responses
"""
SUM = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            read = [tensor.as_numpy() for tensor in request.inputs()]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", sum(read))]))
        return responses
"""
SUM_CONFIG = """
backend: "python"
input [ { name: "A" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "B" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
# Adds a power of ten, by its version.
ADD_VERSION = """
class TritonPythonModel:
    def initialize(self, args):
        self.n = 10 ** int(args["model_version"])

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + self.n)])
                for request in requests]
"""
FAIL_ON_MINUS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request.inputs()[0].as_numpy()) for request in requests]

    def one(self, array):
        if array.min() < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
"""
FAIL = """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("bad value", pb_utils.TritonError.UNSUPPORTED)
        return [pb_utils.InferenceResponse([], error) for _ in requests]
"""
# Makes a mark, and waits for the gate.
HELD = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        open(self.folder + "/begun", "w").close()
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
# As many responses as the value of IN, counted from 0.
COUNT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for n in range(int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([n]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
# Answers with LARGE or SMALL, whichever the number is.
ROUTE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            read = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            name = "LARGE" if read[0] > 10 else "SMALL"
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, read)]))
        return responses
"""
ROUTE_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "LARGE" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "SMALL" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
# Answers with the number of its requests that were under way at the same time as this one.
CROWD = """
class TritonPythonModel:
    def initialize(self, args):
        self.lock = threading.Lock()
        self.now = 0

    def execute(self, requests):
        with self.lock:
            self.now += len(requests)
            seen = self.now
        time.sleep(0.01)
        with self.lock:
            seen = max(seen, self.now)
            self.now -= len(requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([seen]))]) for _ in requests]
"""
THREADS = """
instance_group { count: 4 }
parameters { key: "INSTANCE_MODE" value { string_value: "thread" } }
"""
LOOP = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(model_name="looped", requested_output_names=["OUT"],
                                             inputs=request.inputs())
            responses.append(call.exec())
        return responses
"""
STREAM_CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(model_name="counting", requested_output_names=["OUT"],
                                             inputs=request.inputs())
            read = [response.output_tensors()[0].as_numpy()[0] for response in call.exec(decoupled=True)
                    if response.output_tensors()]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(read))]))
        return responses
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            read = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            call = pb_utils.InferenceRequest(model_name="pipeline", requested_output_names=["OUT"],
                                             inputs=[pb_utils.Tensor("IN", read)])
            answer = call.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse([], answer.error()))
            else:
                out = pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of some models, and of ensembles of them."""
    repository = tmp_path_factory.mktemp("ensembles")
    for name in ("first", "second", "third"):
        write_model(repository, name, ADD)
    write_model(repository, "sum", SUM, SUM_CONFIG)
    write_model(repository, "mark", MARK)
    write_model(repository, "tell", TELL)
    write_model(repository, "fail", FAIL)
    write_model(repository, "count", COUNT, more=DECOUPLED)
    write_model(repository, "caller", CALLER)
    write_model(repository, "route", ROUTE, ROUTE_CONFIG)
    write_model(repository, "crowd", CROWD, more=THREADS)
    write_model(repository, "loop", LOOP)
    write_model(repository, "stream_caller", STREAM_CALLER)
    branches = (
        step("route", {"IN": "IN"}, {"LARGE": "large", "SMALL": "small"}),
        step("first", {"IN": "large"}, {"OUT": "BIG"}),
        step("second", {"IN": "small"}, {"OUT": "x"}),
        step("third", {"IN": "x"}, {"OUT": "LITTLE"}),
    )
    ensembles = {
        "branches": ensemble(*branches, outputs=("BIG", "LITTLE"), more=parameters(OPTIONAL_OUTPUTS="BIG, LITTLE")),
        "strict_branches": ensemble(*branches, outputs=("BIG", "LITTLE")),
        "crowded": chain("count", "crowd"),
        "lonely": chain("count", "crowd", scheduling="max_inflight_requests: 1"),
        "looped": chain("loop"),
        "pipeline": chain("first", "second", "third"),
        "nested": chain("pipeline", "first"),
        "telling": chain("tell"),
        "marking": chain("mark", "first", "tell"),
        "failing": chain("first", "fail", "second"),
        "outer_failing": chain("failing"),
        "counting": chain("count", "first", "second"),
        "twice": chain("first", outputs=("OUT", "OUT")),
        "diamond": ensemble(
            step("first", {"IN": "IN"}, {"OUT": "one"}),
            step("second", {"IN": "IN"}, {"OUT": "two"}),
            step("sum", {"A": "one", "B": "two"}, {"OUT": "OUT"}),
            step("fail", {"IN": "IN"}, {"OUT": "OTHER"}),
            outputs=("OUT", "OTHER"),
        ),
    }
    for name, config in ensembles.items():
        write_model(repository, name, None, config)
    with serving(repository) as server:
        yield server


def numbers(*values):
    return {"IN": np.array(values)}


def infer(server, model, *values, **options):
    return server.infer(model, numbers(*values), **options).as_numpy("OUT").tolist()


def infer_document(server, model, *values):
    """The response in JSON."""
    inputs = [{"name": "IN", "datatype": "INT64", "shape": [len(values)], "data": values}]
    return server.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": inputs})).body


def test_pipeline(server):
    """The output of a step is the input of the next one."""
    assert infer(server, "pipeline", 1, 2) == [4, 5]


def test_an_output_that_is_listed_twice_is_answered_once_with_a_warning_in_the_log(server):
    answer = json.loads(infer_document(server, "twice", 1))
    assert [each["name"] for each in answer["outputs"]] == ["OUT"]
    with closing(server.grpc()) as client:
        assert client.infer("twice", [tensor(1)]).as_numpy("OUT").tolist() == [2]
    assert "model 'twice' lists the output 'OUT' 2 times, of which the first counts" in server.log


def test_ensemble_in_an_ensemble(server):
    assert infer(server, "nested", 1) == [5]


def test_called_by_a_model(server):
    """A Python model calls an ensemble as it calls a model; tensors of any size."""
    assert infer(server, "caller", 1) == [4]
    assert infer(server, "caller", *range(1 << 17)) == [n + 3 for n in range(1 << 17)]


def test_what_a_step_is_told(server):
    """The step gets id, sequence, timeout and parameters of the request, and is asked for what is mapped."""
    result = server.infer(
        "telling",
        numbers(1),
        request_id="me",
        sequence_id=7,
        sequence_start=True,
        timeout=5_000_000,
        parameters={"a": 1},
    )
    told = json.loads(bytes(result.as_numpy("OUT").astype(np.uint8)))
    assert told == ["me", 7, 1, 5_000_000, {"a": 1}, ["OUT"]]
    assert result.get_response()["parameters"] == {"sequence_id": 7, "sequence_start": True, "sequence_end": False}


def test_sequence_of_a_step(server):
    """What a step's response says of the sequence holds for all steps behind it, and for the response."""
    result = server.infer("marking", numbers(1), sequence_id=7, sequence_start=True)
    told = json.loads(bytes(result.as_numpy("OUT").astype(np.uint8)))
    assert told[1:3] == ["other", 2]
    expected = {"sequence_id": "other", "sequence_start": False, "sequence_end": True}
    assert result.get_response()["parameters"] == expected


def test_parameter_that_is_no_number(server):
    """A double that is not finite reaches the steps as any model has it, over HTTP and gRPC."""
    one = {"name": "IN", "datatype": "INT64", "shape": [1], "data": [1]}
    body = json.dumps({"inputs": [one], "parameters": {"a": float("nan")}})
    response = server.request("POST", "/v2/models/telling/infer", body)
    told = [bytes(json.loads(response.body)["outputs"][0]["data"])]
    with closing(server.grpc()) as client:
        result = client.infer("telling", [tensor(1)], parameters={"a": float("inf")})
    told.append(bytes(result.as_numpy("OUT").astype(np.uint8)))
    assert [json.loads(each)[4] for each in told] == [{"a": None}] * 2


def test_large_sequence_id_over_grpc(server):
    """The protocol has signed numbers, so that an id of more than 63 bits is negative there, both ways."""
    with closing(server.grpc()) as client:
        result = client.infer("telling", [tensor(1)], sequence_id=-1)
    assert json.loads(bytes(result.as_numpy("OUT").astype(np.uint8)))[1] == 2**64 - 1
    assert result.get_response().parameters["sequence_id"].int64_param == -1


def test_only_the_steps_of_requested_outputs_run(server):
    """A step whose outputs nobody asks for does not run."""
    assert infer(server, "diamond", 1, outputs=["OUT"]) == [4]
    assert server.refusal("diamond", numbers(1))[0] == 501


def test_error_of_a_step(server):
    """It keeps its code and its text, behind the names of the ensembles; the step is named."""
    assert server.refusal("failing", numbers(1)) == (501, "in ensemble 'failing', bad value (step 1, model 'fail')")
    message = "in ensemble 'outer_failing', in ensemble 'failing', bad value (step 1, model 'fail')"
    assert server.refusal("outer_failing", numbers(1)) == (501, message)


def test_decoupled(server):
    """Each response of a decoupled step goes through the steps behind it, in order."""
    assert [event["OUT"] for event in server.stream("counting", IN=[4])] == [2, 3, 4, 5]
    assert server.stream("counting", IN=[0]) == []


def test_metadata(server):
    """An ensemble is shown as in Triton."""
    with closing(server.client()) as client:
        assert client.get_model_metadata("pipeline")["platform"] == "ensemble"
        config = client.get_model_config("counting")
    assert (config["platform"], config["backend"], config["instance_group"]) == ("ensemble", "", [])
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["ensemble_scheduling"]["step"][0] == {
        "model_name": "count",
        "model_version": -1,
        "input_map": {"IN": "IN"},
        "output_map": {"OUT": "t1"},
        "model_namespace": "",
    }


def test_statistics(server):
    """An ensemble counts its requests, with the sums of its steps' times."""
    with closing(server.client()) as client:
        (before,) = client.get_inference_statistics("pipeline")["model_stats"]
        infer(server, "pipeline", 1)
        (after,) = client.get_inference_statistics("pipeline")["model_stats"]
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["execution_count"] == before["execution_count"] + 1
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]


def test_decoupled_ensemble_called_by_a_model(server):
    """A Python model reads the stream of an ensemble."""
    assert infer(server, "stream_caller", 3) == [2, 3, 4]


def test_skipped_steps(server):
    """Steps of a branch that is not taken are skipped, with those behind them, if the outputs may be absent."""
    small, large = server.infer("branches", numbers(1)), server.infer("branches", numbers(11))
    assert (small.as_numpy("LITTLE").tolist(), small.as_numpy("BIG")) == ([3], None)
    assert (large.as_numpy("BIG").tolist(), large.as_numpy("LITTLE")) == ([12], None)


def test_absent_inputs_without_optional_outputs(server):
    """Otherwise the model of such a step refuses the request, as in Triton."""
    status, message = server.refusal("strict_branches", numbers(1))
    assert status == 400
    assert message.startswith("in ensemble 'strict_branches', [request id: <id_unknown>] expected 1 inputs but got 0")


def test_max_inflight_requests(server):
    """A step is under way as often as the configuration allows, for all responses of the step before."""
    assert [event["OUT"] for event in server.stream("lonely", IN=[20])] == [1] * 20
    assert max(event["OUT"] for event in server.stream("crowded", IN=[20])) > 1
    assert "Ensemble model 'lonely' configured with max_inflight_requests: 1" in server.log


def test_circle_of_calls(server):
    """An ensemble that a step's model calls again, and that could never be served, is refused."""
    status, message = server.refusal("loop", numbers(1))
    assert status == 503
    assert "would wait for ever" in message
    assert "looped -> loop -> looped" in message


def test_step_times(server):
    """A client that asks for it gets the time of each step, in order of their ends."""
    result = server.infer("pipeline", numbers(1), parameters={"pyruntime_step_times": True})
    times = json.loads(result.get_response()["parameters"]["pyruntime_step_times"])
    assert [(each["step"], each["model"], each["version"]) for each in times] == [
        (0, "first", 1),
        (1, "second", 1),
        (2, "third", 1),
    ]
    moments = [each[name] for each in times for name in ("start_us", "execute_us", "end_us")]
    assert moments == sorted(moments)


def test_over_grpc(server):
    """An ensemble over gRPC, with its parameters; a stream of a decoupled one ends with the final response."""
    with closing(server.grpc()) as client:
        result = client.infer("pipeline", [tensor(1)])
        assert result.as_numpy("OUT").tolist() == [4]
        assert dict(result.get_response().parameters).keys() == {"sequence_id", "sequence_start", "sequence_end"}
        answers = SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("counting", [tensor(2)], enable_empty_final_response=True)
        values, is_final = [], False
        while not is_final:
            result, error = answers.get(timeout=LIMIT_S)
            assert error is None
            is_final = result.get_response().parameters["triton_final_response"].bool_param
            values += [] if result.as_numpy("OUT") is None else result.as_numpy("OUT").tolist()
        client.stop_stream()
    assert values == [2, 3]


def tensor(*values):
    array = np.array(values)
    made = tritonclient.grpc.InferInput("IN", list(array.shape), "INT64")
    made.set_data_from_numpy(array)
    return made


def test_readiness_follows_the_steps(serving, tmp_path, write_model):
    """An ensemble is ready while the models of its steps are; it goes and comes back with them."""
    write_model(tmp_path, "m", ADD)
    write_model(tmp_path, "e", None, chain("m", "m"))
    with (
        serving(tmp_path, "--model-control-mode=explicit", "--load-model=e") as server,
        closing(server.client()) as client,
    ):
        assert client.is_model_ready("e")
        assert client.is_model_ready("m")
        client.unload_model("m")
        assert not client.is_model_ready("e")
        client.load_model("m")
        wait_until(lambda: client.is_model_ready("e"))
        assert infer(server, "e", 1) == [3]
        client.unload_model("e", unload_dependents=True)
        assert client.is_model_ready("m")  # it was loaded by name
        write_model(tmp_path, "f", None, chain("nobody"))
        with pytest.raises(
            InferenceServerException, match="load failed for model 'f': ensemble f contains models that"
        ):
            client.load_model("f")


def test_traces(serving, tmp_path, write_model):
    """The steps have traces of their own below that of the ensemble, which has no times of execution."""
    file = tmp_path / ".trace.json"
    write_model(tmp_path, "m", ADD)
    write_model(tmp_path, "e", None, chain("m", "m"))
    options = (f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    with serving(tmp_path, *options) as server:
        infer(server, "e", 1)
    records = json.loads(file.read_text())
    models = {record["id"]: record for record in records if "model_name" in record}
    (top,) = [id for id, record in models.items() if record["model_name"] == "e"]
    steps = [record for record in models.values() if record["model_name"] == "m"]
    assert [record["parent_id"] for record in steps] == [top, top]
    activities = {
        id: {stamp["name"] for record in records if record["id"] == id for stamp in record.get("timestamps", ())}
        for id in models
    }
    assert not any(name.startswith("COMPUTE") for name in activities[top])
    assert all({"COMPUTE_START", "COMPUTE_END"} <= activities[record["id"]] for record in steps)


def test_timing_on_the_command_line(server):
    """`pyruntime infer --timing` has a row for each step, with its time, and refuses models without steps."""
    command = (sys.executable, "-m", "pyruntime", "infer", "--url", f"http://127.0.0.1:{server.port}", "-i", "IN=[1]")
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([*command, "pipeline", "--timing"], capture_output=True, text=True, check=True, env=wide)
    for name in ("first", "second", "third"):
        assert re.search(rf"\b{name}\b.*\d\.\d\d\d.*#", done.stdout)
    done = subprocess.run([*command, "pipeline", "--timing", "--json"], capture_output=True, text=True, check=True)
    assert [each["model"] for each in json.loads(done.stdout)["step_times"]] == ["first", "second", "third"]
    done = subprocess.run([*command, "first", "--timing"], capture_output=True, text=True, check=False)
    assert (done.returncode, "--timing is for ensembles" in done.stderr) == (2, True)


def test_versions_of_a_step(model, deploy):
    """A step has the version that it names, also where another step has another version of the same model."""
    folder = model("add", ADD_VERSION, more="version_policy { all {} }\n")
    for version in (2, 3):
        (folder / str(version)).mkdir()
        (folder / str(version) / "model.py").write_text((folder / "1" / "model.py").read_text())
    steps = [
        step("add", {"IN": "IN"}, {"OUT": "t1"}, version=3),
        step("add", {"IN": "t1"}, {"OUT": "t2"}, version=1),
        step("add", {"IN": "t2"}, {"OUT": "OUT"}),
    ]
    model("both", None, ensemble(*steps))
    server = deploy()
    assert server.infer("both", numbers(1)).as_numpy("OUT").tolist() == [1 + 1000 + 10 + 1000]
    found = json.loads(server.request("GET", "/v2/models/add/stats").body)["model_stats"]
    assert {each["version"]: each["inference_count"] for each in found} == {"1": 1, "2": 0, "3": 2}


@pytest.mark.parametrize("limit_s", [1, LIMIT_S], ids=["given up", "answered"])
def test_step_is_unloaded_while_its_output_is_held(model, serve, wait_until, limit_s):
    """A request that a later step executes has until the exit timeout, and leaves no memory in either case."""
    model("one", ADD)
    folder = model("held", HELD)
    model("pair", None, chain("one", "held"))
    names = [f"--load-model={name}" for name in ("one", "held", "pair")]
    server = serve("--model-control-mode=explicit", f"--exit-timeout-secs={limit_s}", *names)
    array = np.arange(1 << 20)
    (folder / "gate").touch()
    server.infer("pair", {"IN": array})
    before = server.shared_bytes()
    for number in range(4):
        for mark in ("gate", "begun"):
            (folder / mark).unlink()
        with ThreadPoolExecutor(1) as clients:
            pending = clients.submit(server.infer, "pair", {"IN": array + number})
            wait_until((folder / "begun").exists)
            assert server.request("POST", "/v2/repository/models/one/unload", "{}").status == 200
            wait_until(lambda: server.request("GET", "/v2/models/pair/ready").status != 200)
            if limit_s == 1:
                with pytest.raises(InferenceServerException, match="Model 'pair' was unloaded"):
                    pending.result()
            (folder / "gate").touch()
            if limit_s != 1:
                np.testing.assert_array_equal(pending.result().as_numpy("OUT"), array + number + 1)
        wait_until(lambda: not server.stubs("one_0"))
        assert server.request("POST", "/v2/repository/models/one/load", "{}").status == 200
        wait_until(lambda: server.request("GET", "/v2/models/pair/ready").status == 200)
        server.infer("pair", {"IN": array})
    wait_until(lambda: server.shared_bytes() <= before + 2 * array.nbytes)


def test_timeout_in_the_queue_of_a_step(model, deploy, wait_until):
    """A request whose time is over in the queue of a step ends with Triton's words there; others wait on."""
    policy = "default_timeout_microseconds: 600000000 allow_timeout_override: true"
    batching = f"max_batch_size: 1 dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
    model("one", ADD, more="max_batch_size: 1")
    folder = model("held", HELD, more=batching)
    model("pair", None, chain("one", "held", more="max_batch_size: 1"))
    model("wrapped", None, chain("pair", more="max_batch_size: 1"))
    server = deploy()
    message = "in ensemble 'pair', Request timeout expired (step 1, model 'held')"
    row = np.array([[5]])
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(server.infer, "held", {"IN": row})]
        wait_until((folder / "begun").exists)
        answers.append(clients.submit(server.infer, "pair", {"IN": row}, timeout=600_000_000))
        assert server.refusal("pair", {"IN": row}, timeout=1000) == (503, message)
        assert server.refusal("wrapped", {"IN": row}, timeout=1000) == (503, f"in ensemble 'wrapped', {message}")
        with closing(server.grpc()) as client, pytest.raises(InferenceServerException) as caught:
            client.infer("pair", [tensor([5])], timeout=1000)
        assert (caught.value.status(), caught.value.message()) == ("StatusCode.UNAVAILABLE", message)
        (folder / "gate").touch()
        assert [each.result().as_numpy("OUT").tolist() for each in answers] == [[[5]], [[6]]]
    counts = {}
    for name in ("one", "held", "pair", "wrapped"):
        (found,) = json.loads(server.request("GET", f"/v2/models/{name}/stats").body)["model_stats"]
        counts[name] = [found["inference_stats"][kind]["count"] for kind in ("success", "fail")]
    assert counts == {"one": [4, 0], "held": [2, 3], "pair": [1, 3], "wrapped": [0, 1]}


def test_counts(model, serve):
    """An ensemble and its steps count each request once, and the times of an ensemble are those of its steps."""
    model("one", ADD)
    model("two", FAIL_ON_MINUS)
    model("both", None, chain("one", "two"))
    server = serve()
    for value in (1, 2, 3):
        assert server.infer("both", numbers(value)).as_numpy("OUT").tolist() == [value + 1]
    assert server.refusal("both", numbers(-5)) == (
        500,
        "in ensemble 'both', negative (step 1, model 'two')",
    )
    stats = {}
    for name in ("one", "two", "both"):
        (stats[name],) = json.loads(server.request("GET", f"/v2/models/{name}/stats").body)["model_stats"]
    counts = {name: (each["inference_count"], each["execution_count"]) for name, each in stats.items()}
    assert counts == {"one": (4, 4), "two": (3, 4), "both": (3, 3)}
    ended = {
        name: [each["inference_stats"][kind]["count"] for kind in ("success", "fail")] for name, each in stats.items()
    }
    assert ended == {"one": [4, 0], "two": [3, 1], "both": [3, 1]}
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()

    def metric(family, name):
        """The sum of a family for a model, over all reasons."""
        return sum(
            float(value) for value in re.findall(rf'^{family}{{[^}}]*model="{name}",[^}}]*}} (\S+)$', page, re.M)
        )

    for name in ("one", "two", "both"):
        success, failures = ended[name]
        assert metric("nv_inference_request_success", name) == success
        assert metric("nv_inference_request_failure", name) == failures
        assert metric("nv_inference_count", name) == counts[name][0]
        assert metric("nv_inference_exec_count", name) == counts[name][1]
