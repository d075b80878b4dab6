# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The driver's GPU, by a module that stands for the package. The contract is in test_contract.py."""

import importlib
import inspect
import re
import sys
from types import SimpleNamespace

import pytest

from pyruntime.utils.gpu.cuda import CudaGpu
from pyruntime.utils.gpu.driver import GpuHandleError, GpuLostError, GpuMemoryError, GpuMissingError, GpuProperties
from pyruntime.utils.gpu.inventory import STAND_IN, device_of, open_gpu, seen_by_cuda
from tests.utils.gpu.fake_driver import CUdevice_attribute, CUpointer_attribute, CUresult, FakeDriver

PACKAGE = "cuda.bindings.driver"


@pytest.fixture
def driver(monkeypatch):
    """The package."""
    fake = FakeDriver()
    monkeypatch.setitem(sys.modules, PACKAGE, fake)
    monkeypatch.delenv(STAND_IN, raising=False)
    return fake


def test_memory(driver):
    """Memory is written, copied, read, exported, opened and freed. The context is current only during a call."""
    gpu = CudaGpu()
    first, second = gpu.allocate(8), gpu.allocate(8)
    gpu.write(first, memoryview(b"abcdefgh"))
    gpu.copy(second, first, 8)
    target = bytearray(8)
    gpu.read(second, target)
    assert target == b"abcdefgh"
    assert gpu.size(first) == 8
    handle = gpu.export(first)
    assert (len(handle), gpu.open(handle)) == (64, first)
    gpu.close(first)
    gpu.free(first)
    assert driver.contexts == []
    assert driver.log.count("cuCtxPushCurrent") == driver.log.count("cuCtxPopCurrent")


def test_copies_are_complete(driver):
    """The method waits for a copy to or from main memory, and not for one on the GPU. Nothing is no copy."""
    gpu = CudaGpu()
    pointer = gpu.allocate(8)
    driver.log.clear()
    gpu.write(pointer, b"x")
    gpu.read(pointer, bytearray(1))
    gpu.copy(pointer + 4, pointer, 1)
    gpu.write(pointer, b"")
    gpu.read(pointer, bytearray())
    assert [name for name in driver.log if "Ctx" not in name] == [
        "cuMemcpyHtoDAsync",
        "cuStreamSynchronize",
        "cuMemcpyDtoHAsync",
        "cuStreamSynchronize",
        "cuMemcpyAsync",
    ]


def test_settle(driver):
    """All work of the context is waited for."""
    CudaGpu().settle()
    assert driver.log[-3:] == ["cuCtxPushCurrent", "cuCtxSynchronize", "cuCtxPopCurrent"]


def test_events(driver):
    """Events are made for other processes, and order the stream of the copies."""
    gpu = CudaGpu()
    driver.log.clear()
    event = gpu.create_event()
    gpu.record(event)
    seen = gpu.open_event(gpu.export_event(event))
    gpu.wait(seen)
    gpu.synchronize(seen)
    gpu.destroy_event(seen)
    assert [name for name in driver.log if "Event" in name] == [
        "cuEventCreate",
        "cuEventRecord",
        "cuIpcGetEventHandle",
        "cuIpcOpenEventHandle",
        "cuStreamWaitEvent",
        "cuEventSynchronize",
        "cuEventDestroy",
    ]


def test_streams_of_others(driver, monkeypatch):
    """Another stream waits for an event that is recorded in that of the copies. The process waits for nothing."""
    gpu = CudaGpu()
    steps = []
    monkeypatch.setattr(driver, "cuEventRecord", lambda *arguments: steps.append(arguments) or ())
    monkeypatch.setattr(driver, "cuStreamWaitEvent", lambda *arguments: steps.append(arguments) or ())
    gpu.order(2)
    assert gpu.stream == 0x7F0000001000
    assert steps == [(72, gpu.stream), (2, 72, 0)]


def test_gpu_of_a_pointer(driver):
    """The driver knows where memory of a framework lies. No context is made for the question."""
    pointer = CudaGpu().allocate(1)
    driver.log.clear()
    assert device_of(pointer) == 3
    assert driver.log == ["cuInit", "cuPointerGetAttribute"]


