# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances execute the samples of model_warmup before they are ready: at first, after a restart, in every kind."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from .harness.ensembles import chain

# Notes each execution in a file, a line for each: the rows of IN of each request.
NOTES = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        self.notes = args["model_repository"] + "/notes"

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().tolist() for request in requests]
        with open(self.notes, "a") as notes:
            print(json.dumps([self.name, arrays]), file=notes)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(array))]) for array in arrays]
"""


def warmup(data="zero_data: true", name="s", more="batch_size: 1", dims="dims: [ 2 ]"):
    inputs = f'inputs {{ key: "IN" value {{ data_type: TYPE_INT64 {dims} {data} }} }}'
    return f'model_warmup {{ name: "{name}" {more} {inputs} }}\n'


def noted(folder, name="notes"):
    """The executions so far: the instance, and what it got."""
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stats(server, model):
    (found,) = json.loads(server.request("GET", f"/v2/models/{model}/stats").body)["model_stats"]
    return found


def reason(server, model):
    """Why a model is not loaded."""
    index = json.loads(server.request("POST", "/v2/repository/index").body)
    (row,) = [row for row in index if row["name"] == model]
    return row["reason"]


def test_samples(model, serve):
    """A sample of n requests is one execution of n requests of one row, repeated; the statistics count them."""
    more = warmup(more="batch_size: 2 count: 2") + warmup("input_data_file: 'numbers'", "t")
    folder = model("m", NOTES, more="max_batch_size: 1\n" + more)
    (folder / "warmup").mkdir()
    (folder / "warmup/numbers").write_bytes(np.array([7, 8, 9], np.int64).tobytes())
    server = serve()
    zeros = [[0, 0]]
    assert noted(folder) == [["m_0", [zeros, zeros]]] * 2 + [["m_0", [[[7, 8]]]]]
    found = stats(server, "m")
    assert (found["inference_count"], found["execution_count"]) == (5, 3)
    assert found["inference_stats"]["success"]["count"] == 5


def test_an_unload_ends_a_warm_up_under_way(model, serve, wait_until):
    slow = NOTES.replace("        arrays = [", "        time.sleep(0.01)\n        arrays = [")
    folder = model("m", slow, more="max_batch_size: 1\n" + warmup(more="batch_size: 1 count: 100000"))
    server = serve("--model-control-mode=explicit")
    with ThreadPoolExecutor(1) as clients:
        load = clients.submit(server.request, "POST", "/v2/repository/models/m/load", "{}")
        wait_until(lambda: noted(folder))
        assert server.request("POST", "/v2/repository/models/m/unload", "{}").status == 200
        answer = load.result()
    error = {"error": "failed to load 'm': it was unloaded while it was loading"}
    assert (answer.status, json.loads(answer.body)) == (503, error)
    wait_until(lambda: server.stubs() == [])


def test_every_instance(model, serve, wait_until):
    """Each instance warms up before it is ready: also one that is started again."""
    folder = model("m", NOTES, more="instance_group { count: 2 }\n" + warmup("random_data: true"))
    server = serve()
    assert sorted(name for name, _ in noted(folder)) == ["m_0_0", "m_0_1"]
    os.kill(server.stub("m_0_0").pid, signal.SIGKILL)
    wait_until(lambda: len(noted(folder)) == 3)
    assert noted(folder)[2][0] == "m_0_0"
    assert server.infer("m", {"IN": np.array([1])}).as_numpy("OUT").tolist() == [1]


def test_added_instance(model, serve):
    """An instance that is added while the others serve warms up before it gets requests; the others do not again."""
    # A name with a dot is no change of the model.
    folder = model("m", NOTES.replace("/notes", "/.notes"), more="instance_group { count: 1 }\n" + warmup())
    server = serve("--model-control-mode=explicit", "--load-model=*")
    assert [name for name, _ in noted(folder, ".notes")] == ["m_0_0"]
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1 }", "count: 2 }", 1))
    assert server.request("POST", "/v2/repository/models/m/load", {}).status == 200
    assert noted(folder, ".notes") == [["m_0_0", [[0, 0]]], ["m_0_1", [[0, 0]]]]


# Notes all inputs, and returns the next state.
SEQUENTIAL = """
class TritonPythonModel:
    def initialize(self, args):
        self.notes = args["model_repository"] + "/notes"

    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            with open(self.notes, "a") as notes:
                print(json.dumps({name: array.tolist() for name, array in sorted(tensors.items())}), file=notes)
            out = pb_utils.Tensor("OUT", tensors["IN"])
            responses.append(pb_utils.InferenceResponse([out, pb_utils.Tensor("NEXT", tensors["STATE"] + 1)]))
        return responses
