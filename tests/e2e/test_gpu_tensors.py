# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay on a GPU between models, on GPUs of the stand-in, with real servers."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from numpy.testing import assert_array_equal
from tritonclient.utils import InferenceServerException

from pyruntime.utils.gpu.driver import GpuHandleError

from .harness.frameworks import STAND_IN_ARRAY
from .harness.gpu_models import NOTE, check_kept, infer
from .harness.gpu_regions import HTTP, leased, lose_broker, on_gpu, sent, to_gpu
from .harness.waiting import open_gate

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
instance_group { kind: KIND_GPU gpus: [ GPU ] }
"""
READS = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'

# Makes a tensor on the GPU.
MAKE = (
    STAND_IN_ARRAY
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", make(request.inputs()[0].as_numpy() * 3))])
            for request in requests
        ]
"""
)
# Reads its input where it lies, and notes where that is.
DOUBLE = (
    STAND_IN_ARRAY
    + NOTE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = request.inputs()[0]
            if tensor.is_cpu():
                output = pb_utils.Tensor("OUT", tensor.as_numpy() * 2)
            else:
                output = pb_utils.Tensor.from_dlpack("OUT", times(take(tensor), 2))
            if request.request_id() == "keep":
                self.kept.append(tensor)
            if request.request_id() == "check":
                output = pb_utils.Tensor("OUT", np.concatenate([each.as_numpy() for each in self.kept]))
            if request.request_id() == "die":
                os._exit(1)
            note(tensor)
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
)
# Calls `make`, and then the model that the id of its request names, with the output of `make`.
CALL = (
    STAND_IN_ARRAY
    + """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            callee, _, id = request.request_id().partition(" ")
            given = pb_utils.Tensor("IN", request.inputs()[0].as_numpy())
            call = pb_utils.InferenceRequest(model_name="make", requested_output_names=["OUT"], inputs=[given])
            tensor = call.exec().output_tensors()[0]
            assert not tensor.is_cpu() and tensor.__dlpack_device__() == (2, 0)
            if id == "wait":
                gate = os.path.join(os.path.dirname(__file__), "gate")
                os.mkfifo(gate)
                open(gate).close()
            if callee != "make":
                given = pb_utils.Tensor.from_dlpack("IN", tensor.to_dlpack()) if id == "capsule" else tensor
                given._name = "IN"
                call = pb_utils.InferenceRequest(
                    model_name=callee, requested_output_names=["OUT"], inputs=[given], request_id=id
                )
                response = call.exec()
                if response.has_error():
                    responses.append(pb_utils.InferenceResponse(error=response.error()))
                    continue
                tensor = response.output_tensors()[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]))
        return responses
"""
)
CHAIN = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "make" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "a" } }
  step { model_name: "double" model_version: -1 input_map { key: "IN" value: "a" } output_map { key: "OUT" value: "b" }}
  step { model_name: "LAST" model_version: -1 input_map { key: "IN" value: "b" } output_map { key: "OUT" value: "OUT" }}
}
"""
# Has its input on the GPU while it waits at a gate, and doubles it then.
WAIT = (
    STAND_IN_ARRAY
    + """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        tensor = request.inputs()[0]
        assert not tensor.is_cpu()
        gate = os.path.join(os.path.dirname(__file__), "gate")
        os.mkfifo(gate)
        open(gate).close()
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", times(take(tensor), 2))])]
"""
)
# Two steps: both read IN, or the second one reads what the first one makes of it.
WAITS = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "a" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
ensemble_scheduling {
  step {
    model_name: "double" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "a" }
  }
  step {
    model_name: "wait" model_version: -1
    input_map { key: "IN" value: "READ" } output_map { key: "OUT" value: "OUT" }
  }
}
"""
# Doubles what it reads on the GPU, and adds what it has in main memory.
ADD = (
    STAND_IN_ARRAY
    + """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        there, here = sorted(request.inputs(), key=pb_utils.Tensor.name)
        assert not there.is_cpu() and here.is_cpu()
        sum = back(times(take(there), 2)) + here.as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", make(sum))])]
"""
)
TWO_INPUTS = CONFIG.replace("input {", "input { name: 'MORE' data_type: TYPE_INT64 dims: [ -1 ] }\ninput {")
# One input is an output, too.
ADDS = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "MORE" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "MORE" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
ensemble_scheduling {
  step {
    model_name: "add" model_version: -1
    input_map [ { key: "IN" value: "IN" }, { key: "MORE" value: "MORE" } ] output_map { key: "OUT" value: "a" }
  }
  step {
    model_name: "double" model_version: -1
    input_map { key: "IN" value: "a" } output_map { key: "OUT" value: "OUT" }
  }
}
"""


@pytest.fixture(scope="module")
def repository(write_model, tmp_path_factory):
    """The models."""
    folder = tmp_path_factory.mktemp("models")
    here, there = CONFIG.replace("GPU ]", "0 ]"), CONFIG.replace("GPU ]", "1 ]")
    write_model(folder, "make", MAKE, here)
    write_model(folder, "double", DOUBLE, here + READS)
    write_model(folder, "double_there", DOUBLE, there + READS)
    write_model(folder, "double_on_cpu", DOUBLE, here)
    write_model(folder, "call", CALL, here)
    write_model(folder, "wait", WAIT, here + READS)
    write_model(folder, "add", ADD, TWO_INPUTS.replace("GPU ]", "0 ]") + READS)
    write_model(folder, "adds", None, ADDS)
    write_model(folder, "both_read", None, WAITS.replace("READ", "IN"))
    write_model(folder, "one_after_the_other", None, WAITS.replace("READ", "a"))
    write_model(folder, "thrice", None, CHAIN.replace("make", "double").replace("LAST", "double"))
    for last in ("double", "double_there", "double_on_cpu"):
        (folder / f"chain_{last}" / "1").mkdir(parents=True)
        (folder / f"chain_{last}" / "config.pbtxt").write_text(CHAIN.replace("LAST", last))
    return folder


@pytest.mark.parametrize("count", [4, 3_000_000], ids=["small", "large"])
@pytest.mark.parametrize("given", ["plain", "capsule"])
def test_calls(server, seen, count, given):
    """Both directions: the caller gets a tensor on the GPU, and gives it to another model, which reads it there."""
    array = np.arange(count)
    assert_array_equal(infer(server, "call", array, f"double {given}"), array * 6)
    assert seen("double") == "G"
    assert_array_equal(infer(server, "call", array, "make"), array * 3)


def test_callees_elsewhere(server, seen):
    """A callee on another GPU, and one that does not ask for inputs there, find them in main memory."""
    array = np.arange(1000)
    assert_array_equal(infer(server, "call", array, "double_there"), array * 6)
    assert_array_equal(infer(server, "call", array, "double_on_cpu"), array * 6)
    assert (seen("double_there"), seen("double_on_cpu")) == ("C", "C")


@pytest.mark.parametrize(
    ("last", "places"), [("double", "GG"), ("double_there", "GC"), ("double_on_cpu", "GC")], ids=["all", "gpu", "cpu"]
)
def test_ensembles(server, seen, last, places):
    """A tensor stays on the GPU between steps that are there, and read it there."""
    array = np.arange(100_000)
    assert_array_equal(infer(server, f"chain_{last}", array), array * 12)
    assert seen("double") + (seen(last) if last != "double" else "") == places


def test_client_memory(server, machine, region):
    """An output goes from the memory of the model to that of a client on the same GPU, and never to main memory."""
    array = np.arange(1000)
    output = region(HTTP, array.nbytes)
    with closing(server.client()) as client, machine.failing(read="CUDA_ERROR_NOT_SUPPORTED"):
        client.infer("make", [sent(HTTP, array)], outputs=[to_gpu(HTTP, output, array.nbytes)])
    assert_array_equal(output.get(array), array * 3)


class InPlace:
    """A client whose input is on GPU 0, and whose output goes there."""

    def __init__(self, server, region, array):
        self._server = server
        self.input, self._output = region(HTTP, array.nbytes), region(HTTP, array.nbytes)
        self.array = array
        self.input.put(array)

    def infer(self, model, id=""):
        """The output."""
        tensors, outputs = [on_gpu(HTTP, self.array, self.input)], [to_gpu(HTTP, self._output, self.array.nbytes)]
        with closing(self._server.client()) as client:
            client.infer(model, tensors, outputs=outputs, request_id=id)
        return self._output.get(self.array)

    def is_registered(self):
        with closing(self._server.client()) as client:
            return self.input.name in [each["name"] for each in client.get_cuda_shared_memory_status()]

    def is_free(self):
        """Whether nobody has the input open any more. Once."""
        with suppress(GpuHandleError):
            self.input.gpu.free(self.input.pointer)
            return True


def test_step_dies(server, region, seen):
    """A step that dies leaves nothing open of a client's memory, which it and others read in place."""
    client = InPlace(server, region, np.arange(1000))
    assert_array_equal(client.infer("thrice"), client.array * 8)
    assert seen("double") == "GGG"
    with pytest.raises(InferenceServerException, match="It was lost while it ran this request"):
        client.infer("thrice", "die")
    assert_array_equal(client.infer("thrice"), client.array * 8)
    client.input.unregister()
    assert not client.is_registered()
    client.input.gpu.free(client.input.pointer)


