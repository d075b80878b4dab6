# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU, from client to model to model and back, by each framework.

On machines without a GPU a small framework on the stand-in takes their place; the others are marked `gpu`.
"""

import os
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.e2e.harness.frameworks import FRAMEWORKS
from tests.e2e.harness.gpu_machines import GROUP, READS_GPU, machine_with
from tests.e2e.harness.gpu_regions import BOTH, GRPC, Region, brokers, infer, on_gpu, to_gpu, told
from tests.plugins.gpus import StandInMachine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Takes its input from wherever it lies: small ones of clients are in main memory.
COMMON = """
def input_of(request):
    tensor = request.inputs()[0]
    return make(tensor.as_numpy()) if tensor.is_cpu() else take(tensor)

def answer(array, **parameters):
    output = pb_utils.Tensor.from_dlpack("OUT", array)
    assert not output.is_cpu() and output.__dlpack_device__() == (2, 0)
    return pb_utils.InferenceResponse([output], parameters=parameters)

def call(name, array, memory=None):
    tensor = pb_utils.Tensor.from_dlpack("IN", array)
    request = pb_utils.InferenceRequest(
        model_name=name, requested_output_names=["OUT"], inputs=[tensor], preferred_memory=memory
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response
"""
# Trebles its input, and says where that was.
TREBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            answer(times(input_of(request), 3), was_cpu=request.inputs()[0].is_cpu()) for request in requests
        ]
"""
# Takes its own tensor again, as another part of a model would, and hands it on to itself.
COMPUTE = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor = pb_utils.Tensor.from_dlpack("any", times(make(request.inputs()[0].as_numpy()), 3))
        assert not tensor.is_cpu() and tensor.__dlpack_device__() == (2, 0)
        output = pb_utils.Tensor.from_dlpack("OUT", times(take(tensor), 2))
        assert np.array_equal(tensor.as_numpy() * 2, output.as_numpy())
        return pb_utils.InferenceResponse([output])
"""
# Doubles its input, and lets another model treble that.
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        doubled = times(input_of(request), 2)
        response = call("treble", doubled)
        output = response.output_tensors()[0]
        assert not output.is_cpu(), "the output has left the GPU"
        assert not json.loads(response.parameters())["was_cpu"], "the input has left the GPU"
        first = output.as_numpy()
        assert np.array_equal(first, back(doubled) * 3)
        again = call("treble", take(output)).output_tensors()[0]
        del output, response
        return answer(take(again))
"""
# Reads its input in main memory, wherever that is, and writes to it.
READS_NUMPY = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor = request.inputs()[0]
        array = tensor.as_numpy()
        assert tensor.as_numpy() is array, "it is copied once"
        array *= 3
        output = pb_utils.Tensor("OUT", array)
        return pb_utils.InferenceResponse([output], parameters={"was_cpu": tensor.is_cpu(), "pid": os.getpid()})
"""
# Says where the outputs of calls are, by what is preferred.
PREFERS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        memory = {
            "": None,
            "cpu": pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
            "gpu": pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
        }
        name, _, preferred = request.request_id().partition(" ")
        array = make(request.inputs()[0].as_numpy())
        output = call(name, array, memory[preferred]).output_tensors()[0]
        if not output.is_cpu():
            assert np.array_equal(back(take(output)), output.as_numpy())
        response = pb_utils.Tensor("OUT", output.as_numpy())
        return pb_utils.InferenceResponse([response], parameters={"is_cpu": output.is_cpu()})
"""
# Trebles its input in main memory.
ON_CPU = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() * 3)])
            for request in requests
        ]
