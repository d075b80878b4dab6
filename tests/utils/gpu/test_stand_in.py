# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-in refuses what the driver leaves undefined, and fails on request."""

import pytest

from pyruntime.utils.gpu.driver import GpuError, GpuHandleError, GpuLostError, GpuMemoryError, GpuMissingError
from pyruntime.utils.gpu.inventory import open_gpu
from pyruntime.utils.gpu.stand_in import StandInGpu
from tests.own_descriptors import own_descriptors
from tests.utils.gpu.peers import Refused


@pytest.mark.processes
def test_free_while_open(stand_in, peers):
    """Memory that another process has open is not freed, until that closes it or ends."""
    first, second = peers(), peers()
    pointer = stand_in.allocate(10)
    handle = stand_in.export(pointer)
    there = first.open(handle)
    second.open(handle)
    with pytest.raises(GpuHandleError, match="has the memory open"):
        stand_in.free(pointer)
    first.close(there)
    with pytest.raises(GpuHandleError, match="has the memory open"):
        stand_in.free(pointer)
    second.end()
    stand_in.free(pointer)


@pytest.mark.processes
def test_owner_has_ended(stand_in, peers):
    """Memory and events of a process that has ended are not used any more, whether they are open or not."""
    peer = peers()
    handle, event = peer.export(peer.allocate(10)), peer.export_event(peer.create_event())
    pointer, seen = stand_in.open(handle), stand_in.open_event(event)
    peer.end()
    for use in (
        lambda: stand_in.write(pointer, b"x"),
        lambda: stand_in.read(pointer, bytearray(1)),
        lambda: stand_in.wait(seen),
    ):
        with pytest.raises(GpuHandleError, match="has ended"):
            use()
    stand_in.close(pointer)
    stand_in.destroy_event(seen)
    with pytest.raises(GpuHandleError):
        stand_in.open(handle)


@pytest.mark.processes
def test_freed_by_its_owner(stand_in, peers):
    """A handle is invalid once its memory is freed."""
    peer = peers()
    pointer = peer.allocate(10)
    handle = peer.export(pointer)
    peer.free(pointer)
    with pytest.raises(GpuHandleError):
        stand_in.open(handle)


@pytest.mark.processes
def test_use_before_the_event(stand_in, peers):
    """A copy of another process is not read before an event behind it: not without one, and not with an earlier one."""
    peer = peers()
    source, target, event = peer.allocate(4), peer.allocate(4), peer.create_event()
    here, seen = stand_in.open(peer.export(target)), stand_in.open_event(peer.export_event(event))
    peer.write(source, b"abcd")
    with pytest.raises(GpuError, match="never recorded"):
        stand_in.wait(seen)
    peer.copy(target, source, 4)
    peer.record(event)
    with pytest.raises(GpuError, match="no event"):
        stand_in.read(here, bytearray(4))
    stand_in.wait(seen)
    stand_in.read(here, bytearray(4))
    peer.copy(target, source, 4)
    with pytest.raises(GpuError, match="no event"):
        stand_in.read(here, bytearray(4))


@pytest.mark.processes
def test_complete_copies(stand_in, peers):
    """A copy that its process has waited for is complete, and needs no event."""
    peer = peers()
    source, target = peer.allocate(4), peer.allocate(4)
    here = stand_in.open(peer.export(target))
    peer.copy(target, source, 4)
    with pytest.raises(GpuError, match="no event"):
        stand_in.read(here, bytearray(4))
    peer.settle()
    stand_in.read(here, bytearray(4))


@pytest.mark.processes
def test_streams_of_frameworks(stand_in, peers):
    """A stream of a framework must be behind our copies, and behind those that we waited for, before it reads them."""
    peer = peers()
    source, target, event = peer.allocate(4), peer.allocate(4), peer.create_event()
    there, seen = stand_in.open(peer.export(target)), stand_in.open_event(peer.export_event(event))
    own = stand_in.allocate(4)
    peer.copy(target, source, 4)
    peer.record(event)
    stand_in.wait(seen)
    stand_in.copy(own, there, 4)
    for pointer in (there, own):
        with pytest.raises(GpuError, match="nothing orders stream 5"):
            stand_in.read_by(5, pointer, bytearray(4))
    stand_in.order(5)
    for pointer in (there, own):
        stand_in.read_by(5, pointer, bytearray(4))
        with pytest.raises(GpuError, match="nothing orders stream 6"):
            stand_in.read_by(6, pointer, bytearray(4))
    stand_in.settle()
    stand_in.read_by(6, own, bytearray(4))
    stand_in.copy(own, there, 4)
    with pytest.raises(GpuError, match="nothing orders stream 5"):
        stand_in.read_by(5, own, bytearray(4))


@pytest.mark.processes
def test_another_gpu(stand_in, peers):
    """A handle is refused on another GPU."""
    peer = peers(1)
    with pytest.raises(Refused, match="PEER_ACCESS_UNSUPPORTED"):
        peer.open(stand_in.export(stand_in.allocate(10)))


