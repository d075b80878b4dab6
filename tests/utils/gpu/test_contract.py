# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What every GPU does, by the stand-in, and by NVIDIA's driver where there is a GPU."""

import pytest

from pyruntime.utils.gpu.driver import GpuError, GpuHandleError, GpuMemoryError
from pyruntime.utils.gpu.inventory import device_of
from tests.plugins.gpus import gpu_of_this_machine
from tests.utils.gpu.peers import Refused

pytestmark = pytest.mark.processes


@pytest.fixture(params=["stand-in", pytest.param("driver", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    """A GPU."""
    if request.param == "stand-in":
        return request.getfixturevalue("stand_in")
    return gpu_of_this_machine(monkeypatch)


def read(gpu, pointer, size):
    target = bytearray(size)
    gpu.read(pointer, target)
    return bytes(target)


def test_memory(gpu):
    """What is written is read again, also in parts."""
    pointer = gpu.allocate(1000)
    assert gpu.size(pointer) >= 1000
    gpu.write(pointer, b"abcdef")
    gpu.write(pointer + 2, bytearray(b"XY"))
    gpu.write(pointer, b"")
    assert read(gpu, pointer, 6) == b"abXYef"
    assert read(gpu, pointer + 3, 2) == b"Ye"
    assert read(gpu, pointer, 0) == b""
    gpu.free(pointer)


def test_copy(gpu):
    """Memory is copied on the GPU."""
    source, target = gpu.allocate(16), gpu.allocate(16)
    gpu.write(source, b"0123456789abcdef")
    gpu.copy(target + 4, source + 8, 8)
    gpu.settle()
    assert read(gpu, target + 4, 8) == b"89abcdef"
    gpu.free(source)
    gpu.free(target)


def test_streams(gpu):
    """The stream of the copies is not one of CUDA's own, which can be ordered behind it."""
    assert gpu.stream not in (0, 1, 2)
    gpu.order(1)
    gpu.order(2)


def test_gpu_of_a_pointer(gpu):
    """Memory lies on the GPU that it was allocated on."""
    pointer = gpu.allocate(16)
    assert device_of(pointer + 8) == 0
    gpu.free(pointer)


def test_too_much_memory(gpu):
    """There is not more memory than the GPU has."""
    with pytest.raises(GpuMemoryError):
        gpu.allocate(gpu.properties().total_bytes + 1)


def test_properties(gpu):
    """A GPU says what it is, and no more is free than there is."""
    properties = gpu.properties()
    assert properties.ordinal == 0
    assert properties.uuid.startswith(("GPU-", "MIG-"))
    assert 0 < properties.free_bytes <= properties.total_bytes
    assert properties.compute_capability >= (5, 0)


def test_another_process_reads_and_writes(gpu, peers):
    """Memory that is exported is the same memory in the process that opens it."""
    peer = peers()
    pointer = gpu.allocate(100)
    gpu.write(pointer, b"from here")
    there = peer.open(gpu.export(pointer))
    assert peer.read(there, 9) == b"from here"
    assert peer.size(there) >= 100
    peer.write(there + 50, b"from there")
    assert read(gpu, pointer + 50, 10) == b"from there"
    peer.close(there)
    gpu.free(pointer)


def test_open_twice(gpu, peers):
    """A handle that is open is counted: it is the same pointer, and stays open until the last close."""
    peer = peers()
    pointer = gpu.allocate(10)
    gpu.write(pointer, b"x")
    handle = gpu.export(pointer)
    there = peer.open(handle)
    assert peer.open(handle) == there
    peer.close(there)
    assert peer.read(there, 1) == b"x"
    peer.close(there)
    with pytest.raises(Refused, match="GpuHandleError"):
        peer.close(there)
    gpu.free(pointer)


def test_own_handle(gpu):
    """A process cannot open what it exported."""
    pointer = gpu.allocate(10)
    with pytest.raises(GpuHandleError):
        gpu.open(gpu.export(pointer))
    gpu.free(pointer)


def test_wrong_handles(gpu):
    """Bytes that are no handle are refused."""
    with pytest.raises(GpuError):
        gpu.open(bytes(64))
    with pytest.raises(GpuHandleError):
        gpu.open(b"short")
    with pytest.raises(GpuHandleError):
        gpu.open_event(b"short")


def test_events_order_processes(gpu, peers):
    """A process that waits for an event of another one sees what that copied before."""
    peer = peers()
    source, target = gpu.allocate(4), gpu.allocate(4)
    event = gpu.create_event()
    there, seen = peer.open(gpu.export(target)), peer.open_event(gpu.export_event(event))
    gpu.write(source, b"done")
    gpu.copy(target, source, 4)
    gpu.record(event)
    peer.wait(seen)
    assert peer.read(there, 4) == b"done"
    gpu.synchronize(event)
    peer.destroy_event(seen)
    peer.close(there)
    gpu.destroy_event(event)
    gpu.free(source)
    gpu.free(target)


def test_event_twice(gpu, peers):
    """A process may open an event again, as a broker does for each memory that a stub writes, and close them apart."""
    peer = peers()
    event = gpu.create_event()
    gpu.record(event)
    handle = gpu.export_event(event)
    first, second = peer.open_event(handle), peer.open_event(handle)
    peer.destroy_event(first)
    peer.wait(second)
    peer.synchronize(second)
    peer.destroy_event(second)
    gpu.destroy_event(event)