@pytest.mark.parametrize("where", ["gpu", "system", "plain"])
def test_one_input_in_place(server, region, where):
    """An input that is an output, too, goes through main memory, wherever the client has it; another one does not."""
    array, more = np.arange(1000), np.arange(1000) * 7
    given, returned, output = (region(HTTP, array.nbytes) for _ in range(3))
    given.put(array)
    tensors = [on_gpu(HTTP, array, given), HTTP.InferInput("MORE", [1000], "INT64")]
    outputs = [to_gpu(HTTP, output, array.nbytes), HTTP.InferRequestedOutput("MORE")]
    with closing(server.client()) as client, ExitStack() as stack:
        if where == "gpu":
            returned.put(more)
            tensors[1].set_shared_memory(returned.name, more.nbytes)
        elif where == "system":
            shared = shm.create_shared_memory_region("more", f"/{given.name}", 2 * more.nbytes)
            stack.callback(shm.destroy_shared_memory_region, shared)
            shm.set_shared_memory_region(shared, [more])
            client.register_system_shared_memory("more", f"/{given.name}", 2 * more.nbytes)
            stack.callback(client.unregister_system_shared_memory, "more")
            tensors[1].set_shared_memory("more", more.nbytes)
            outputs[1].set_shared_memory("more", more.nbytes, more.nbytes)
        else:
            tensors[1].set_data_from_numpy(more)
        result = client.infer("adds", tensors, outputs=outputs)
        if where == "system":
            assert_array_equal(shm.get_contents_as_numpy(shared, np.int64, [1000], more.nbytes), more)
        else:
            assert_array_equal(result.as_numpy("MORE"), more)
    assert_array_equal(output.get(array), (array * 2 + more) * 2)


