# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs that torch computes in memory which other processes can open.

On machines without a GPU a small framework on the stand-in calls the allocator's functions in the place of torch, each
time that it needs memory; the tests with torch are marked `gpu`.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tritonclient.utils import InferenceServerException

from tests.e2e.harness.frameworks import STAND_IN_ARRAY, TORCH
from tests.e2e.harness.gpu_machines import GROUP, READS_GPU, machine_with
from tests.e2e.harness.gpu_regions import told
from tests.plugins.gpus import StandInMachine

# Each defines `Pool(byte_size)`, whose `times` computes in memory that others can open.
STAND_IN_POOL = (
    STAND_IN_ARRAY
    + '''
import ctypes
import sys
from types import SimpleNamespace
import pyruntime

class CUDAPluggableAllocator:
    """torch's, as far as it is used."""
    def __init__(self, path, malloc, free):
        library = ctypes.CDLL(path)
        self.malloc, self.free = library[malloc], library[free]
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.malloc.restype = ctypes.c_void_p
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

cuda = SimpleNamespace(is_available=lambda: True, memory=SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator))
sys.modules["torch"] = SimpleNamespace(__version__="of the tests", cuda=cuda)

class Pool:
    def __init__(self, byte_size):
        allocator = pyruntime.torch_allocator(byte_size)

        class InPool(Array):
            def allocate(self, size):
                self.size = size
                return allocator.malloc(size, 0, None)

            def free(self):
                allocator.free(self.pointer, self.size, 0, None)

        self.array = InPool

    def times(self, array, factor):
        return self.array(array.read() * factor)
'''
)
TORCH_POOL = (
    TORCH
    + """
import pyruntime

class Pool:
    def __init__(self, byte_size):
        self.allocator = pyruntime.torch_allocator(byte_size)
        self.pool = torch.cuda.MemPool(self.allocator.allocator())

    def times(self, array, factor):
        with torch.cuda.use_mem_pool(self.pool):
            return array * factor
"""
)
# Trebles its input in a pool of so many bytes, and says how often it has copied on the GPU.
MAKE = """
from pyruntime.stub.gpus import gpu_of

class TritonPythonModel:
    def initialize(self, args):
        self.pool = Pool(BYTES)
        self.copies = []
        gpu = gpu_of(0)
        copy = gpu.copy

        def counted(*arguments):
            self.copies.append(arguments)
            copy(*arguments)

        gpu.copy = counted

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        output = self.pool.times(make(request.inputs()[0].as_numpy()), 3)
        output = pb_utils.Tensor.from_dlpack("OUT", output)
        assert not output.is_cpu()
        return pb_utils.InferenceResponse([output], parameters={"copies": len(self.copies)})
"""
# Reads its input on the GPU, and keeps it if it is told so: "check" is for all that it has kept.
READ = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor = request.inputs()[0]
        assert not tensor.is_cpu()
        if request.request_id() == "keep":
            self.kept.append(tensor)
        read = self.kept if request.request_id() == "check" else [tensor]
        array = np.concatenate([back(take(each)) for each in read])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
"""
# Has one model make a tensor and another one read it. The id is that of the request to the reader.
CALL = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        maker, _, id = request.request_id().partition(" ")
        made = self.call(maker, pb_utils.Tensor("IN", request.inputs()[0].as_numpy()), "")
        tensor = made.output_tensors()[0]
        tensor._name = "IN"  # as it is: another tensor over its memory would be copied
        read = self.call("read", tensor, id)
        output = pb_utils.Tensor("OUT", read.output_tensors()[0].as_numpy())
        copies = json.loads(made.parameters())["copies"]
        return pb_utils.InferenceResponse([output], parameters={"copies": copies})

    def call(self, name, tensor, id):
        request = pb_utils.InferenceRequest(
            model_name=name, requested_output_names=["OUT"], inputs=[tensor], request_id=id
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return response
"""


