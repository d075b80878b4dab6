# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles, by the models of their steps."""

import json
from contextlib import closing

import numpy as np
import pytest

from .harness.ensembles import chain, ensemble, step

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
FAIL = """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("bad value", pb_utils.TritonError.UNSUPPORTED)
        return [pb_utils.InferenceResponse([], error) for _ in requests]
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
    write_model(repository, "tell", TELL)
    write_model(repository, "fail", FAIL)
    write_model(repository, "count", COUNT, more=DECOUPLED)
    write_model(repository, "caller", CALLER)
    ensembles = {
        "pipeline": chain("first", "second", "third"),
        "nested": chain("pipeline", "first"),
        "telling": chain("tell"),
        "failing": chain("first", "fail", "second"),
        "outer_failing": chain("failing"),
        "counting": chain("count", "first", "second"),
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


def test_pipeline(server):
    """The output of a step is the input of the next one."""
    assert infer(server, "pipeline", 1, 2) == [4, 5]


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
