# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on GPUs that a stub leases, for tensors of its own. Another process is the broker."""

import threading
import weakref

import numpy as np
import pytest

from pyruntime.stub import gpu_memory, gpus
from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.pb_utils.dlpack import ImportedTensor
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.gpu_tensor import GpuContents
from pyruntime.stub.pb_utils.leased import leased_tensor, slot_on
from pyruntime.utils.addresses import split
from pyruntime.utils.gpu import chunks
from pyruntime.utils.gpu.driver import gpu_error
from pyruntime.utils.messages import CLOSED_GPU, RETURN_GPU
from tests.utils.gpu.peers import Refused

from .gpu_broker import CHUNK

pytestmark = pytest.mark.processes


def on_gpu(contents):
    """Contents of a framework."""
    gpu = gpu_of(0)
    pointer = gpu.allocate(len(contents))
    gpu.write(pointer, contents)
    return GpuContents("T", ImportedTensor(pointer, (len(contents),), "UINT8", None, 0))


def wait_for(broker, at):
    broker.process.wait(broker.process.open_event(broker.events[split(at)[0]]))


def test_places(broker):
    """Tensors share a chunk. They are there for who waits for the event."""
    places = [broker.memory.place(on_gpu(contents)) for contents in (b"hello", b"there")]
    assert len(broker.leased) == 1
    assert [place.device for place in places] == [3, 3]
    wait_for(broker, places[0].address)
    assert [broker.contents(place.address, 5) for place in places] == [b"hello", b"there"]


