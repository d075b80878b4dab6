# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors from GPUs to one slot. Coroutines that write to the region take the place of brokers."""

import asyncio

import pytest

from pyruntime.runtime.memory.gpu_copies import bring, offsets
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.utils.arena import ALIGNMENT, BARE_BYTES_MIN
from pyruntime.utils.errors import Code, InferenceError


@pytest.fixture
def memory():
    made = RequestMemory("m", 1 << 20, 1 << 20)
    yield made
    if not made.region.is_closed:
        made.close()


def writes(contents):
    async def copy(region, offset):
        region.view[offset : offset + len(contents)] = contents

    return copy


def test_offsets():
    """Each tensor is aligned, and the last offset is the size of the slot."""
    assert offsets([1, 0, ALIGNMENT, ALIGNMENT + 1]) == [0, ALIGNMENT, ALIGNMENT, 2 * ALIGNMENT, 4 * ALIGNMENT]
    assert offsets([]) == [0]


def test_copies(memory):
    """They lie behind one another in one slot, also after the end of their model."""
    contents = [b"hello", b"there"]
    slot, places = asyncio.run(bring(memory, [5, 5], [writes(each) for each in contents]))
    region = memory.region
    memory.close()
    assert places == [slot.offset, slot.offset + ALIGNMENT]
    assert [bytes(region.view[at : at + 5]) for at in places] == contents
    assert bytes(slot.view[:5]) == b"hello"
    assert not region.is_closed
    slot.free()
    assert region.is_closed


def test_large_copies(memory):
    """Their memory exists before they are made."""
    contents = b"x" * BARE_BYTES_MIN
    slot, _ = asyncio.run(bring(memory, [len(contents)], [writes(contents)]))
    assert slot.view == contents
    slot.free()


def test_a_copy_that_fails(memory):
    """The others are waited for, because they write to the slot nevertheless; then it is free."""
    live = []

    async def fail(region, offset):
        raise InferenceError("the GPU was lost", Code.UNAVAILABLE)

    async def late(region, offset):
        await asyncio.sleep(0)
        live.append(memory.live)

    with pytest.raises(InferenceError, match="the GPU was lost"):
        asyncio.run(bring(memory, [1, 1], [fail, late]))
    assert live == [1]
    assert memory.live == 0