"""


def test_sequences(model, serve):
    """A sample of a model with sequences has its control inputs and states, and leaves nothing behind."""
    start = "control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }"
    state = "state { input_name: 'STATE' output_name: 'NEXT' data_type: TYPE_INT64 dims: [ 1 ] }"
    tensors = "inputs { key: 'IN' value { data_type: TYPE_INT64 dims: [ 2 ] zero_data: true } }"
    for name in ("START", "STATE"):
        kind = "TYPE_INT32" if name == "START" else "TYPE_INT64"
        tensors += f" inputs {{ key: '{name}' value {{ data_type: {kind} dims: [ 1, 1 ] zero_data: true }} }}"
    sample = f"model_warmup {{ name: 's' batch_size: 1 count: 2 {tensors} }}"
    folder = model("m", SEQUENTIAL, more=f"max_batch_size: 1 sequence_batching {{ {start} {state} }} {sample}")
    server = serve()
    warm = {"IN": [[0, 0]], "START": [[0]], "STATE": [[0]]}
    assert noted(folder) == [warm] * 2
    for is_start in (True, False):
        server.infer("m", {"IN": np.array([[3, 4]])}, sequence_id=1, sequence_start=is_start)
    rows = [{"IN": [[3, 4]], "START": [[int(is_start)]], "STATE": [[int(not is_start)]]} for is_start in (True, False)]
    assert noted(folder)[2:] == rows


DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))]))
            with open("sent", "w"):
                pass
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_decoupled(model, serve):
    """A decoupled model is ready when it has sent its last response."""
    policy = "model_transaction_policy { decoupled: true }\n"
    model("m", DECOUPLED.replace('"sent"', "__file__ + '.sent'"), more=policy + warmup())
    server = serve()
    assert stats(server, "m")["inference_stats"]["success"]["count"] == 1


RESCHEDULES = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None] * len(requests)
"""


def test_reschedules(model, serve):
    """A model that wants to execute a sample again has executed it once."""
    model("m", RESCHEDULES, more="sequence_batching { iterative_sequence: true }\n" + warmup())
    assert serve().request("GET", "/v2/models/m/ready").status == 200


FAILS = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no")) for request in requests]
"""
DIES = """
class TritonPythonModel:
    def execute(self, requests):
        os._exit(3)
