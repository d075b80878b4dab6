# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""C++ backends that use memory of GPUs and pinned memory: in the server's process, and in one of their own.

The driver is tests/native/cuda.c, in which nothing but its own functions can touch memory of a GPU; the backend is
tests/native/gpu_memory.cc.
"""

import base64
import os
import re
import shutil
import signal
from contextlib import closing
from importlib.util import find_spec

import numpy as np
import pytest
import tritonclient.http as http

from tests.plugins.gpus import TWO_PEERS, gpu_of_this_machine

from .harness.frameworks import FRAMEWORKS, STAND_IN_ARRAY
from .harness.gpu_regions import leased
from .harness.models import parameters

CONFIG = """
backend: "gpu_memory"
input [
  { name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
]
output [
  { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
]
instance_group { kind: KIND_GPU gpus: [ 1 ] }
"""
FP32_IN_OUT = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
PLUS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values + 1)])
"""
# Has an array on its GPU, by DLPack, of which it makes its output, or an input of the C++ model.
ON_GPU = """
class TritonPythonModel:
    def initialize(self, args):
        self._gives = args["model_name"] == "give"

    def execute(self, requests):
        return [self._answer(make(request.inputs()[0].as_numpy() + 1)) for request in requests]

    def _answer(self, array):
        if not self._gives:
            return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", array)])
        command = pb_utils.Tensor("COMMAND", np.array([b"input IN cpu 0\\nvalues IN"], object))
        inputs = [command, pb_utils.Tensor.from_dlpack("IN", array)]
        call = pb_utils.InferenceRequest(model_name="isolated", requested_output_names=["RESULT"], inputs=inputs)
        response = call.exec()
        return pb_utils.InferenceResponse(response.output_tensors(), response.error())
"""
# Has a C++ model make an output, and says where it finds that. The id of the request is the name of the model.
TAKE = """
class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request.request_id() or "isolated", request.inputs()[0]) for request in requests]

    def _answer(self, name, command):
        names = ["RESULT", "OUT"]
        call = pb_utils.InferenceRequest(model_name=name, requested_output_names=names, inputs=[command])
        response = next(iter(call.exec(decoupled=True))) if name == "streams" else call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        (out,) = [each for each in response.output_tensors() if each.name() == "OUT"]
        where = "main memory" if out.is_cpu() else f"GPU {out.__dlpack_device__()[1]}"
        where = pb_utils.Tensor("WHERE", np.array([where], object))
        return pb_utils.InferenceResponse([*response.output_tensors(), where])
"""
# Reads its input, and says where it has found that.
READ = """
class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request.inputs()[0]) for request in requests]

    def _answer(self, given):
        where = "main memory" if given.is_cpu() else f"GPU {given.__dlpack_device__()[1]}"
        where = pb_utils.Tensor("WHERE", np.array([where], object))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given.as_numpy() + 1), where])
"""
WHERE = 'output [ { name: "WHERE" data_type: TYPE_STRING dims: [ 1 ] } ]'
CHAIN = """
platform: "ensemble"
input [ { name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "WHERE" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
]
ensemble_scheduling {
  step {
    model_name: "isolated" model_version: -1
    input_map { key: "COMMAND" value: "COMMAND" }
    output_map [ { key: "RESULT" value: "RESULT" }, { key: "OUT" value: "made" } ]
  }
  step {
    model_name: "read" model_version: -1
    input_map { key: "IN" value: "made" }
    output_map [ { key: "WHERE" value: "WHERE" }, { key: "OUT" value: "OUT" } ]
  }
}
"""
# An old custom backend between two Python models.
OLD = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [
  { name: "WHERE" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
]
ensemble_scheduling {
  step {
    model_name: "make" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "made" }
  }
  step {
    model_name: "twice" model_version: -1
    input_map { key: "IN" value: "made" } output_map { key: "OUT" value: "doubled" }
  }
  step {
    model_name: "read" model_version: -1
    input_map { key: "IN" value: "doubled" }
    output_map [ { key: "WHERE" value: "WHERE" }, { key: "OUT" value: "OUT" } ]
  }
}
"""
TWICE = FP32_IN_OUT.replace('backend: "python"', 'platform: "custom"')
FP32_IN = FP32_IN_OUT.partition("output")[0]
RESULT = 'output [ { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] } ]'
# The number of GPU 1 in the process of each model.
MODELS = {"in_server": 1, "isolated": 1, "isolated_own": 0}


@pytest.fixture(scope="module")
def machine(machine):
    """A machine with two GPUs that have access to each other."""
    machine.describe(*TWO_PEERS)
    return machine


@pytest.fixture(scope="module")
def server(serving, write_model, tmp_path_factory, machine, compile_library, install_backends):
    """A server on this machine."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "in_server", None, CONFIG)
    reads = parameters(EXECUTION_MODE="process", FORCE_CPU_ONLY_INPUT_TENSORS="no")
    write_model(repository, "isolated", None, CONFIG, reads)
    write_model(repository, "isolated_own", None, CONFIG, reads + parameters(VISIBLE_GPUS="own"))
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "streams", None, CONFIG, reads + decoupled)
    on_gpu = "instance_group { kind: KIND_GPU gpus: [ 1 ] }"
    write_model(repository, "make", STAND_IN_ARRAY + "use(1)\n" + ON_GPU, FP32_IN_OUT, on_gpu)
    write_model(repository, "give", STAND_IN_ARRAY + "use(1)\n" + ON_GPU, FP32_IN, RESULT + on_gpu)
    write_model(repository, "plus", PLUS, FP32_IN_OUT)
    write_model(repository, "take", TAKE, CONFIG.replace("gpu_memory", "python"), WHERE)
    reads = parameters(FORCE_CPU_ONLY_INPUT_TENSORS="no")
    write_model(repository, "read", READ, FP32_IN_OUT, WHERE + on_gpu + reads)
    write_model(repository, "chain", None, CHAIN)
    old = write_model(repository, "twice", None, TWICE, on_gpu + reads)
    shutil.copy(compile_library("custom/on_gpu.c"), old / "1" / "libcustom.so")
    write_model(repository, "old", None, OLD)
    drivers = tmp_path_factory.mktemp("drivers")
    shutil.copy(compile_library("cuda.c"), drivers / "libcuda.so.1")
    options = ["--allow-client-shm=true", "--pinned-memory-pool-byte-size=65536", "--cuda-memory-pool-byte-size=1:4096"]
    options.append(f"--backend-directory={install_backends('gpu_memory')}")
    with serving(repository, *options, wrapper=("env", f"LD_LIBRARY_PATH={drivers}")) as server:
        yield server


@pytest.fixture(params=MODELS)
def model(request):
    """The name of the model of each process."""
    return request.param


def run(server, model, *lines):
    """The results of the steps, in which GPU is the number of the model's GPU."""
    command = "\n".join(lines).replace("GPU", str(MODELS[model]))
    (result,) = server.infer(model, {"COMMAND": np.array([command], object)}).as_numpy("RESULT")
    return re.sub("0x[0-9a-f]+", "ADDRESS", result.decode()).replace(f"GPU {MODELS[model]}", "GPU 1").splitlines()


def test_pool_of_a_gpu(server, model):
    """Blocks of the pool, which has the operator's size; errors are Triton's."""
    none_left = "Internal: Failed to allocate CUDA memory with byte size 4096 on GPU 1: CNMEM_STATUS_OUT_OF_MEMORY"
    not_there = "Internal: Failed to deallocate CUDA memory at address ADDRESS on GPU 1: CNMEM_STATUS_INVALID_ARGUMENT"
    steps = ("allocate gpu GPU 1000", "allocate gpu GPU 4096", "free 0", "allocate gpu GPU 4096", "free 2", "free 2")
    assert run(server, model, *steps) == ["ok", none_left, "ok", "ok", "ok", not_there]
    # Free neighbours become one block again, on both sides.
    one = "allocate gpu GPU 1024"
    steps = (
        *[one] * 5,
        "free 1",
        "free 3",
        "allocate gpu GPU 2048",
        "free 2",
        "allocate gpu GPU 3000",
        "free 0",
        "free 6",
    )
    none_left, larger = (none_left.replace("4096", size) for size in ("1024", "2048"))
    assert run(server, model, *steps) == [*["ok"] * 4, none_left, "ok", "ok", larger, *["ok"] * 4]
    # The driver is asked once, and has no context left on the thread.
    assert run(server, model, "allocate gpu GPU 16", "free 0", "blocks", "contexts") == ["ok", "ok", "1", "0"]


def test_no_such_gpu(server, model):
    """The driver's reason stands behind Triton's words."""
    missing = "Unavailable: CudaMemoryManager has no preallocated CUDA memory"
    steps = ("allocate gpu 9 16", "free 0", "allocate gpu -1 16")
    reason = f"{missing}: invalid device ordinal"
    assert run(server, model, *steps) == [reason, missing, reason]


def test_pinned_memory(server, model):
    """One pool for each process. A backend that gets none of it takes other memory, as in Triton."""
    steps = ("allocate pinned 0 40000", "touch 0 40000", "allocate pinned 0 40000", "free 0")
    none_left = "Internal: failed to allocate pinned system memory"
    assert run(server, model, *steps) == ["ok", "ok", none_left, "ok"]
    steps = ("allocate gpu GPU 1", "free_as pinned 0 0", "free 0")
    not_there = "Internal: unexpected memory address 'ADDRESS' is not being managed"
    assert run(server, model, *steps) == ["ok", not_there, "ok"]


def test_metrics(server):
    """The page has the pool of the server's process."""
    assert run(server, "in_server", "allocate pinned 0 1000") == ["ok"]  # and it stays
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    used = re.search("^nv_pinned_memory_pool_used_bytes ([0-9]+)$", text, re.MULTILINE)
    assert "\nnv_pinned_memory_pool_total_bytes 65536\n" in text
    assert int(used[1]) >= 1024


def test_calls(server, model):
    """Inputs of a called model may lie on a GPU, in part or whole, and so may its outputs."""
    blocks = ("allocate gpu GPU 16", "allocate gpu GPU 16", "write 0 1 2 3")
    calls = ("call plus 3 0 1", "read 1 3", "call plus 1 1 0", "read 0 3")
    assert run(server, model, *blocks, *calls, "free 0", "free 1", "contexts") == [
        *("ok", "ok", "0"),
        *("ok", "2 3 4 ", "ok", "3 2 3 "),
        *("ok", "ok", "0"),
    ]


def test_calls_that_fail(server, model):
    """The caller's memory is not where it says."""
    blocks = ("allocate gpu GPU 16", "allocate gpu GPU 16", "write 0 1")
    steps = ("elsewhere 1 9", "call plus 1 0 1", "call plus 1 1 0", "elsewhere 1 GPU", "free 0", "free 1")
    assert run(server, model, *blocks, *steps)[3:] == [
        "ok",
        "Internal: output 'OUT' cannot be copied to GPU 9: invalid device ordinal",
        "Internal: input 'IN' cannot be copied from GPU 9: invalid device ordinal",
        *("ok", "ok", "ok"),
    ]


def test_preferred_memory(server, model):
    """Requests of clients are in main memory, as in Triton, whichever memory a backend prefers."""
    steps = ("input COMMAND gpu GPU", "input COMMAND pinned 0", "output OUT gpu GPU 1")
    *found, output = run(server, model, *steps)
    assert [line.partition(" bytes in ")[2] for line in found] == ["CPU 0", "CPU 0"]
    assert output == "CPU 0"
    result = server.infer(model, {"COMMAND": np.array(["contexts"], object)}).get_response()
    assert result["parameters"] == {"output": "GPU 0 is CPU 0"}


def test_tensors_of_other_models(server):
    """An input from a model on the same GPU stays there, where the backend's process wants that."""
    values = {"IN": np.array([1, 2], np.float32)}
    assert server.infer("give", values).as_numpy("RESULT").tolist() == [b"8 bytes in GPU 1\n2 3 \n"]


def told(result):
    """What a request has found: what the C++ model says of its output, where that was read, and its values."""
    kind, where = (result.as_numpy(name).item().decode() for name in ("RESULT", "WHERE"))
    return kind.strip(), where, result.as_numpy("OUT").tolist()


def ask(server, model, *lines, id=""):
    """The answer of a model to the steps of the C++ model."""
    return server.infer(model, {"COMMAND": np.array(["\n".join(lines)], object)}, request_id=id)


def test_outputs_for_callers(server):
    """An output is written on the GPU, where its reader is a caller there. Memory that is preferred counts."""
    for _ in range(3):  # the memory is used again
        assert told(ask(server, "take", "output OUT gpu 1 1 2 3")) == ("GPU 1", "GPU 1", [1, 2, 3])
    assert told(ask(server, "take", "output OUT pinned 0 4")) == ("CPU 0", "main memory", [4])
    assert told(ask(server, "take", "output OUT gpu 7 5")) == ("CPU 0", "main memory", [5])  # there is none


def test_outputs_of_streams(server):
    """The same for a decoupled model, whose responses are sent one by one."""
    for _ in range(3):
        assert told(ask(server, "take", "output OUT gpu 1 1 2 3", id="streams")) == ("GPU 1", "GPU 1", [1, 2, 3])


def test_outputs_for_steps(server):
    """The same in an ensemble."""
    assert told(ask(server, "chain", "output OUT gpu 1 1 2")) == ("GPU 1", "GPU 1", [2, 3])
    assert told(ask(server, "chain", "output OUT cpu 0 1 2")) == ("CPU 0", "main memory", [2, 3])


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(("name", "place"), [("in_server", "CPU 0"), ("isolated", "GPU 1"), ("isolated_own", "GPU 0")])
def test_memory_of_clients(server, machine, name, device, place):
    """It is copied to main memory for a backend in the server, and back; one in a process of its own uses its GPU.

    Of that the client's memory is there, or on another GPU from and to which it is copied.
    """
    gpu = machine.gpu(device)
    pointer = gpu.allocate(20)
    gpu.write(pointer, np.array([4, 5], np.float32).view(np.uint8))
    steps = "input IN gpu GPU", "values IN", "output OUT gpu GPU 1 2 3"
    command = http.InferInput("COMMAND", [1], "BYTES")
    command.set_data_from_numpy(np.array(["\n".join(steps).replace("GPU", str(MODELS[name]))], object))
    given, output = http.InferInput("IN", [2], "FP32"), http.InferRequestedOutput("OUT")
    given.set_shared_memory("client", 8)
    output.set_shared_memory("client", 12, 8)
    with closing(server.client()) as client:
        client.register_cuda_shared_memory("client", base64.b64encode(gpu.export(pointer)), device, 20)
        result = client.infer(name, [command, given], outputs=[output, http.InferRequestedOutput("RESULT")])
        client.unregister_cuda_shared_memory("client")
    found = np.empty(5, np.float32)
    gpu.read(pointer, found.view(np.uint8))
    assert result.as_numpy("RESULT").item().decode().splitlines() == [f"8 bytes in {place}", "4 5 ", place]
    assert found.tolist() == [4, 5, 1, 2, 3]


def test_old_custom_backends(server):
    """A library of version 2 reads and writes tensors on the GPU between such models, and else in main memory."""
    values = {"IN": np.array([1, 2], np.float32)}
    result = server.infer("old", values)
    assert (result.as_numpy("WHERE").item(), result.as_numpy("OUT").tolist()) == (b"GPU 1", [5, 7])
    assert server.infer("twice", values).as_numpy("OUT").tolist() == [2, 4]


def test_outputs_without_room(server, machine):
    """An output is in main memory where a GPU has no memory left, and the next one need not be."""
    large = "discard OUT 1 5000000"
    with machine.failing(allocate="CUDA_ERROR_OUT_OF_MEMORY"):
        assert told(ask(server, "take", "output OUT pinned 0 1", large)) == ("CPU 0\nCPU 0", "main memory", [1])
    assert told(ask(server, "take", "output OUT gpu 1 1", large)) == ("GPU 1\nGPU 1", "GPU 1", [1])


def test_outputs_that_are_not_sent(server, wait_until):
    """Memory of a response that is deleted is free again, and what is not needed then goes back."""
    ask(server, "take", "output OUT gpu 1 1")
    before = leased(server, "GPU-2")
    assert told(ask(server, "take", *["discard OUT 1 5000000"] * 5, "output OUT gpu 1 1"))[0] == "\n".join(
        ["GPU 1"] * 6
    )
    wait_until(lambda: leased(server, "GPU-2") == before)


def test_outputs_of_a_process_that_ends(server, wait_until):
    """Its memory goes back. The process that takes its place gets memory of its own."""
    assert told(ask(server, "take", "output OUT gpu 1 1"))[0] == "GPU 1"
    before = leased(server, "GPU-2")
    (stub,) = [each for each in server.family() if each.title.startswith("triton_python_backend_stub isolated_0")]
    os.kill(stub.pid, signal.SIGKILL)
    wait_until(lambda: leased(server, "GPU-2") < before)
    assert told(ask(server, "take", "output OUT gpu 1 1")) == ("GPU 1", "GPU 1", [1])
    wait_until(lambda: leased(server, "GPU-2") == before)


def test_outputs_of_other_models(server, model):
    """An output that a called model leaves on the GPU comes to where the caller wants it."""
    blocks = ("allocate gpu GPU 16", "allocate gpu GPU 16", "write 0 1 2 3")
    steps = ("call make 3 0 1", "read 1 3", "free 0", "free 1")
    assert run(server, model, *blocks, *steps)[3:] == ["ok", "2 3 4 ", "ok", "ok"]


@pytest.fixture
def real_gpu(monkeypatch):
    """This process and those that it starts use NVIDIA's driver."""
    return gpu_of_this_machine(monkeypatch)


@pytest.mark.gpu
def test_inputs_left_on_a_gpu(real_gpu, serve, write_model, tmp_path, install_backends):
    """A tensor of torch is the input of a C++ model, which reads it where it lies."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    config = CONFIG.replace("gpus: [ 1 ]", "gpus: [ 0 ]")
    reads = parameters(EXECUTION_MODE="process", FORCE_CPU_ONLY_INPUT_TENSORS="no")
    write_model(tmp_path, "isolated", None, config, reads)
    group = "instance_group { kind: KIND_GPU gpus: [ 0 ] }"
    write_model(tmp_path, "give", FRAMEWORKS["torch"] + ON_GPU, FP32_IN, RESULT + group)
    server = serve(f"--backend-directory={install_backends('gpu_memory')}")
    values = {"IN": np.array([1, 2], np.float32)}
    for _ in range(3):  # the memory is used again
        assert server.infer("give", values).as_numpy("RESULT").tolist() == [b"8 bytes in GPU 0\n2 3 \n"]


@pytest.mark.gpu
def test_on_a_gpu(real_gpu, serve, write_model, tmp_path, install_backends):
    """The same by NVIDIA's driver: memory of both pools, and tensors of calls on the GPU, in both directions."""
    config = CONFIG.replace("gpus: [ 1 ]", "gpus: [ 0 ]")
    write_model(tmp_path, "in_server", None, config)
    write_model(tmp_path, "isolated", None, config, parameters(EXECUTION_MODE="process"))
    write_model(tmp_path, "plus", PLUS, FP32_IN_OUT, "instance_group { kind: KIND_CPU }")
    write_model(tmp_path, "take", TAKE, config.replace("gpu_memory", "python"), WHERE)
    server = serve(f"--backend-directory={install_backends('gpu_memory')}")
    steps = (
        "allocate gpu 0 16",
        "allocate gpu 0 16",
        "write 0 1 2 3",
        "call plus 3 0 1",
        "read 1 3",
        "free 0",
        "free 1",
    )
    pinned = ("allocate pinned 0 4096", "touch 2 4096", "free 2")
    for name in MODELS:
        results = run(server, name, *steps, *pinned)
        assert results == ["ok", "ok", "0", "ok", "2 3 4 ", *["ok"] * 5]
    assert told(ask(server, "take", "output OUT gpu 0 1 2 3")) == ("GPU 0", "GPU 0", [1, 2, 3])
