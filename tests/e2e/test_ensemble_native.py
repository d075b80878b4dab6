# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large outputs of C++ backends in the server, which other models read where they were written."""

import re
import shutil
from contextlib import closing
from queue import SimpleQueue

import numpy as np
import pytest
import tritonclient.grpc

from .harness.ensembles import chain, ensemble, step
from .harness.waiting import LIMIT_S, wait_until

LARGE = np.arange(2 << 20, dtype=np.int64)  # 16 MiB
STRINGS = np.array([b"x" * 999] * 2000, dtype=np.object_)
ADD = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            read = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", read + 1)]))
        return responses
"""
# Keeps the output of its last call, and answers with the sum of it and of those before.
CALL = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            read = pb_utils.get_input_tensor_by_name(request, "IN")
            call = pb_utils.InferenceRequest(model_name="native", requested_output_names=["IN"], inputs=[read])
            self.kept.append(pb_utils.get_output_tensor_by_name(call.exec(), "IN"))
            total = sum(int(each.as_numpy().sum()) for each in self.kept)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([total]))]))
        return responses
"""
# Takes its time, as long as there is a file.
HOLD = """
class TritonPythonModel:
    def initialize(self, args):
        self.file = os.path.join(os.path.dirname(args["model_repository"]), ".hold")

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            while os.path.exists(self.file) and not request.is_cancelled():
                time.sleep(0.001)
            total = np.array([tensor.as_numpy().sum()])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]))
        return responses
"""
LENGTHS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            read = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            lengths = np.array([sum(len(each) for each in read)])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", lengths)]))
        return responses
