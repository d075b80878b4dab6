# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The allocator for torch: its library, called as torch calls it, over a GPU of the stand-in or main memory."""

import ctypes
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import pyruntime
from pyruntime.stub import host, torch_allocator
from pyruntime.stub.host import Host
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.torch_allocator import FREE, LIBRARY, MALLOC
from pyruntime.utils.gpu.driver import gpu_error
from pyruntime.utils.gpu.native import NativeFunctions

RANGE = 1 << 16
BLOCK = 512


class Allocator:
    """A copy of the library, with a state of its own."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.malloc, self.free = self.library[MALLOC], self.library[FREE]
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.malloc.restype = ctypes.c_void_p
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.library.torch_allocator_add.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
        self.log = []
        self.use()

    def use(self, device=0, **results):
        """Have a driver that notes calls, and has one block, at 1 << 40. `results` are those of calls that fail."""

        def noting(name, kind, act=lambda *_: None):
            def call(*arguments):
                self.log.append(name)
                act(*arguments)
                return results.get(name, 0)

            return kind(call)

        def allocate(pointer, size):
            pointer[0] = 1 << 40

        self.functions = [
            noting("push", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
            noting("pop", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
            noting(
                "allocate", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t), allocate
            ),
            noting("free", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)),
            noting("settle", ctypes.CFUNCTYPE(ctypes.c_int)),
        ]
        addresses = [ctypes.cast(function, ctypes.c_void_p) for function in self.functions]
        assert self.library.torch_allocator_use(device, ctypes.byref(NativeFunctions(1, *addresses))) == 0

    def add(self, begin, size, device=0):
        assert self.library.torch_allocator_add(device, begin, size) == 0

    def allocate(self, size, device=0):
        return self.malloc(size, device, None)

    def release(self, pointer, device=0):
        self.free(pointer, 1, device, None)


@pytest.fixture
def allocator(tmp_path):
    path = tmp_path / "allocator.so"
    shutil.copy(LIBRARY, path)
    return Allocator(path)


def test_blocks(allocator):
    """They follow each other, and what is free is used again, as one block with its neighbours."""
    allocator.add(1 << 20, 4 * BLOCK)
    blocks = [allocator.allocate(size) for size in (1, BLOCK, BLOCK + 1)]
    assert blocks == [(1 << 20) + at * BLOCK for at in (0, 1, 2)]
    assert allocator.log == []
    for at in (1, 0, 2):
        allocator.release(blocks[at])
    assert allocator.log == ["push", "settle", "pop"] * 3
    assert allocator.allocate(4 * BLOCK) == 1 << 20


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_free_blocks_join(allocator, order):
    """In whatever order they become free."""
    allocator.add(1 << 20, 3 * BLOCK)
    blocks = [allocator.allocate(BLOCK) for _ in range(3)]
    for at in order:
        allocator.release(blocks[at])
    assert allocator.allocate(3 * BLOCK) == 1 << 20


def test_ranges_do_not_join(allocator):
    """Not even neighbours: a tensor is in one range."""
    allocator.add((1 << 20) + BLOCK, BLOCK)
    allocator.add(1 << 20, BLOCK)
    for block in [allocator.allocate(BLOCK) for _ in range(2)]:
        allocator.release(block)
    assert allocator.allocate(2 * BLOCK) == 1 << 40


def test_no_room(allocator):
    """Then memory is the driver's, and goes back to it."""
    allocator.add(1 << 20, BLOCK)
    assert allocator.allocate(BLOCK + 1) == 1 << 40
    allocator.release(1 << 40)
    assert allocator.log == ["push", "allocate", "pop", "push", "settle", "free", "pop"]


def test_devices(allocator):
    """A range is for its own GPU, and so are functions."""
    allocator.use(1)
    allocator.add(1 << 20, BLOCK, 1)
    assert allocator.allocate(BLOCK, 0) == 1 << 40
    assert allocator.allocate(BLOCK, 1) == 1 << 20
    assert allocator.allocate(BLOCK, 2) is None
    assert allocator.allocate(BLOCK, -1) is None
    assert allocator.allocate(BLOCK, 64) is None
    assert allocator.library.torch_allocator_use(64, None) == -1


@pytest.mark.parametrize("call", ["push", "allocate"])
def test_the_driver_refuses(allocator, call):
    """torch is told by NULL, and the context is as it was."""
    allocator.use(**{call: 2})
    assert allocator.allocate(BLOCK) is None
    assert allocator.log.count("pop") == (call == "allocate")


def test_sizes_that_are_none(allocator):
    """They have no memory."""
    allocator.add(1 << 20, BLOCK)
    assert allocator.allocate(0) is None
    assert allocator.allocate(-1) is None
    allocator.release(None)
    assert allocator.log == []


def test_lost_gpu(allocator):
    """A block is free also if the GPU cannot be waited for."""
    allocator.add(1 << 20, BLOCK)
    block = allocator.allocate(BLOCK)
    allocator.use(push=700)
    allocator.release(block)
    assert allocator.allocate(BLOCK) == block


@pytest.fixture
def torch_threads(compile_library):
    """tests/native/torch_threads.c. The caller of its functions has the GIL, and keeps it."""
    return ctypes.PyDLL(str(compile_library("torch_threads.c")))