"""


@pytest.mark.parametrize(
    ("code", "more", "message"),
    [
        (FAILS, warmup(more="batch_size: 2"), "failed to run warmup sample 's': no; no; "),
        (DIES, warmup(), "failed to run warmup sample 's': Stub process 'm_0' is not healthy."),
        (NOTES, warmup("input_data_file: 'none'"), "No such file or directory"),
        (NOTES, warmup("input_data_file: '../config.pbtxt'"), "which is outside of"),
        (
            NOTES,
            warmup("input_data_file: 'short'"),
            "warmup setting expects 16 bytes, but the data provided from shortonly has 3 bytes",
        ),
        (NOTES, warmup(dims="dims: [ 2, 2 ]"), "unexpected shape for input 'IN' for model 'm'"),
        (NOTES, warmup(dims="dims: [ -1 ]"), "warmup setting expects all variable-size dimensions are specified"),
        (NOTES, warmup().replace("data_type: TYPE_INT64", ""), "warmup setting expects input 'IN' to have a valid"),
    ],
)
def test_failures(model, serve, code, more, message):
    """A sample that fails fails the load."""
    folder = model("m", code, more=more)
    (folder / "warmup").mkdir()
    (folder / "warmup/short").write_bytes(b"abc")
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    assert message in reason(server, "m")


IDENTITY = """backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
model_warmup {
  name: "s" batch_size: 3
  inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: 4 zero_data: true } }
}
"""


@pytest.mark.parametrize("mode", ["in_process", "process"])
def test_backends(model, serve, install_backends, mode):
    """C++ backends warm up too, in the server and in processes of their own."""
    model("m", None, IDENTITY, f'parameters {{ key: "EXECUTION_MODE" value {{ string_value: "{mode}" }} }}\n')
    server = serve(f"--backend-directory={install_backends('identity')}")
    assert stats(server, "m")["inference_stats"]["success"]["count"] == 3


MEETING = NOTES.replace(
    "class TritonPythonModel", "meeting = threading.Barrier(3)\n\n\nclass TritonPythonModel"
).replace("        arrays =", "        meeting.wait()\n        arrays =")


def test_instances_of_one_process(model, serve):
    """Instances that are threads of one process warm up together."""
    mode = 'parameters { key: "INSTANCE_MODE" value { string_value: "thread" } }\n'
    folder = model("m", MEETING, more=mode + "instance_group { count: 3 }\n" + warmup(more="batch_size: 1 count: 2"))
    server = serve()
    assert noted(folder) == [["m_0_0", [[0, 0]]]] * 6
    assert stats(server, "m")["execution_count"] == 6


class TestEnsembles:
    """Triton has no warm-up of ensembles."""

    def test_samples(self, model, serve, wait_until):
        """A sample goes through all steps before the ensemble is ready, and again when one of them was loaded anew."""
        for name in ("first", "second"):
            folder = model(name, NOTES)
        model("e", None, chain("first", "second", more=warmup(more="batch_size: 2 count: 2")))
        server = serve("--model-control-mode=explicit", "--load-model=e")
        assert noted(folder) == [["second_0", [[0, 0]]]] * 4
        assert stats(server, "e")["inference_stats"]["success"]["count"] == 4
        assert stats(server, "first")["inference_stats"]["success"]["count"] == 4
        (folder / "1" / "changed").touch()
        assert server.request("POST", "/v2/repository/models/second/load").status == 200
        wait_until(lambda: noted(folder) == [["second_0", [[0, 0]]]] * 8)
        wait_until(lambda: stats(server, "e")["inference_stats"]["success"]["count"] == 4)

    def test_decoupled(self, model, serve):
        """It is ready when the last response is there."""
        policy = "model_transaction_policy { decoupled: true }\n"
        model("first", DECOUPLED.replace('"sent"', "__file__ + '.sent'"), more=policy)
        folder = model("second", NOTES)
        model("e", None, chain("first", "second", more=warmup()))
        serve()
        assert sorted(noted(folder)) == [["second_0", [[number]]] for number in range(3)]

    def test_failure(self, model, serve):
        """A step that fails, fails the load of the ensemble, with its place; the steps are served."""
        model("first", NOTES)
        model("second", FAILS)
        model("e", None, chain("first", "second", more=warmup()))
        server = serve("--exit-on-error=false", "--strict-readiness=false")
        expected = "failed to run warmup sample 's': in ensemble 'e', no (step 1, model 'second'); "
        assert expected in reason(server, "e")
        assert server.request("GET", "/v2/models/first/ready").status == 200

    def test_stub_dies(self, model, serve):
        """The load fails with the stub, and nothing waits."""
        model("first", DIES)
        model("e", None, chain("first", more=warmup()))
        server = serve("--exit-on-error=false", "--strict-readiness=false")
        assert "failed to run warmup sample 's': in ensemble 'e', Stub process 'first_0'" in reason(server, "e")