"""
STRINGS_TO_INT64 = """
backend: "python"
input [ { name: "IN" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
PADS_TO_INT64 = STRINGS_TO_INT64.replace("STRING", "UINT8")
TENSORS = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
FLOW = """
backend: "flow"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 3 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "PAD" data_type: TYPE_UINT8 dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
"""
ISOLATED = 'parameters { key: "EXECUTION_MODE" value { string_value: "process" } }\n'


@pytest.fixture(scope="module")
def repository(tmp_path_factory, write_model, compile_library):
    repository = tmp_path_factory.mktemp("native")
    write_model(repository, "add", ADD)
    write_model(repository, "call", CALL)
    write_model(repository, "hold", HOLD)
    write_model(repository, "lengths", LENGTHS, STRINGS_TO_INT64)
    write_model(repository, "pads", LENGTHS.replace("sum(len(each) for each in read)", "read.size"), PADS_TO_INT64)
    for name, more in {"native": "", "cached": "response_cache { enable: true }\n", "isolated": ISOLATED}.items():
        identity(repository, name, TENSORS + more, write_model, compile_library)
    identity(repository, "strings", TENSORS.replace("INT64", "STRING"), write_model, compile_library)
    shutil.copy(compile_library("flow.cc"), write_model(repository, "flow", None, FLOW) / "libtriton_flow.so")
    first, last = step("add", {"IN": "IN"}, {"OUT": "a"}), step("add", {"IN": "z"}, {"OUT": "OUT"})
    through = {
        "pipeline": (native("native", "a", "z"),),
        "twice": (native("native", "a", "b"), native("native", "b", "z")),
        "kept": (native("cached", "a", "z"),),
        "apart": (native("native", "a", "b"), native("isolated", "b", "z")),
    }
    configs = {name: ensemble(first, *steps, last) for name, steps in through.items()}
    configs["held"] = ensemble(native("native", "IN", "z"), step("hold", {"IN": "z"}, {"OUT": "OUT"}))
    configs["texts"] = ensemble(native("strings", "IN", "z"), step("lengths", {"IN": "z"}, {"OUT": "OUT"})).replace(
        'IN" data_type: TYPE_INT64', 'IN" data_type: TYPE_STRING', 1
    )
    configs["flowing"] = ensemble(
        step("flow", {"IN": "IN"}, {"PAD": "pad"}), step("pads", {"IN": "pad"}, {"OUT": "OUT"})
    ).replace("-1", "3", 1)
    configs["nested"] = chain("pipeline", "pipeline")
    for name, config in configs.items():
        write_model(repository, name, None, config)
    return repository


def identity(repository, name, config, write_model, compile_library):
    """A model in C++ that returns its input under its own name."""
    folder = write_model(repository, name, None, f'backend: "identity"\n{config}')
    shutil.copy(compile_library("identity.cc"), folder / "libtriton_identity.so")


def native(model, read, written):
    return step(model, {"IN": read}, {"IN": written})


@pytest.fixture(scope="module")
def server(repository, serving):
    """A server of all of them."""
    cache = f"--cache-config=local,size={64 << 20}"
    with serving(repository, "--model-control-mode=explicit", "--load-model=*", cache) as server:
        yield server


@pytest.fixture
def hold(repository):
    """The file that makes the last step of "held" wait; it goes with the test."""
    file = repository / ".hold"
    file.touch()
    yield file
    file.unlink(missing_ok=True)


def metric(server, name, **labels):
    """The sum of a metric over everything with these labels."""
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE)
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    return sum(float(value) for text, value in lines if wanted <= set(text.split(",")))


def copied(server, model):
    """How many bytes the ensemble has copied between its steps."""
    return metric(server, "pyruntime_ensemble_copied_bytes_total", model=model)


@pytest.mark.parametrize("model", ["pipeline", "twice", "apart", "nested"])
def test_no_copy_between_steps(server, model):
    """Python models, C++ backends in the server and in processes of their own: no byte of 16 MiB passes the server."""
    added = 4 if model == "nested" else 2
    for _ in range(3):
        assert np.array_equal(server.infer(model, {"IN": LARGE}).as_numpy("OUT"), LARGE + added)
    assert copied(server, model) == 0


def test_small_outputs_are_copied(server):
    """They are not worth a block of a region."""
    before = copied(server, "pipeline")
    assert server.infer("pipeline", {"IN": np.array([1])}).as_numpy("OUT").tolist() == [3]
    assert copied(server, "pipeline") == before + 8


def test_called_by_a_python_model(server):
    """The outputs of a call lie where the backend wrote them for as long as the caller keeps them."""
    expected = 0
    for number in range(3):
        expected += int((LARGE + number).sum())
        assert server.infer("call", {"IN": LARGE + number}).as_numpy("OUT").tolist() == [expected]
    assert metric(server, "pyruntime_shared_memory_bytes", model="native", region="responses") >= 3 * LARGE.nbytes


def test_strings(server):
    """Strings are read where they are, too."""
    assert server.infer("texts", {"IN": STRINGS}).as_numpy("OUT").tolist() == [999 * len(STRINGS)]
    assert copied(server, "texts") == 0


def test_decoupled(server):
    """A stream of large responses, more than may be ahead of the client, uses few blocks."""
    with server.streaming("flowing", IN=[40, LARGE.nbytes, 0]) as events:
        assert [event["OUT"] for event in events] == [LARGE.nbytes] * 40
    assert copied(server, "flowing") == 0
    assert metric(server, "pyruntime_shared_memory_bytes", model="flow") < 20 * LARGE.nbytes


def test_response_cache(server):
    """The response is inserted where it lies. One that comes from the cache is in no region, and is copied."""
    for _ in range(2):
        assert np.array_equal(server.infer("kept", {"IN": LARGE}).as_numpy("OUT"), LARGE + 2)
    hits = metric(server, "nv_cache_num_hits_per_model", model="cached")
    assert (hits, copied(server, "kept")) == (1, LARGE.nbytes)


def begin(server, client, model="held"):
    """Begin a request; wait until its first step has answered. The call, and a queue that gets the result."""
    executed = metric(server, "nv_inference_request_success", model="native")
    given = tritonclient.grpc.InferInput("IN", [len(LARGE)], "INT64")
    given.set_data_from_numpy(LARGE)
    answers = SimpleQueue()
    call = client.async_infer(model, [given], lambda result, error: answers.put(error or result.as_numpy("OUT")[0]))
    wait_until(lambda: metric(server, "nv_inference_request_success", model="native") > executed)
    return call, answers


def test_cancelled(server, hold):
    """Requests that are cancelled while a step reads the output leave nothing behind."""
    hold.unlink()
    server.infer("held", {"IN": LARGE})
    before = metric(server, "pyruntime_shared_memory_bytes", model="native", region="responses")
    hold.touch()
    with closing(server.grpc()) as client:
        for _ in range(6):
            call, answers = begin(server, client)
            call.cancel()
            assert answers.get(timeout=LIMIT_S).status() == "StatusCode.CANCELLED"
            wait_until(lambda: metric(server, "nv_inference_pending_request_count", model="hold") == 0)
    hold.unlink()
    assert server.infer("held", {"IN": LARGE}).as_numpy("OUT").tolist() == [int(LARGE.sum())]
    # A block may still be in use while the next request is executed.
    after = metric(server, "pyruntime_shared_memory_bytes", model="native", region="responses")
    assert after <= before + 2 * LARGE.nbytes


def test_unloaded_meanwhile(server, hold):
    """An output outlives its model for as long as a step reads it."""
    with closing(server.grpc()) as client, closing(server.client()) as control:
        _, answers = begin(server, client)
        control.unload_model("native")
        wait_until(lambda: not control.is_model_ready("held"))
        hold.unlink()
        assert answers.get(timeout=LIMIT_S) == LARGE.sum()
        control.load_model("native")
        wait_until(lambda: control.is_model_ready("held"))
        assert server.infer("held", {"IN": LARGE}).as_numpy("OUT").tolist() == [int(LARGE.sum())]


def test_shutdown(repository, serving, hold):
    """A server that stops while a step reads the output answers first."""
    names = [f"--load-model={name}" for name in ("native", "hold", "held")]
    with serving(repository, "--model-control-mode=explicit", *names) as server, closing(server.grpc()) as client:
        _, answers = begin(server, client)
        server.process.terminate()
        wait_until(lambda: not server.is_ready())
        hold.unlink()
        assert answers.get(timeout=LIMIT_S) == LARGE.sum()
        assert server.wait_exit() == 0