def test_threads(allocator, torch_threads):
    """Threads share no memory, and none needs the GIL, which this one has while it waits for them."""
    memory = np.zeros(RANGE, np.uint8)
    functions = [getattr(torch_threads, name) for name in ("push", "pop", "allocate", "release_", "settle")]
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    allocator.library.torch_allocator_use(0, ctypes.byref(NativeFunctions(1, *addresses)))
    allocator.add(memory.ctypes.data, RANGE)
    assert torch_threads.useInThreads(allocator.malloc, allocator.free, 8, 2000) == 0
    assert torch_threads.blocksOfDriver() == 0
    assert allocator.allocate(RANGE) == memory.ctypes.data


@pytest.fixture
def torch(monkeypatch):
    """A module that has as much of torch as is used."""
    memory = SimpleNamespace(CUDAPluggableAllocator=lambda *arguments: arguments)
    module = SimpleNamespace(__version__="2.0", cuda=SimpleNamespace(is_available=lambda: True, memory=memory))
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def on_gpu(monkeypatch, allocator):
    """A model on GPU 1 of its process: `reserves` has what it asks for, and `found` what it gets."""
    model = SimpleNamespace(gpu=1, reserves=[], found=(1 << 20, 2 * BLOCK))

    def reserve(gpu, size, lacked):
        model.reserves.append((gpu, size))
        model.lacked = lacked
        return model.found

    class OnGpu(Host):
        def gpu_memory(self):
            return model.gpu, SimpleNamespace(reserve=reserve)

    functions = NativeFunctions()
    monkeypatch.setattr(torch_allocator, "gpu_of", lambda number: SimpleNamespace(native=lambda: functions))
    monkeypatch.setattr(torch_allocator, "_library", lambda: allocator.library)
    monkeypatch.setattr(host, "_host", OnGpu())
    return model


def test_torch_is_given_the_library(on_gpu, torch, allocator):
    """It has the memory that was leased, on the GPU of the model."""
    assert pyruntime.torch_allocator(2 * BLOCK) == (LIBRARY, MALLOC, FREE)
    assert on_gpu.reserves == [(1, 2 * BLOCK)]
    assert allocator.allocate(2 * BLOCK, 1) == 1 << 20
    assert on_gpu.lacked() == 0
    allocator.allocate(1, 1)
    assert on_gpu.lacked() == BLOCK
    assert pyruntime.torch_allocator(BLOCK) == (LIBRARY, MALLOC, FREE)


def test_nothing_can_be_leased(on_gpu, torch, allocator):
    """The model works with the memory of the driver."""
    on_gpu.found = None
    assert pyruntime.torch_allocator(2 * BLOCK) == (LIBRARY, MALLOC, FREE)
    allocator.use(1)
    assert allocator.allocate(BLOCK, 1) == 1 << 40


def test_a_gpu_that_the_library_has_no_room_for(on_gpu, torch):
    """A sentence says so, and nothing is leased."""
    on_gpu.gpu = 64
    with pytest.raises(TritonModelException, match="GPU 64 of this process is one too many"):
        pyruntime.torch_allocator(BLOCK)
    assert on_gpu.reserves == []


def test_no_main_memory_for_the_library(on_gpu, torch, monkeypatch):
    """The model is told that torch does not have what was leased."""
    library = SimpleNamespace(
        torch_allocator_use=lambda *_: 0, torch_allocator_add=lambda *_: -1, torch_allocator_lacked=None
    )
    monkeypatch.setattr(torch_allocator, "_library", lambda: library)
    with pytest.raises(TritonModelException, match="no main memory is left"):
        pyruntime.torch_allocator(BLOCK)


def test_outside_a_model(monkeypatch, torch):
    """There is no server to ask."""
    monkeypatch.setattr(host, "_host", None)
    with pytest.raises(TritonModelException, match="not possible outside a model"):
        pyruntime.torch_allocator(BLOCK)


def test_on_no_gpu(monkeypatch, torch):
    """An instance without a GPU of its own has no memory of one."""
    monkeypatch.setattr(host, "_host", Host())
    with pytest.raises(TritonModelException, match="this instance is on no GPU"):
        pyruntime.torch_allocator(BLOCK)


def test_torch_without_cuda(on_gpu, torch):
    """A sentence says so, and nothing is leased."""
    torch.cuda.is_available = lambda: False
    with pytest.raises(TritonModelException, match=r"torch 2\.0 cannot use a GPU here"):
        pyruntime.torch_allocator(BLOCK)
    assert on_gpu.reserves == []


def test_a_model_that_has_hidden_its_gpu_has_no_memory_of_it(on_gpu, torch, monkeypatch):
    """By CUDA_VISIBLE_DEVICES."""

    def unseen():
        raise gpu_error("CUDA_ERROR_INVALID_DEVICE", "open", "this process does not see GPU GPU-1")

    monkeypatch.setattr(host.get_host(), "gpu_memory", unseen)
    with pytest.raises(TritonModelException, match="the instance's GPU: this process does not see GPU GPU-1"):
        pyruntime.torch_allocator(BLOCK)


@pytest.mark.parametrize("size", [0, -1])
def test_no_size(on_gpu, torch, size):
    """Nothing is no memory."""
    with pytest.raises(TritonModelException, match="a positive number of bytes"):
        pyruntime.torch_allocator(size)