def test_slots_are_used_again(broker):
    """What is freed has room for others, of any size once the chunk is empty."""
    first = [broker.memory.place(on_gpu(b"x" * (CHUNK // 4))) for _ in range(4)]
    broker.memory.free_all(place.address for place in first)
    place = broker.memory.place(on_gpu(b"y" * CHUNK))
    assert (len(broker.leased), split(place.address)[0]) == (1, 10)


def test_chunks_are_returned(broker):
    """A chunk without tensors is closed and given back, if it is not the last one."""
    first, second = (broker.memory.place(on_gpu(b"x" * CHUNK)) for _ in range(2))
    broker.memory.free(second.address)
    assert broker.told == [(RETURN_GPU, [11])]
    broker.process.free(broker.leased[11])
    broker.memory.free(first.address)
    assert broker.told == [(RETURN_GPU, [11])]


def test_what_is_returned_is_complete(broker):
    """No copy of this process changes memory that another process has next."""
    _, second = (broker.memory.place(on_gpu(b"x" * CHUNK)) for _ in range(2))
    with pytest.raises(Refused, match="NOT_READY"):
        broker.contents(second.address, CHUNK)
    broker.memory.free(second.address)
    assert broker.told == [(RETURN_GPU, [11])]
    assert broker.process.read(broker.leased[11], CHUNK) == b"x" * CHUNK


def test_no_room(broker):
    """Without memory tensors have no place, and the next ones may have one."""
    broker.refuses = True
    assert broker.memory.place(on_gpu(b"hello")) is None
    broker.refuses = False
    assert broker.memory.place(on_gpu(b"hello")) is not None


def test_in_main_memory_without_a_context(written):
    """The broker copies for a process that does not use the GPU, once. The model may write to the copy."""
    assert (written.is_cpu(), written.shape(), written.__dlpack_device__()) == (False, [3], (2, 0))
    array = written.as_numpy()
    assert array.tolist() == [0, 1, 2]
    array[0] = 7
    assert written.as_numpy() is array
    assert gpus.opened == {}


def test_in_main_memory(written):
    """A process that uses the GPU copies itself, once."""
    gpu_of(0)
    array = written.as_numpy()
    assert array.tolist() == [0, 1, 2]
    assert written.as_numpy() is array


def test_a_broker_that_is_lost(broker):
    """A lease that the host revokes is not used any more, and its slots are forgotten."""
    place = broker.memory.place(on_gpu(b"hello"))
    broker.memory.unmap(10)
    assert broker.told == [(CLOSED_GPU, [10])]
    broker.memory.free(place.address)
    assert split(broker.memory.place(on_gpu(b"hello")).address)[0] == 11


def test_a_lease_that_is_lost_before_it_is_used(broker):
    """It is closed and given back, the tensor has no place, and the next one has a lease that is not lost."""
    broker.is_lost = True
    assert broker.memory.place(on_gpu(b"hello")) is None
    assert broker.told == [(CLOSED_GPU, [10]), (RETURN_GPU, [10])]
    broker.process.free(broker.leased[10])
    broker.is_lost = False
    places = [broker.memory.place(on_gpu(b"hello")) for _ in range(2)]
    assert [split(place.address)[0] for place in places] == [11, 11]


def test_regions_that_are_lost_while_none_is_leased(broker):
    """A number that the host names at another time is not remembered."""
    broker.memory.unmap(10)
    assert split(broker.memory.place(on_gpu(b"hello")).address)[0] == 10


def test_frameworks_are_waited_for_each_time(written):
    """What a framework was given once it may read again, before each message that lets the memory go."""
    capsule = written.to_dlpack()
    done = []
    for each in range(3):
        gpu_of(0).enqueue(lambda each=each: done.append(each))
        gpus.settle()
    assert done == [0, 1, 2]
    del capsule


def test_the_last_chunk_if_it_is_large(broker, monkeypatch):
    """It is given back, too: one large tensor would take the memory for ever."""
    monkeypatch.setattr(chunks, "KEPT_CHUNK_BYTES_MAX", CHUNK)
    place = broker.memory.place(on_gpu(b"x" * (CHUNK + 1)))
    broker.memory.free(place.address)
    assert broker.told == [(RETURN_GPU, [10])]


def fail(reason):
    raise gpu_error(reason, "open_event")


class Owner:
    """What keeps the memory of a tensor."""


@pytest.fixture
def reserve(broker, monkeypatch):
    """`reserve(offset, contents)`: a tensor that a framework has computed in memory of ours. No copy is possible."""
    pointer, size = broker.memory.reserve(0, CHUNK, lambda: 0)
    assert size == CHUNK

    def compute(offset, contents):
        gpu_of(0).enqueue(lambda: gpu_of(0).write_by(pointer + offset, contents))
        imported = ImportedTensor(pointer + offset, (len(contents),), "UINT8", Owner(), 0)
        return GpuContents("T", imported)

    monkeypatch.setattr(gpu_of(0), "copy", lambda *_: fail("CUDA_ERROR_NOT_SUPPORTED"))
    return compute


def test_memory_without_a_copy(broker):
    """Others read what this process writes there, behind its event."""
    place, pointer = broker.memory.allocate(0, 5)
    source = gpu_of(0).allocate(5)
    gpu_of(0).write(source, b"hello")
    gpu_of(0).copy(pointer, source, 5)
    broker.memory.written(0)
    wait_for(broker, place.address)
    assert broker.contents(place.address, 5) == b"hello"
    broker.memory.free(place.address)
    assert broker.memory.allocate(0, 5) == (place, pointer)


def test_memory_that_a_library_writes_to(broker):
    """It is free when nothing refers to it, and nobody reads it."""
    slot = slot_on(broker.memory, 0, 5)
    gpu_of(0).write_by(slot.pointer, b"hello")
    tensor = leased_tensor("T", "UINT8", [5], slot)
    (place, again), owned = broker.memory.place_all([tensor, tensor], passes_on=False)
    assert (place, again, owned) == (slot.place, slot.place, [place.address] * 2)
    wait_for(broker, place.address)
    assert broker.contents(place.address, 5) == b"hello"
    slot = tensor = None
    broker.memory.free(place.address)
    others = [slot_on(broker.memory, 0, 5) for _ in range(3)]
    assert place not in [other.place for other in others]
    broker.memory.free(place.address)
    assert slot_on(broker.memory, 0, 5).place == place


def test_memory_that_is_let_go_of_by_a_destructor(broker):
    """It may run in a thread that uses the memory just then. The next use finds it free."""
    slots = [slot_on(broker.memory, 0, CHUNK)]
    place = slots[0].place
    with broker.memory._lock:
        slots.clear()
    assert slot_on(broker.memory, 0, CHUNK).place == place


def test_memory_that_is_not_handed_over(broker):
    """The library may still write to it: others have it when all work on the GPU is done."""
    slots = [slot_on(broker.memory, 0, CHUNK) for _ in range(2)]
    pointer = slots[0].pointer
    gpu_of(0).enqueue(lambda: gpu_of(0).write_by(pointer, b"late!"))
    gpu_of(0).enqueue(lambda: broker.told.append("written"))
    slots.pop()
    assert broker.told == ["written", (RETURN_GPU, [11])]
    gpu_of(0).enqueue(lambda: gpu_of(0).write_by(pointer, b"later"))
    slots.pop()
    slot = slot_on(broker.memory, 0, 5)
    assert slot.pointer == pointer
    gpu_of(0).write_by(pointer, b"hello")
    gpu_of(0).settle()
    assert broker.contents(slot.place.address, 5) == b"hello"


def test_memory_that_was_handed_over(broker, monkeypatch):
    """The library has waited for its own work, and need not wait for other work."""
    slot = slot_on(broker.memory, 0, 5)
    place = broker.memory.place(leased_tensor("T", "UINT8", [5], slot)._array)
    monkeypatch.setattr(gpu_of(0), "settle", pytest.fail)
    broker.memory.free(place.address)
    slot = None
    assert broker.memory.allocate(0, 5)[0] == place


def test_memory_that_is_not_handed_over_on_a_gpu_that_fails(broker, monkeypatch):
    """It is free: nothing writes to it any more."""
    slot = slot_on(broker.memory, 0, 5)
    place = slot.place
    monkeypatch.setattr(gpu_of(0), "settle", lambda: fail("CUDA_ERROR_LAUNCH_FAILED"))
    slot = None
    assert broker.memory.allocate(0, 5)[0] == place


def test_chunks_that_are_let_go_of_by_a_destructor(broker):
    """They are given back as soon as the thread that uses the memory is done, also if nobody uses it any more."""
    slots = [slot_on(broker.memory, 0, CHUNK) for _ in range(3)]
    with broker.memory._lock:
        thread = threading.Thread(target=slots.clear)
        thread.start()
        thread.join()
        assert broker.told == []
    assert sorted(number for _, (number,) in broker.told) == [11, 12]
    assert {method for method, _ in broker.told} == {RETURN_GPU}


def test_memory_that_is_lost_before_others_read_it(broker):
    """Nobody is told of the contents."""
    slot = slot_on(broker.memory, 0, 5)
    broker.memory.unmap(10)
    with pytest.raises(TritonModelException, match="the tensor is gone: the broker of GPU 0 was lost"):
        broker.memory.place(leased_tensor("T", "UINT8", [5], slot)._array)


def test_memory_that_cannot_be_shown(broker, monkeypatch):
    """The reason is the driver's, and the memory is free."""
    slot = slot_on(broker.memory, 0, 5)
    place = slot.place
    monkeypatch.setattr(gpu_of(0), "record", lambda _: fail("CUDA_ERROR_NOT_SUPPORTED"))
    with pytest.raises(TritonModelException, match="a tensor on GPU 0 cannot be shown: CUDA_ERROR_NOT_SUPPORTED"):
        broker.memory.place(leased_tensor("T", "UINT8", [5], slot)._array)
    slot = None
    assert slot_on(broker.memory, 0, 5).place == place


def test_no_room_without_a_copy(broker):
    """There is no place then."""
    broker.refuses = True
    assert broker.memory.allocate(0, 5) is None
    assert slot_on(broker.memory, 0, 5) is None
    assert broker.memory.reserve(0, 5, lambda: 0) is None


def test_tensors_in_a_reserve(broker, reserve):
    """They are complete for others, and nothing is copied."""
    places = [broker.memory.place(reserve(offset, contents)) for offset, contents in ((0, b"hello"), (512, b"there"))]
    assert [split(place.address) for place in places] == [(10, 0), (10, 512)]
    assert [place.device for place in places] == [3, 3]
    wait_for(broker, places[0].address)
    assert [broker.contents(place.address, 5) for place in places] == [b"hello", b"there"]


def test_tensors_in_a_reserve_are_held(broker, reserve):
    """The framework must not use the memory for others as long as somebody reads it."""
    contents = reserve(512, b"hello")
    owner = weakref.ref(contents.owner)
    places = [broker.memory.place(contents) for _ in range(2)]
    assert places[0] == places[1]
    del contents
    assert owner() is not None
    broker.memory.free(places[0].address)
    assert owner() is not None
    broker.memory.free(places[1].address)
    assert owner() is None
    assert broker.told == []


@pytest.mark.parametrize("offset", [-1, 8, CHUNK - 4, CHUNK])
def test_tensors_that_are_not_all_in_a_reserve(broker, reserve, monkeypatch, offset):
    """They are copied, as any other, and so are those that begin where not all kernels can read."""
    contents = reserve(offset, b"hello")
    copied = []
    monkeypatch.setattr(gpu_of(0), "copy", lambda *arguments: copied.append(arguments))
    monkeypatch.setattr(gpu_of(0), "settle", lambda: None)
    place = broker.memory.place(contents)
    assert (split(place.address)[0], len(copied)) == (11, 1)


def test_tensors_of_others_beside_a_reserve(broker, written):
    """They are copied: others than this process say how long they are there."""
    broker.memory.reserve(0, CHUNK, lambda: 0)
    place = broker.memory.place(written._on_gpu)
    wait_for(broker, place.address)
    assert np.frombuffer(broker.contents(place.address, 12), np.int32).tolist() == [0, 1, 2]


def test_a_gpu_that_fails_beside_a_reserve(broker, reserve, monkeypatch):
    """The response fails, and nothing is held."""
    contents = reserve(0, b"hello")
    monkeypatch.setattr(gpu_of(0), "record", lambda _: fail("CUDA_ERROR_LAUNCH_FAILED"))
    with pytest.raises(TritonModelException, match=r"a tensor cannot be copied on GPU 0: CUDA_ERROR_LAUNCH_FAILED"):
        broker.memory.place(contents)
    owner = weakref.ref(contents.owner)
    del contents
    assert owner() is None


def test_chunks_beside_a_reserve(broker):
    """The last one without tensors is kept, as without a reserve. That of a reserve is not given back."""
    broker.memory.reserve(0, CHUNK, lambda: 0)
    for _ in range(2):
        place = broker.memory.place(on_gpu(b"x" * CHUNK))
        assert split(place.address)[0] == 11
        broker.memory.free(place.address)
    assert broker.told == []


class Ended(Exception):
    """The process would have ended."""


@pytest.fixture
def ends(monkeypatch):
    """The end of the process is an exception."""

    def end():
        raise Ended

    monkeypatch.setattr(gpu_memory, "end_process", end)


def test_a_reserve_that_is_lost(broker, reserve, ends):
    """The process ends, before the memory is closed: the framework has tensors there."""
    with pytest.raises(Ended):
        broker.memory.unmap(10)
    broker.memory.place(reserve(0, b"hello"))


class Preceded:
    """A lock that has something done before it is next taken."""

    def __init__(self, lock, act):
        self.lock = lock
        self.act = act

    def __enter__(self):
        act, self.act = self.act, lambda: None
        act()
        return self.lock.__enter__()

    def __exit__(self, *details):
        return self.lock.__exit__(*details)


def test_a_reserve_that_is_made_while_it_is_lost(broker, ends):
    """A framework that has been given the memory never works on without it."""
    broker.memory.place(on_gpu(b"hello"))
    reserves = []
    lock = broker.memory._lock
    broker.memory._lock = Preceded(lock, lambda: reserves.append(broker.memory.reserve(0, 1024, lambda: 0)))
    with pytest.raises(Ended):
        broker.memory.unmap(10)
    (made,) = reserves
    assert made is not None


def test_a_reserve_that_is_lost_before_it_is_made(broker, ends, monkeypatch):
    """The framework is not given the memory, so that the process need not end."""
    allocate = broker.memory.allocate

    def lose(gpu, size):
        found = allocate(gpu, size)
        broker.memory.unmap(10)
        return found

    monkeypatch.setattr(broker.memory, "allocate", lose)
    assert broker.memory.reserve(0, CHUNK, lambda: 0) is None
