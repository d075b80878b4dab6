# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Request memory: slots for bodies, and places for tensors that came otherwise."""

import os
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.memory.requests import GROWTH_BYTES_MAX, GROWTH_BYTES_MIN, RequestMemory, SharedSlot
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.arena import ALIGNMENT, BARE_BYTES_MIN, LARGE_BYTES, slot_bytes
from pyruntime.utils.errors import Code, InferenceError, LocalError, OutOfMemoryError
from tests.own_descriptors import own_descriptors

GROWTH = 1 << 20


@pytest.fixture(scope="module")
def shared():
    made = RequestMemory("m", GROWTH, GROWTH)
    yield made
    made.close()


@pytest.fixture
def memory():
    made = RequestMemory("m", GROWTH, GROWTH)
    yield made
    made.close()


def full(memory, monkeypatch):
    def commit(offset, size):
        raise OutOfMemoryError("no shared memory left")

    monkeypatch.setattr(memory.region, "commit", commit)
    monkeypatch.setattr(memory.region, "check", partial(commit, 0))


def read(memory, tensor):
    return bytes(memory.region.view[tensor.offset : tensor.offset + len(tensor.data)])


class TestAllocate:
    def test_a_slot_is_memory(self, memory):
        """A slot has the requested size, and is memory of the region."""
        slot = memory.allocate(100)
        assert slot.size == len(slot.view) == 100
        slot.view[:] = bytes(range(100))
        assert bytes(memory.region.map[slot.offset : slot.offset + 100]) == bytes(range(100))
        assert memory.live == 1
        slot.free()
        assert memory.live == 0

    def test_fill(self, memory):
        """A body that came otherwise is copied in."""
        slot = memory.allocate(5)
        slot.fill(b"hello")
        assert bytes(slot.view) == b"hello"
        slot.fill(bytearray(b"world"))
        assert bytes(slot.view) == b"world"

    @given(size=st.integers(1, 10_000), lead=st.integers(0, 10_000))
    def test_what_follows_the_lead_is_aligned(self, shared, size, lead):
        """Binary tensors behind a JSON header are aligned for any datatype, and slots do not overlap."""
        slot, other = shared.allocate(size + lead, lead), shared.allocate(64)
        assert (slot.offset + lead) % ALIGNMENT == 0
        assert slot.offset + slot.size <= other.offset or other.offset + other.size <= slot.offset
        slot.free()
        other.free()

    def test_no_memory(self, memory, monkeypatch):
        """Without memory the request is UNAVAILABLE, and the error says for how much."""
        full(memory, monkeypatch)
        with pytest.raises(InferenceError) as caught:
            memory.allocate(2 * GROWTH)
        assert caught.value.code is Code.UNAVAILABLE
        assert caught.value.message == (
            f"no room for a request of {2 * GROWTH} bytes to model 'm': no shared memory left"
        )
        assert memory.live == 0

    def test_first_bytes_are_there(self, memory, monkeypatch):
        """The memory that is committed at the start needs no further commit."""
        full(memory, monkeypatch)
        memory.allocate(GROWTH // 2).free()

    def test_freed_twice(self, memory):
        """A slot is freed once."""
        slot = memory.allocate(1)
        slot.free()
        with pytest.raises(LocalError):
            slot.free()


class TestAllocateBare:
    SIZE = 4 * BARE_BYTES_MIN

    def test_commit(self, memory):
        """Its memory exists once a thread has committed it, and is as warm as any other when it is freed."""
        before = memory.region.used_bytes
        slot = memory.allocate_bare(self.SIZE, lead=1)
        assert (slot.offset + 1) % ALIGNMENT == 0
        assert memory.region.used_bytes == before
        slot.commit()
        slot.commit()
        used = memory.region.used_bytes
        assert used >= before + self.SIZE
        slot.fill(bytes(self.SIZE))
        assert memory.region.used_bytes == used
        slot.free()
        assert memory.live == 0
        assert memory.region.used_bytes == used

    def test_that_is_never_committed(self, memory):
        """It leaves nothing behind."""
        before = memory.region.used_bytes
        slot = memory.allocate_bare(self.SIZE)
        slot.view[:10] = bytes(10)
        slot.free()
        assert memory.live == 0
        assert memory.region.used_bytes <= before

    def test_no_memory(self, memory, monkeypatch):
        """The request is UNAVAILABLE, whether that is known at once or when a thread commits the memory."""
        slot = memory.allocate_bare(self.SIZE)
        full(memory, monkeypatch)
        with pytest.raises(InferenceError, match="no room for a request of 4194304 bytes to model 'm': no shared mem"):
            slot.commit()
        slot.free()
        with pytest.raises(InferenceError, match="no room for a request of 4194304 bytes to model 'm': no shared mem"):
            memory.allocate_bare(self.SIZE)
        assert memory.live == 0

    def test_small(self, memory):
        """There is memory for small ones."""
        slot = memory.allocate_bare(100, lead=10)
        slot.commit()
        slot.fill(bytes(100))
        slot.free()


class TestAllocateGrowing:
    """A region that has no memory in advance, so that what is used can be compared."""

    SIZE = 40 * GROWTH_BYTES_MIN

    @pytest.fixture
    def memory(self):
        made = RequestMemory("m", 0, 4096)
        yield made
        made.close()

    def test_grow(self, memory):
        """Its memory exists as far as it is asked for, and about as much again; all of it at the end."""
        before = memory.region.used_bytes
        slot = memory.allocate_growing(self.SIZE, lead=1)
        assert (slot.offset + 1) % ALIGNMENT == 0
        assert memory.region.used_bytes == before
        ready, steps = 0, 0
        while ready < self.SIZE:
            asked = ready + 1
            ready = slot.grow(asked)
            assert asked <= ready <= min(2 * asked + GROWTH_BYTES_MIN, self.SIZE)
            slot.view[asked - 1 : ready] = bytes(ready - asked + 1)
            assert memory.region.used_bytes - before <= 2 * asked + 2 * GROWTH_BYTES_MIN
            steps += 1
        assert 3 < steps < 8
        assert slot.grow(self.SIZE) == self.SIZE
        used = memory.region.used_bytes
        slot.free()
        assert memory.region.used_bytes == used  # it is as warm as any other
        assert memory.allocate_growing(self.SIZE, lead=1).grow(1) == self.SIZE

    @pytest.mark.parametrize(
        "size", [LARGE_BYTES - 100, LARGE_BYTES, GROWTH_BYTES_MIN + 1, 10**6, 3 * GROWTH_BYTES_MAX]
    )
    @pytest.mark.parametrize("lead", [0, 1, 63])
    def test_all_of_a_slot(self, memory, size, lead):
        """When its last byte exists, so does the rest of it, which others may use later."""
        slot = memory.allocate_growing(size, lead)
        assert slot.grow(size) == size
        used = memory.region.used_bytes
        memory.region.commit(slot._start, slot_bytes(size + (slot.offset - slot._start)))
        assert memory.region.used_bytes == used
        slot.free()
        assert memory.live == 0

    def test_steps_have_a_limit(self, memory):
        """No step takes long."""
        slot = memory.allocate_growing(8 * GROWTH_BYTES_MAX)
        ready = [0]
        while ready[-1] < slot.size:
            ready.append(slot.grow(ready[-1] + 1))
        assert max(after - before for before, after in pairwise(ready)) == GROWTH_BYTES_MAX
        slot.free()

    def test_that_never_arrives(self, memory):
        """It leaves nothing behind."""
        before = memory.region.used_bytes
        slot = memory.allocate_growing(self.SIZE)
        slot.grow(1)
        slot.free()
        assert memory.live == 0
        assert memory.region.used_bytes <= before
        slot = memory.allocate_growing(self.SIZE)
        assert slot.grow(1) < self.SIZE
        slot.free()

    def test_no_memory(self, memory, monkeypatch):
        """The request is UNAVAILABLE, whether that is known at once or when its body has come half-way."""
        slot = memory.allocate_growing(self.SIZE)
        ready = slot.grow(1)
        full(memory, monkeypatch)
        assert slot.grow(ready) == ready
        with pytest.raises(InferenceError, match=f"no room for a request of {self.SIZE} bytes to model 'm'"):
            slot.grow(ready + 1)
        slot.free()
        with pytest.raises(InferenceError, match=f"no room for a request of {self.SIZE} bytes to model 'm'"):
            memory.allocate_growing(self.SIZE)
        assert memory.live == 0

    def test_small(self, memory):
        """There is memory for small ones."""
        slot = memory.allocate_growing(100, lead=10)
        assert slot.grow(1) == 100
        slot.free()


class TestPlace:
    def test_all_tensors_in_one_slot(self, memory):
        """Tensors that lie elsewhere are copied into one slot, each aligned."""
        tensors = [InputTensor("A", "INT8", [3], b"abc"), InputTensor("B", "FP64", [1], memoryview(b"12345678"))]
        request = InferRequest("m", inputs=tensors)
        memory.place(request)
        assert [tensor.offset % ALIGNMENT for tensor in tensors] == [0, 0]
        assert [read(memory, tensor) for tensor in tensors] == [b"abc", b"12345678"]
        assert memory.live == len(request.slots) == 1
        request.free()
        assert memory.live == 0

    def test_those_in_the_region_stay(self, memory):
        """A tensor that is in the region already is not copied."""
        slot = memory.allocate(8)
        inside = InputTensor("A", "INT8", [8], slot.view, slot.offset)
        outside = InputTensor("B", "INT8", [1], b"b")
        request = InferRequest("m", inputs=[inside, outside], slots=[slot])
        memory.place(request)
        assert inside.offset == slot.offset
        assert read(memory, outside) == b"b"
        assert len(request.slots) == 2
        request.free()
        assert memory.live == 0

    @pytest.mark.parametrize("tensors", [[], [b""], [b"", b""]], ids=len)
    def test_nothing_to_place(self, memory, tensors):
        """Tensors without contents take no slot, and have a valid place all the same."""
        inputs = [InputTensor("A", "BYTES", [0], data) for data in tensors]
        request = InferRequest("m", inputs=inputs)
        memory.place(request)
        assert memory.live == 0
        assert all(0 <= tensor.offset <= memory.region.limit for tensor in inputs)

    def test_one_empty_among_others(self, memory):
        """A tensor without contents may stand beside others."""
        inputs = [InputTensor("A", "INT8", [1], b"a"), InputTensor("B", "INT8", [0], b"")]
        request = InferRequest("m", inputs=inputs)
        memory.place(request)
        assert read(memory, inputs[0]) == b"a"
        assert inputs[1].offset >= 0

    @given(st.lists(st.binary(max_size=300), max_size=6))
    def test_any_sizes(self, shared, contents):
        """Tensors of any sizes keep their contents and do not overlap."""
        inputs = [InputTensor(str(index), "UINT8", [len(data)], data) for index, data in enumerate(contents)]
        request = InferRequest("m", inputs=inputs)
        shared.place(request)
        assert [read(shared, tensor) for tensor in inputs] == contents
        request.free()
        assert shared.live == 0

    def test_no_memory(self, memory, monkeypatch):
        """Without memory nothing is taken and no tensor is moved."""
        full(memory, monkeypatch)
        request = InferRequest("m", inputs=[InputTensor("A", "UINT8", [2 * GROWTH], bytes(2 * GROWTH))])
        with pytest.raises(InferenceError, match="no room for a request"):
            memory.place(request)
        assert request.slots == []
        assert request.inputs[0].offset == -1
        assert memory.live == 0


class TestEnd:
    def test_close_with_a_view_about(self):
        """A request that is still read keeps its memory readable."""
        memory = RequestMemory("m", GROWTH, GROWTH)
        slot = memory.allocate(3)
        slot.fill(b"abc")
        view = slot.view
        memory.close()
        assert bytes(view) == b"abc"

    def test_no_region(self, monkeypatch):
        """If the first bytes cannot be committed, no descriptor stays open."""
        before = own_descriptors()
        with pytest.raises(OutOfMemoryError):
            RequestMemory("m", 1 << 60, GROWTH)
        assert own_descriptors() == before


def test_repr(memory):
    """Memory says whose it is and how full."""
    memory.allocate(1)
    assert repr(memory) == f"<RequestMemory m <Arena [1 slots, {GROWTH} bytes committed]>>"


class TestReclaim:
    def test_frees_what_another_process_allocated(self, memory):
        """Pages behind the committed part go back to the kernel; contents of slots stay."""
        slot = memory.allocate(5, data=b"hello")
        used = memory.region.used_bytes
        os.posix_fallocate(memory.region.fileno(), 1 << 30, GROWTH)
        assert memory.region.used_bytes == used + GROWTH
        memory.reclaim()
        assert memory.region.used_bytes == used
        assert bytes(slot.view) == b"hello"
        slot.free()


def test_slot_with_two_users(memory):
    """Both see the same memory. It is free when both have freed it."""
    slot = memory.allocate(5, data=b"hello")
    shared = SharedSlot(slot)
    assert (shared.offset, bytes(shared.view)) == (slot.offset, b"hello")
    shared.free()
    assert memory.live == 1
    shared.free()
    assert memory.live == 0


def test_closed():
    """Memory of a model that was unloaded is refused, also while somebody still counts on the region."""
    memory = RequestMemory("m", 1 << 16, 1 << 16)
    memory.region.count_on()
    memory.close()
    for allocate in (memory.allocate, memory.allocate_bare, memory.allocate_growing):
        with pytest.raises(InferenceError, match="Model 'm' was unloaded") as caught:
            allocate(1)
        assert caught.value.code is Code.UNAVAILABLE
    memory.region.close()