def test_last_reader(server, region, repository, wait_until):
    """The memory of a client stays registered until the last step that reads it has ended, though another one has."""
    gate = repository / "wait" / "1" / "gate"
    client = InPlace(server, region, np.arange(1000))
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(client.infer, "both_read")
        wait_until(gate.exists)
        client.input.unregister()
        assert client.is_registered()
        open_gate(gate)
        assert_array_equal(pending.result(), client.array * 2)
    assert not client.is_registered()
    wait_until(client.is_free)


def test_broker_is_lost_between_steps(server, region, repository, wait_until):
    """So are the tensors between steps. The input is the client's, and the next request reads it again."""
    gate = repository / "wait" / "1" / "gate"
    client = InPlace(server, region, np.arange(1000))
    with ThreadPoolExecutor(1) as threads:
        for is_lost in (True, False):
            pending = threads.submit(client.infer, "one_after_the_other")
            wait_until(gate.exists)
            if is_lost:
                lose_broker(server)
            open_gate(gate)
            if is_lost:
                with pytest.raises(InferenceServerException, match="cannot be read from GPU 0"):
                    pending.result()
            else:
                assert_array_equal(pending.result(), client.array * 4)


def test_kept_inputs(server):
    """A tensor on the GPU stays as it is for as long as the model keeps it."""
    check_kept(server, "call", "double", 3)


def test_many_at_once(server):
    """Requests at the same time have their own tensors."""
    arrays = [np.arange(2000) + number for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda array: infer(server, "chain_double", array), arrays))
    for array, answer in zip(arrays, answers, strict=True):
        assert_array_equal(answer, array * 12)


def test_callee_dies(server):
    """What dies while it reads a tensor leaves nothing behind: the next requests are answered."""
    array = np.arange(1000)
    with pytest.raises(InferenceServerException, match="It was lost while it ran this request"):
        infer(server, "call", array, "double die")
    assert_array_equal(infer(server, "call", array, "double"), array * 6)


@pytest.mark.parametrize("callee", ["double", "double_on_cpu"], ids=["by reference", "through main memory"])
def test_unloaded_while_its_output_is_held(serving, machine, repository, wait_until, callee):
    """An output outlives its model while a caller holds it, and goes from there to another model, or is copied."""
    array, gate = np.arange(3_000_000), repository / "call" / "1" / "gate"  # more than a chunk
    names = [f"--load-model={name}" for name in ("make", callee, "call")]
    with serving(repository, "--model-control-mode=explicit", *names) as server, ThreadPoolExecutor(1) as threads:
        infer(server, "call", array, callee)
        before = leased(server, "GPU-1")
        pending = threads.submit(infer, server, "call", array, f"{callee} wait")
        wait_until(gate.exists)
        assert server.request("POST", "/v2/repository/models/make/unload", "{}").status == 200
        wait_until(lambda: not server.stubs("make_0"))
        open_gate(gate)
        assert_array_equal(pending.result(), array * 6)
        assert server.request("POST", "/v2/repository/models/make/load", "{}").status == 200
        assert_array_equal(infer(server, "call", array + 1, callee), (array + 1) * 6)
        wait_until(lambda: leased(server, "GPU-1") <= before)


@pytest.mark.parametrize("callee", ["double", "double_on_cpu"], ids=["by reference", "through main memory"])
def test_broker_is_lost(server, repository, wait_until, callee):
    """Tensors are lost with the broker, which a sentence says. The next request has another one."""
    array, gate = np.arange(1000), repository / "call" / "1" / "gate"
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(infer, server, "call", array, f"{callee} wait")
        wait_until(gate.exists)
        lose_broker(server)
        open_gate(gate)
        with pytest.raises(InferenceServerException, match="the broker of GPU 0 was lost"):
            pending.result()
    assert_array_equal(infer(server, "call", array, callee), array * 6)


def test_metrics(server):
    """The memory that models lease is counted for its GPU."""
    infer(server, "call", np.arange(10), "make")
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert 'pyruntime_gpu_pool_bytes{gpu_uuid="GPU-1",state="leased"}' in page