@pytest.fixture(scope="module", params=["stand-in", pytest.param("torch", marks=pytest.mark.gpu)])
def machine(request, tmp_path_factory):
    """The machine, and the framework of its models."""
    with machine_with(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def server(machine, serving, write_model, tmp_path_factory):
    """A server with these models on the first GPU."""
    repository = tmp_path_factory.mktemp("models")
    code = STAND_IN_POOL if isinstance(machine, StandInMachine) else TORCH_POOL
    write_model(repository, "make", code + MAKE.replace("BYTES", str(128 << 20)), more=GROUP)
    # torch asks for 2 MiB at least.
    write_model(repository, "make_beyond", code + MAKE.replace("BYTES", "256"), more=GROUP)
    write_model(repository, "read", code + READ, more=READS_GPU)
    write_model(repository, "call", CALL, more=GROUP)
    with serving(repository) as started:
        yield started


def call(server, array, request_id):
    result = server.infer("call", {"IN": array}, request_id=request_id)
    return result.as_numpy("OUT"), told(result)["copies"]


SIZES = pytest.mark.parametrize("count", [1, 1000, 300_000, 3_000_000])


@SIZES
def test_no_copy(server, count):
    """What is computed in the pool is read by another process, and was not copied."""
    array = np.arange(count)
    found, copies = call(server, array, "make")
    assert_array_equal(found, array * 3)
    assert copies == 0


@SIZES
def test_no_room(server, count):
    """What has no room in the pool is copied, and the model works."""
    array = np.arange(count)
    _, before = call(server, array, "make_beyond")
    found, copies = call(server, array, "make_beyond")
    assert_array_equal(found, array * 3)
    assert copies == before + 1
    assert "make_beyond_0_0: pyruntime.torch_allocator has no room for" in server.log


def test_nothing_is_copied(server, machine):
    """Not by the server either: on a GPU that refuses copies only what needs one fails."""
    if not isinstance(machine, StandInMachine):
        pytest.skip("the driver cannot be told to refuse copies")
    array = np.arange(1000)
    call(server, array, "make")
    with machine.failing(**dict.fromkeys(("copy", "read", "write"), "CUDA_ERROR_NOT_SUPPORTED")):
        found, _ = call(server, array, "make")
        with pytest.raises(InferenceServerException, match="cannot be copied"):
            call(server, array, "make_beyond")
    assert_array_equal(found, array * 3)


def test_kept_tensors(server):
    """The memory of a tensor is not used again as long as somebody reads it, whatever is computed meanwhile."""
    count = 100_000
    for turn in range(20):
        call(server, np.arange(count) + turn, "make keep" if turn % 4 == 0 else "make")
    found, copies = call(server, np.arange(count), "make check")
    expected = [(np.arange(count) + turn) * 3 for turn in range(0, 20, 4)]
    assert_array_equal(found, np.concatenate(expected))
    assert copies == 0


def test_many_at_once(server):
    """Requests at the same time have their own tensors."""
    arrays = [np.arange(5000) + turn for turn in range(100)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda array: call(server, array, "make"), arrays))
    for array, (answer, copies) in zip(arrays, answers, strict=True):
        assert_array_equal(answer, array * 3)
        assert copies == 0


def test_for_a_client(server):
    """A client that is not on the GPU has the output in main memory."""
    array = np.arange(1000)
    assert_array_equal(server.infer("make", {"IN": array}).as_numpy("OUT"), array * 3)


def test_broker_is_lost(server, wait_until):
    """The memory that torch has is gone: the process ends, and the next one has other memory."""
    array = np.arange(1000)
    call(server, array, "make")
    (broker,) = [each for each in server.family() if "broker of GPU 0" in each.title]
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: "make_0_0: stub exited with code 1" in server.log)
    assert "make_0_0: the broker of the GPU was lost, with memory that torch allocates in" in server.log
    with server.client() as client:
        wait_until(lambda: client.is_model_ready("make"))
    found, copies = call(server, array, "make")
    assert_array_equal(found, array * 3)
    assert copies == 0