def test_properties(driver):
    """The properties, with the UUID as CUDA_VISIBLE_DEVICES has it."""
    assert CudaGpu(0).properties() == GpuProperties(
        0, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "NVIDIA A100-SXM4-40GB", (8, 9), 40, 30, False
    )


def test_size_within_an_allocation(driver, monkeypatch):
    """A handle may lead into an allocation, which the driver has divided: what is before the pointer does not count."""
    monkeypatch.setattr(driver, "cuMemGetAddressRange", lambda dptr: (dptr - 512, 2048))
    assert CudaGpu().size(4096) == 1536


def test_slices(driver, monkeypatch):
    """A slice has its own UUID, which older packages have by a function of its own."""
    newer = SimpleNamespace(bytes=bytes(range(1, 17)))
    monkeypatch.setattr(driver, "cuDeviceGetName", lambda *_: b"NVIDIA A100 MIG 1g.5gb\0")
    monkeypatch.setattr(driver, "cuDeviceGetUuid_v2", lambda _: newer, raising=False)
    properties = CudaGpu().properties()
    assert (properties.uuid, properties.is_slice) == ("MIG-01020304-0506-0708-090a-0b0c0d0e0f10", True)


def test_the_gpus_of_a_process_are_asked_of_the_driver_once_it_is_initialized(driver, monkeypatch):
    """And are not known before. The driver is not initialized for the question."""
    driver.fails["cuDeviceGetCount"] = "CUDA_ERROR_NOT_INITIALIZED"
    assert seen_by_cuda() is None
    driver.fails.clear()
    assert seen_by_cuda() == ["GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"] * 2
    assert "cuInit" not in driver.log


def test_errors(driver):
    """A result is an error of its kind, with the driver's explanation, and leaves no context current."""
    gpu = open_gpu()
    driver.fails["cuMemAlloc"] = "CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(GpuMemoryError, match="cuMemAlloc: out of memory"):
        gpu.allocate(8)
    driver.fails["cuMemFree"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(GpuLostError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        gpu.free(8)
    with pytest.raises(GpuHandleError):
        gpu.open(b"short")
    assert driver.contexts == []


def test_handle_of_nobody(driver):
    """A handle that a client has made up is no loss of the GPU, whatever the driver says to it."""
    gpu = CudaGpu()
    handle = gpu.export(gpu.allocate(8))
    driver.fails["cuIpcOpenMemHandle"] = "CUDA_ERROR_UNKNOWN"
    with pytest.raises(GpuHandleError, match="CUDA_ERROR_UNKNOWN"):
        gpu.open(handle)
    driver.fails["cuIpcOpenMemHandle"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(GpuLostError):
        gpu.open(handle)


def test_no_gpu(driver):
    """A number that no GPU has."""
    driver.fails["cuDeviceGet"] = "CUDA_ERROR_INVALID_DEVICE"
    with pytest.raises(GpuMissingError):
        CudaGpu(3)


def test_no_driver(driver, monkeypatch):
    """The package is there and finds no driver."""

    def fail(Flags):
        raise RuntimeError("the driver is not installed")

    monkeypatch.setattr(driver, "cuInit", fail)
    with pytest.raises(GpuMissingError, match="the driver is not installed"):
        CudaGpu()


def test_no_package(monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(GpuMissingError, match=r"install pyruntime\[cuda\]"):
        CudaGpu()


@pytest.mark.processes  # the package looks for libraries
def test_the_package_has_these_functions():
    """The module of these tests has the functions, parameters and numbers of the real package."""
    try:
        real = importlib.import_module(PACKAGE)
    except ImportError:
        pytest.skip("cuda-bindings is not installed: pip install -e .[cuda]")
    for name, function in vars(FakeDriver).items():
        if name.startswith("cu"):
            (text,) = re.findall(rf"^{name}\((.*)\)", getattr(real, name).__doc__)
            expected = text.count(",") + 1 if text else 0
            assert len(inspect.signature(function).parameters) - 1 == expected, (name, text)
    for kind in (CUresult, CUdevice_attribute, CUpointer_attribute):
        for member in kind:
            assert getattr(getattr(real, kind.__name__), member.name) == member.value