"""
# Answers by a tensor on the GPU and says which process it is.
MORTAL = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(times(input_of(request), 3), pid=os.getpid()) for request in requests]
"""
# Kills the process that its tensors come from, and reads them when that is gone: one that it has waited for before, one
# in memory where it has read another one, or the first one there.
KILLER = """
def kill(pid):
    os.kill(pid, 9)
    while os.path.exists(f"/proc/{pid}/exe"):
        time.sleep(0.001)

class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        doubled, known = times(input_of(request), 2), request.request_id()
        if known == "memory":
            assert np.array_equal(back(take(call("mortal", doubled).output_tensors()[0])), back(doubled) * 3)
        response = call("mortal", doubled)
        output = response.output_tensors()[0]
        assert not output.is_cpu()
        early = take(output) if known == "tensor" else None
        pid = json.loads(response.parameters())["pid"]
        kill(pid)
        assert np.array_equal(output.as_numpy(), back(take(output)))
        if early is not None:
            assert np.array_equal(output.as_numpy(), back(early))
        return answer(times(take(output), 5), killed=pid)
"""
# The same, of a process that does not use the GPU: the broker copies.
KILLER_ON_CPU = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor = pb_utils.Tensor("IN", request.inputs()[0].as_numpy() * 2)
        response = pb_utils.InferenceRequest(
            model_name="mortal", requested_output_names=["OUT"], inputs=[tensor]
        ).exec()
        output = response.output_tensors()[0]
        assert not output.is_cpu()
        pid = json.loads(response.parameters())["pid"]
        os.kill(pid, 9)
        while os.path.exists(f"/proc/{pid}/exe"):
            time.sleep(0.001)
        answer = pb_utils.Tensor("OUT", output.as_numpy() * 5)
        return pb_utils.InferenceResponse([answer], parameters={"killed": pid})
