# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""EXECUTION_TIMEOUT_MS: executions that do not end, what their clients and callers hear, and what others notice.

A model that hangs does so for ever, and one that works needs next to no time, so that no test depends on a speed.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from .harness.models import IN_OUT, parameters

# Far more than an execution that works needs on a busy machine.
LIMIT_MS = 3000
LIMIT = parameters(EXECUTION_TIMEOUT_MS=LIMIT_MS)
# The ID of a request selects what is done with it.
MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        with open(args["model_repository"] + "/lives", "a") as file:
            file.write("x")

    def execute(self, requests):
        if any(request.request_id() == "hang" for request in requests):
            signal.pause()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * request.inputs()[0].as_numpy())])
                for request in requests]
"""
# Answers with the first number; the second one, if there is one, is never sent.
STREAM = """
class TritonPythonModel:
    def initialize(self, args):
        self.senders = []

    def execute(self, requests):
        for request in requests:
            sender, array = request.get_response_sender(), request.inputs()[0].as_numpy()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array[:1])]))
            if len(array) == 1:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                self.senders.append(sender)
"""
# Answers with as many strings of 4 MiB as the request says: more than the window of a stream.
LARGE = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(request.inputs()[0].as_numpy()[0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"x" * (4 << 20)]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STRINGS = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
# Calls "limited", and answers with the code of its error, or 0.
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs, id = request.inputs(), request.request_id()
            call = pb_utils.InferenceRequest(
                model_name="limited", requested_output_names=["OUT"], inputs=inputs, request_id=id
            )
            response = call.exec()
            if "pass" in request.parameters():
                responses.append(response)
                continue
            assert response.error().code() is pb_utils.TritonError.DEADLINE_EXCEEDED
            code = np.array([int(response.error().code())])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", code)]))
        return responses
"""
# Adds up the numbers of a sequence.
SEQUENCE = """
class TritonPythonModel:
    def initialize(self, args):
        self.sum = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            if request.request_id() == "hang":
                signal.pause()
            self.sum += int(request.inputs()[0].as_numpy().reshape(-1)[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.sum]))]))
        return responses
"""
ENSEMBLE = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "limited" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} ] }
"""
INPUT = {"IN": np.array([21])}
OVERDUE = f"the execution by model 'limited' took longer than {LIMIT_MS} ms, its EXECUTION_TIMEOUT_MS"


def works(server, name="limited"):
    """Whether an ordinary request is answered as it should be."""
    return server.infer(name, INPUT, request_id="work").as_numpy("OUT").tolist() == [42]


def tensor():
    return tritonclient.grpc.InferInput("IN", [1], "INT64").set_data_from_numpy(INPUT["IN"])


def test_a_client_is_answered_504_and_the_next_one_by_a_new_process(model, deploy):
    """Requests behind the one that hangs are executed; the log has one line, and the instance has not crashed."""
    folder = model("limited", MODEL, more=LIMIT)
    server = deploy()
    with ThreadPoolExecutor() as clients:
        hanging = clients.submit(server.refusal, "limited", INPUT, request_id="hang")
        assert hanging.result() == (504, OVERDUE)
        assert all(each.result() for each in [clients.submit(works, server) for _ in range(3)])
    assert (folder / "lives").read_text() == "xx"
    line = f"an execution of model 'limited' took longer than {LIMIT_MS} ms, its EXECUTION_TIMEOUT_MS"
    assert (
        server.log.count("took longer than") == server.log.count(f"limited_0: {line}; the instance is restarted") == 1
    )
    assert "limited_0: restarts in 0 s" in server.log
    assert "killed by" not in server.log


def test_grpc_says_deadline_exceeded(model, deploy):
    model("limited", MODEL, more=LIMIT)
    server = deploy()
    with closing(server.grpc()) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("limited", [tensor()], request_id="hang")
        assert caught.value.status() == str(grpc.StatusCode.DEADLINE_EXCEEDED)
        assert caught.value.message() == OVERDUE
        assert client.infer("limited", [tensor()], request_id="work").as_numpy("OUT").tolist() == [42]


def test_a_batch_has_one_limit_and_other_instances_go_on(model, deploy):
    """All requests of the batch are answered; the other instance executes what comes meanwhile."""
    batching = (
        "max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 60000000 } instance_group { count: 2 }"
    )
    model("limited", MODEL, more=batching + LIMIT)
    server = deploy()
    rows = {"IN": np.array([[21]])}
    with ThreadPoolExecutor() as clients:
        hanging = [clients.submit(server.refusal, "limited", rows, request_id="hang") for _ in range(2)]
        assert [each.result() for each in hanging] == [(504, OVERDUE)] * 2
        working = [clients.submit(server.infer, "limited", rows, request_id="work") for _ in range(2)]
        assert [each.result().as_numpy("OUT").tolist() for each in working] == [[[42]]] * 2


def test_a_stream_ends_with_the_error_and_others_of_the_model_are_started_again(model, deploy):
    """An execution lasts until its last response, whoever sends that."""
    model("limited", STREAM, more="model_transaction_policy { decoupled: true }" + LIMIT)
    server = deploy()
    events = server.stream("limited", IN=[7, 8])
    assert events[0]["OUT"] == 7
    assert events[1] == {"error": OVERDUE}
    assert [event["OUT"] for event in server.stream("limited", IN=[9])] == [9]


def test_a_step_of_an_ensemble(model, deploy):
    model("limited", MODEL, more=LIMIT)
    model("whole", None, ENSEMBLE)
    server = deploy()
    status, message = server.refusal("whole", INPUT, request_id="hang")
    assert (status, OVERDUE in message) == (504, True)
    assert works(server, "whole")


def test_a_caller_learns_the_code(model, deploy):
    """It may go on, or pass the error on to its client."""
    model("limited", MODEL, more=LIMIT)
    model("m_caller", CALLER)
    server = deploy()
    with ThreadPoolExecutor() as clients:
        told = clients.submit(server.infer, "m_caller", INPUT, request_id="hang")
        assert told.result().as_numpy("OUT").tolist() == [8]
        passed_on = clients.submit(server.refusal, "m_caller", INPUT, request_id="hang", parameters={"pass": 1})
        status, message = passed_on.result()
        assert (status, OVERDUE in message) == (504, True)


def test_a_sequence_ends_with_its_instance_as_after_a_crash(model, deploy):
    model("limited", SEQUENCE, more="sequence_batching { max_sequence_idle_microseconds: 60000000 }" + LIMIT)
    server = deploy()
    one = {"IN": np.array([1])}
    assert server.infer("limited", one, sequence_id=5, sequence_start=True).as_numpy("OUT").tolist() == [1]
    assert server.refusal("limited", one, sequence_id=5, request_id="hang") == (504, OVERDUE)
    status, message = server.refusal("limited", one, sequence_id=5)
    # The server may learn of the end of the process before or after this request.
    if status == 503:
        assert "is lost with the instance that had it" in message
    else:
        assert (status, "must specify the START flag" in message) == (400, True), message
    assert server.infer("limited", one, sequence_id=5, sequence_start=True).as_numpy("OUT").tolist() == [1]


def test_a_client_that_does_not_read_is_no_reason_to_end_the_model(model, deploy):
    """The model waits for it, and is not to blame."""
    model("limited", LARGE, STRINGS, LIMIT)
    model("other", MODEL, more=parameters(EXECUTION_TIMEOUT_MS=2 * LIMIT_MS))
    server = deploy()
    with server.streaming("limited", IN=[30]) as events:
        next(events)
        # Meanwhile twice the time passes.
        assert server.refusal("other", INPUT, request_id="hang")[0] == 504
        assert sum(1 for event in events if len(event["OUT"]) == 4 << 20) == 29
    assert "model 'limited' took longer" not in server.log


def reason_of(server, name):
    """Why the model is not loaded."""
    answer = server.request("POST", f"/v2/repository/models/{name}/load", "{}")
    assert answer.status != 200
    return json.loads(answer.body)["error"]


def test_models_that_cannot_have_a_limit_are_refused(serve, model):
    model("zero", MODEL, more=parameters(EXECUTION_TIMEOUT_MS=0))
    model("threads", MODEL, more=parameters(EXECUTION_TIMEOUT_MS=5, INSTANCE_MODE="thread"))
    model("whole", None, ENSEMBLE.replace("limited", "zero"), parameters(EXECUTION_TIMEOUT_MS=5))
    server = serve("--model-control-mode=explicit")
    assert "must be a number of milliseconds from 1 on, in at most 12 digits, and is '0'" in reason_of(server, "zero")
    assert "give it the parameter INSTANCE_MODE 'process', or no limit" in reason_of(server, "threads")
    assert "give it to the models of its steps" in reason_of(server, "whole")


def test_a_caller_in_cpp_learns_that_the_model_is_unavailable(serve, model, install_backends):
    """Triton has no code for it that a C++ backend could know."""
    tensors = """
    input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    """
    model("limited", MODEL.replace("any(", "not any("), 'backend: "python"' + tensors, LIMIT)
    model("m_caller", None, 'backend: "calls"' + tensors, parameters(MODEL="limited"))
    server = serve(f"--backend-directory={install_backends('calls')}")
    status, message = server.refusal("m_caller", {"INPUT": np.array([1], np.int32)})
    assert (status, OVERDUE in message) == (503, True)


def test_a_backend_in_cpp_needs_a_process_of_its_own(serve, model, install_backends):
    """In the server it is refused; in a process of its own its executions end like those of others."""
    tensors = IN_OUT.replace('backend: "python"', "")
    model("shared", None, 'backend: "hang"' + tensors, LIMIT)
    model("execute", None, 'backend: "hang"' + tensors, LIMIT + parameters(EXECUTION_MODE="process"))
    server = serve(f"--backend-directory={install_backends('hang')}", "--model-control-mode=explicit")
    assert "give it the parameter EXECUTION_MODE 'process' too" in reason_of(server, "shared")
    assert server.request("POST", "/v2/repository/models/execute/load", "{}").status == 200
    for _ in range(2):
        assert server.refusal("execute", INPUT) == (504, OVERDUE.replace("limited", "execute"))