@pytest.mark.processes
def test_peers(stand_in, machine, peers):
    """A GPU opens memory of its peers, and copies from there. Its peer must have access to it, and not the reverse."""
    machine.describe({"uuid": "GPU-1", "peers": ["GPU-2"]}, {"uuid": "GPU-2"})
    other = peers(1)
    there = other.allocate(5)
    other.write(there, b"hello")
    pointer, own = stand_in.open(other.export(there)), stand_in.allocate(5)
    stand_in.copy(own, pointer, 5)
    target = bytearray(5)
    stand_in.read(own, target)
    assert target == b"hello"
    with pytest.raises(GpuError, match="the handle is that of another GPU"):
        stand_in.open_event(other.export_event(other.create_event()))
    with pytest.raises(Refused, match="PEER_ACCESS_UNSUPPORTED"):
        other.open(stand_in.export(own))


@pytest.mark.processes
def test_what_one_process_has_waited_for(stand_in, peers):
    """Behind an event that has occurred the copies are complete, also for processes that do not have the event."""
    writer, reader = peers(), peers()
    pointer, own, event = stand_in.allocate(4), writer.allocate(4), writer.create_event()
    opened, read = writer.open(stand_in.export(pointer)), reader.open(stand_in.export(pointer))
    writer.copy(opened, own, 4)
    writer.record(event)
    stand_in.wait(stand_in.open_event(writer.export_event(event)))
    with pytest.raises(Refused, match="NOT_READY"):
        reader.read(read, 4)
    stand_in.synchronize(stand_in.open_event(writer.export_event(event)))
    assert reader.read(read, 4) == bytes(4)
    writer.copy(opened, own, 4)
    with pytest.raises(Refused, match="NOT_READY"):
        reader.read(read, 4)


def test_ranges(stand_in):
    """Copies stay inside of one allocation."""
    pointer = stand_in.allocate(10)
    for at, size in [(pointer, 11), (pointer + 10, 1), (pointer - 1, 1)]:
        with pytest.raises(GpuHandleError, match="one allocation"):
            stand_in.read(at, bytearray(size))
    with pytest.raises(GpuHandleError, match="not of this process"):
        stand_in.free(pointer + 1)
    with pytest.raises(GpuHandleError, match="positive size"):
        stand_in.allocate(0)


def test_memory_is_counted(stand_in, machine):
    """What is allocated, and what the file says that others use, is not free."""
    pointer = stand_in.allocate(1 << 19)
    assert stand_in.properties().free_bytes == 1 << 19
    machine.describe({"uuid": "GPU-1", "total_bytes": 1 << 20, "used_bytes": 1 << 18})
    assert stand_in.properties().free_bytes == 1 << 18
    with pytest.raises(GpuMemoryError):
        stand_in.allocate((1 << 18) + 1)
    stand_in.free(pointer)
    assert stand_in.properties().free_bytes == 3 << 18


def test_nothing_is_left(stand_in):
    """Memory and events that are freed leave no descriptor behind."""
    before = own_descriptors()
    pointer, event = stand_in.allocate(10), stand_in.create_event()
    assert own_descriptors() > before
    stand_in.free(pointer)
    stand_in.destroy_event(event)
    with pytest.raises(GpuHandleError):
        stand_in.destroy_event(event)
    assert own_descriptors() == before


def test_work_of_a_framework(stand_in):
    """What a framework does takes place when the process waits for it, once."""
    pointer = stand_in.allocate(1)
    stand_in.enqueue(lambda: stand_in.write(pointer, b"x"))
    stand_in.write(pointer, b"a")
    target = bytearray(1)
    stand_in.read(pointer, target)
    assert target == b"a"
    stand_in.settle()
    stand_in.read(pointer, target)
    assert target == b"x"
    stand_in.write(pointer, b"b")
    stand_in.settle()
    stand_in.read(pointer, target)
    assert target == b"b"


def test_faults(stand_in, machine):
    """The calls that the file names fail, until it does not name them."""
    reason = "CUDA_ERROR_OUT_OF_MEMORY"
    with machine.failing(allocate=reason), pytest.raises(GpuMemoryError, match=f"allocate: {reason}"):
        stand_in.allocate(10)
    stand_in.free(stand_in.allocate(10))


def test_a_lost_gpu_stays_lost(stand_in, machine):
    """After an error that the driver does not recover from, all calls of the process fail."""
    pointer = stand_in.allocate(10)
    with machine.failing(write="CUDA_ERROR_ECC_UNCORRECTABLE"), pytest.raises(GpuLostError):
        stand_in.write(pointer, b"x")
    with pytest.raises(GpuLostError):
        stand_in.allocate(10)


def test_open_gpu(machine):
    """The variable chooses the stand-in. A GPU that does not exist is missing."""
    gpu = open_gpu(1)
    assert type(gpu) is StandInGpu
    assert gpu.properties().name == "Second"
    for missing in (-1, 2):
        with pytest.raises(GpuMissingError, match="invalid device ordinal"):
            open_gpu(missing)