"""
# Has the model that the id names treble its input.
PASSES_ON = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        output = call(request.request_id(), input_of(request)).output_tensors()[0]
        assert not output.is_cpu(), "the output has left the GPU"
        return answer(take(output))
"""
# The stubs that may compute on the GPU: others only read tensors there in main memory, or none.
ON_GPU = {
    *("treble_0_0", "again_0_0", "from_main_memory_0_0", "compute_0_0", "caller_0_0", "prefers_0_0"),
    *("mortal_0_0", "killer_0_0", "passes_on_0_0"),
}
# As a model that trebles its input and gives it to another one.
CHAIN = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    { model_name: "FIRST" model_version: -1
      input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "A" } },
    { model_name: "LAST" model_version: -1
      input_map { key: "IN" value: "A" } output_map { key: "OUT" value: "OUT" } }
  ]
}
"""
# The ensembles, with their steps, and by what they multiply.
CHAINS = {
    "chain": ("treble", "again", 9),
    "nested": ("chain", "again", 27),
    "from_cpu": ("on_cpu", "again", 9),
    "to_cpu": ("treble", "on_cpu", 9),
    "nested_to_cpu": ("again", "to_cpu", 27),
}


@pytest.fixture(
    scope="module", params=["stand-in", *[pytest.param(name, marks=pytest.mark.gpu) for name in FRAMEWORKS]]
)
def machine(request, tmp_path_factory):
    """The machine, and the framework of its models."""
    with machine_with(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def repository(machine, write_model, tmp_path_factory):
    """Models of this framework on the first GPU."""
    folder = tmp_path_factory.mktemp("models")

    def write(name, code, group):
        write_model(folder, name, machine.code + COMMON + code, more=group)

    write("treble", TREBLE, READS_GPU)
    write("again", TREBLE, READS_GPU)
    write("from_main_memory", TREBLE, GROUP)
    write("compute", COMPUTE, GROUP)
    write("caller", CALLER, GROUP)
    write_model(folder, "reads_numpy", READS_NUMPY, more=READS_GPU)
    write("prefers", PREFERS, GROUP)
    write("on_cpu", ON_CPU, "instance_group [ { kind: KIND_CPU } ]\n")
    write("mortal", MORTAL, READS_GPU)
    write("killer", KILLER, GROUP)
    write_model(folder, "killer_on_cpu", KILLER_ON_CPU, more=GROUP)
    write("passes_on", PASSES_ON, READS_GPU)
    for name, (first, last, _) in CHAINS.items():
        write_model(folder, name, None, CHAIN.replace("FIRST", first).replace("LAST", last))
    return folder


SIZES = pytest.mark.parametrize("count", [1, 1000, 300_000])


@SIZES
@pytest.mark.parametrize("name", ["treble", "from_main_memory"])
def test_in_and_out(server, name, count):
    """Arrays of a framework on the GPU are outputs, and clients have them in main memory."""
    array = np.arange(count)
    assert_array_equal(server.infer(name, {"IN": array}).as_numpy("OUT"), array * 3)


@SIZES
def test_out_and_in_again(server, count):
    """An array goes out as a tensor, and in again, within one process."""
    array = np.arange(count)
    assert_array_equal(server.infer("compute", {"IN": array}).as_numpy("OUT"), array * 6)


@SIZES
def test_call(server, count):
    """Between caller and callee tensors stay on the GPU, also those that are passed on to a third model."""
    array = np.arange(count)
    assert_array_equal(server.infer("caller", {"IN": array}).as_numpy("OUT"), array * 18)


@pytest.mark.parametrize(
    ("request_id", "is_cpu"),
    [
        ("treble", False),
        ("treble cpu", True),
        ("treble gpu", False),
        ("on_cpu", True),
        ("on_cpu cpu", True),
        ("on_cpu gpu", False),
    ],
)
def test_preferred_memory(server, request_id, is_cpu):
    """Outputs of a call are where the model has them, or where the caller prefers them."""
    for count in (1, 300_000):
        array = np.arange(count)
        result = server.infer("prefers", {"IN": array}, request_id=request_id)
        assert_array_equal(result.as_numpy("OUT"), array * 3)
        assert told(result)["is_cpu"] is is_cpu


@SIZES
@pytest.mark.parametrize("name", CHAINS)
def test_ensembles(server, region, name, count):
    """Wherever the models of ensembles read: for clients with and without memory on the GPU, and for callers."""
    array, factor = np.arange(count), CHAINS[name][2]
    assert_array_equal(server.infer(name, {"IN": array}).as_numpy("OUT"), array * factor)
    one, two = region(GRPC, array.nbytes), region(GRPC, array.nbytes)
    one.put(array)
    infer(server, GRPC, name, [on_gpu(GRPC, array, one)], [to_gpu(GRPC, two, array.nbytes)])
    assert_array_equal(two.get(array), array * factor)
    result = server.infer("prefers", {"IN": array}, request_id=name)
    assert_array_equal(result.as_numpy("OUT"), array * factor)
    assert told(result)["is_cpu"] is (name not in ("chain", "nested", "from_cpu"))


@BOTH
@SIZES
def test_memory_of_a_client(server, machine, region, protocol, count):
    """Inputs in the memory of a client arrive on the GPU, and outputs land there."""
    array = np.arange(count)
    one, two = region(protocol, array.nbytes + 16), region(protocol, array.nbytes + 24)
    one.put(array, 16)
    two.put(np.full(two.size, 9, np.uint8))
    inputs, outputs = [on_gpu(protocol, array, one, 16)], [to_gpu(protocol, two, array.nbytes, 16)]
    for name, factor, was_cpu in (("treble", 3, False), ("from_main_memory", 3, True)):
        result = infer(server, protocol, name, inputs, outputs)
        assert told(result)["was_cpu"] is was_cpu
        assert_array_equal(two.get(array, 16), array * factor)
        assert (two.get(np.empty(16, np.uint8)) == 9).all()
        assert (two.get(np.empty(8, np.uint8), 16 + array.nbytes) == 9).all()
    assert_array_equal(one.get(array, 16), array)


@pytest.mark.parametrize(
    ("name", "id", "factor"),
    [("treble", "", 3), ("chain", "", 9), ("nested", "", 27), ("passes_on", "chain", 9), ("passes_on", "nested", 27)],
)
def test_no_main_memory(server, machine, region, name, id, factor):
    """From a client's memory through models to a client's memory nothing is copied to main memory, or from there.

    So it is in ensembles, also in ensembles of those, and where a model calls one.
    """
    array = np.arange(300_000)
    one, two = region(GRPC, array.nbytes), region(GRPC, array.nbytes)
    one.put(array)
    inputs, outputs = [on_gpu(GRPC, array, one)], [to_gpu(GRPC, two, array.nbytes)]
    with server.grpc() as client:
        client.infer(name, inputs, outputs=outputs, request_id=id)  # the first time a broker may start
        two.put(np.zeros_like(array))
        with machine.without_main_memory():
            client.infer(name, inputs, outputs=outputs, request_id=id)
    assert_array_equal(two.get(array), array * factor)


@BOTH
def test_memory_of_a_client_that_is_not_aligned(server, region, protocol):
    """Such an input is copied: frameworks may not read it there."""
    array = np.arange(1000)
    one = region(protocol, array.nbytes + 8)
    one.put(array, 8)
    result = infer(server, protocol, "treble", [on_gpu(protocol, array, one, 8)])
    assert_array_equal(result.as_numpy("OUT"), array * 3)
    assert told(result)["was_cpu"] is True


@BOTH
@pytest.mark.parametrize("names", [[], ["treble"], ["from_main_memory"], ["chain", "reads_numpy"]])
def test_memory_may_be_freed(server, gpus, protocol, names):
    """As soon as a region is unregistered the client may free its memory: no process has it open any more."""
    array = np.arange(1000)
    for _ in range(5):
        one = Region(server, protocol, gpus[0], array.nbytes)
        one.put(array)
        for name in names:
            infer(server, protocol, name, [on_gpu(protocol, array, one)])
        one.end()
        gpus[0].free(one.pointer)


@BOTH
@SIZES
def test_as_numpy_without_a_context(server, region, protocol, count):
    """A process that reads a tensor on the GPU in main memory only has it from the broker, and does not use the GPU."""
    array = np.arange(count)
    one = region(protocol, array.nbytes)
    one.put(array)
    result = infer(server, protocol, "reads_numpy", [on_gpu(protocol, array, one)])
    assert_array_equal(result.as_numpy("OUT"), array * 3)
    assert_array_equal(one.get(array), array)
    assert told(result)["was_cpu"] is False
    assert not uses_a_gpu(told(result)["pid"])


def test_metrics(server, gpus):
    """The page has the memory that models lease, and what they were asked, by the UUID of their GPU."""
    server.infer("chain", {"IN": np.arange(10)})
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    uuid = gpus[0].properties().uuid
    (leased,) = re.findall(f'^pyruntime_gpu_pool_bytes{{gpu_uuid="{uuid}",state="leased"}} (.*)$', page, re.MULTILINE)
    assert float(leased) > 0
    labels = [each for each in re.findall("^nv_inference_count{(.*?)} [1-9]", page, re.MULTILINE) if '"treble"' in each]
    assert any(f'gpu_uuid="{uuid}"' in each for each in labels)


@pytest.mark.parametrize(
    ("name", "known"), [("killer", "tensor"), ("killer", "memory"), ("killer", "nothing"), ("killer_on_cpu", "nothing")]
)
def test_process_is_killed(server, wait_until, name, known):
    """Others read what a killed process wrote, until they let go of it; the next request has another process.

    They need not have waited for it before, nor know the memory. The server need not know of the end.
    """
    array = np.arange(1000)
    result = server.infer(name, {"IN": array}, request_id=known)
    assert_array_equal(result.as_numpy("OUT"), array * 30)
    killed = {told(result)["killed"]}  # the server may not know of it yet
    wait_until(lambda: {stub.pid for stub in server.stubs("mortal_0_0")} - killed)
    wait_until(lambda: server.client().is_model_ready("mortal"))


def test_memory_stays_flat(server, machine, gpus, region):
    """Many requests take no memory: not on the GPU, not in the processes, and no descriptors."""
    array = np.arange(1000)
    one = region(GRPC, array.nbytes)
    one.put(array)
    with server.grpc() as client:

        def use(count):
            for turn in range(count):
                name = ("treble", "caller", "chain", "nested")[turn % 4]
                client.infer(name, [on_gpu(GRPC, array, one)], outputs=[to_gpu(GRPC, one, array.nbytes)])
                one.put(array)

        use(50)
        before = usage(server, gpus[0])
        use(200 if isinstance(machine, StandInMachine) else 10_000)
        after = usage(server, gpus[0])
    for what, most in (("descriptors", 8), ("main memory", 64 << 20), ("GPU", 64 << 20)):
        assert after[what] - before[what] <= most, (what, before, after)


def usage(server, gpu):
    """What the processes of the server use. Others may use some of the GPU."""
    properties = gpu.properties()
    family = [process.pid for process in server.family()]
    return {
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in family),
        "main memory": sum(private_bytes(pid) for pid in family),
        "GPU": properties.total_bytes - properties.free_bytes,
    }


def private_bytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def test_contexts(server, monkeypatch):
    """The server has none of the GPU. The broker has one, and so has each process that computes there, and no other."""
    array = np.arange(10)
    for name in ("chain", "on_cpu", "reads_numpy"):
        server.infer(name, {"IN": array})
    family = {process.pid: process.title for process in server.family()}
    monkeypatch.syspath_prepend(BENCHMARKS)
    users = import_module("gpu_contexts").context_holders([server.process.pid, *family])
    if users is None:
        pytest.skip("NVML does not list the processes of this machine by their numbers here")
    (broker,) = brokers(server)
    assert server.process.pid not in users
    assert broker.pid in users
    titles = {family[pid].removeprefix("triton_python_backend_stub ") for pid in users if pid != broker.pid}
    assert titles >= {"treble_0_0", "again_0_0"}
    assert titles <= ON_GPU


def uses_a_gpu(pid):
    """Whether the process has the driver, or memory of the stand-in."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return "libcuda.so" in maps or "pyruntime stand-in" in maps
