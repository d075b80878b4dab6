# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Slots of the response region."""

from types import SimpleNamespace

import pytest

from pyruntime.stub.response_memory import ResponseMemory
from pyruntime.utils.errors import LocalError
from pyruntime.utils.messages import NO_SLOT


@pytest.fixture
def memory(new_region):
    return ResponseMemory(new_region(), 1 << 20)


def live(memory):
    """How many slots are in use."""
    return memory._arena.live


def test_free_what_is_no_slot(memory):
    """Freeing an offset that is not an allocated slot is refused."""
    with pytest.raises(LocalError):
        memory.free([64])


@pytest.mark.parametrize("use", [lambda memory: memory.free([]), lambda memory: memory.free_bytes])
def test_a_destructor_waits_for_no_lock(memory, use):
    """The collector may run it in a thread that has the lock, so what it gives back is freed by the next call."""
    loan = memory.lend(100)
    with memory._lock:
        del loan
    assert live(memory) == 1
    use(memory)
    assert live(memory) == 0


def test_tensors_on_a_gpu(memory):
    """They are freed with the slot of their response, which has one also if nothing else lies in the region."""
    freed = []
    on_gpu = SimpleNamespace(free_all=freed.extend)
    slot = memory._own(NO_SLOT, on_gpu, [7, 8])
    assert memory._own(NO_SLOT, on_gpu, []) == NO_SLOT
    memory.free([slot])
    assert (freed, live(memory)) == ([7, 8], 0)


def test_contents_on_a_gpu_that_cannot_be_copied(memory):
    """The slot that they were to lie in is free, and the error is that of the copy."""

    def copy_to(target):
        raise RuntimeError("the GPU was lost")

    with memory._lock:
        slot = memory._allocate(8)
    with pytest.raises(RuntimeError, match="the GPU was lost"):
        memory._copy(SimpleNamespace(copy_to=copy_to), slot, 8, slot)
    assert live(memory) == 0
