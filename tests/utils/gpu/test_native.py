# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Functions in C that allocate memory of a GPU: those of a driver of the tests, and those of the stand-in."""

import ctypes

import pytest

from pyruntime.utils.gpu import cuda
from pyruntime.utils.gpu.cuda import CudaGpu
from pyruntime.utils.gpu.driver import GpuMissingError
from pyruntime.utils.gpu.native import NativeFunctions, of_driver

KINDS = {
    "push": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),
    "pop": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)),
    "allocate": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t),
    "free": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64),
    "settle": ctypes.CFUNCTYPE(ctypes.c_int),
}


def called(functions):
    """The functions, to be called from here."""
    return {name: kind(getattr(functions, name)) for name, kind in KINDS.items()}


def use(functions):
    """Allocate, wait and free as native code does. Returns the pointer."""
    call, pointer, context = called(functions), ctypes.c_uint64(), ctypes.c_void_p()
    assert call["push"](functions.context) == 0
    assert call["allocate"](ctypes.byref(pointer), 1000) == 0
    assert call["settle"]() == 0
    assert call["free"](pointer) == 0
    assert call["free"](pointer) != 0
    assert call["allocate"](ctypes.byref(pointer), 0) != 0
    assert call["pop"](ctypes.byref(context)) == 0
    return context.value


def test_driver(compile_library):
    """The context is current between the first call and the last one."""
    library = str(compile_library("cuda.c"))
    driver, device, context = ctypes.CDLL(library), ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGet(ctypes.byref(device), 1) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    before = driver.fakeBlocks()
    assert use(of_driver(context.value, library)) == context.value
    assert (driver.fakeBlocks(), driver.fakeDepth()) == (before, 0)


@pytest.mark.parametrize("library", ["libnone.so", "libc.so.6"])
def test_no_driver(library):
    """A sentence says what is missing."""
    with pytest.raises(GpuMissingError, match=r"libnone\.so|undefined symbol: cuCtxPushCurrent_v2"):
        of_driver(1, library)


def test_driver_of_a_gpu(monkeypatch):
    """A GPU has the functions of the driver for its own context."""
    monkeypatch.setattr(CudaGpu, "__init__", lambda self: setattr(self, "_context", 77))
    monkeypatch.setattr(cuda, "of_driver", NativeFunctions)
    assert CudaGpu().native().context == 77


def test_stand_in(machine):
    """Its functions are its methods."""
    gpu = machine.gpu()
    use(gpu.native())
    assert gpu.properties().free_bytes == gpu.properties().total_bytes


def test_stand_in_that_fails(machine):
    """A function says so."""
    functions = machine.gpu().native()  # held: the functions are valid as long as it is
    settle = called(functions)["settle"]
    with machine.failing(settle="CUDA_ERROR_NOT_SUPPORTED"):
        assert settle() != 0
    assert settle() == 0
