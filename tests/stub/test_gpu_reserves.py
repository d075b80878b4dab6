# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on GPUs in which a framework allocates."""

from types import SimpleNamespace

import pytest

from pyruntime.stub import gpu_reserves
from pyruntime.stub.gpu_reserves import Reserve, Reserves
from pyruntime.stub.pb_utils.gpu_tensor import OnGpu
from pyruntime.utils.addresses import address
from pyruntime.utils.gpu.driver import ALIGNED_BYTES

SIZE = 4 << 10
POINTER = 1 << 20


@pytest.fixture
def logged(monkeypatch):
    """The warnings."""
    texts = []
    monkeypatch.setattr(gpu_reserves.LOGGER, "warning", lambda text, *arguments: texts.append(text % arguments))
    return texts


def reserve(number, pointer, lacked=lambda: 0):
    return Reserve(OnGpu(address(number, 512), 3), pointer, SIZE, lacked)


def contents(pointer, size, place=None):
    return SimpleNamespace(pointer=pointer, nbytes=size, place=place)


@pytest.fixture
def reserves():
    """Two, in regions of their own."""
    reserves = Reserves()
    reserves.add(reserve(10, POINTER))
    reserves.add(reserve(11, POINTER + 2 * SIZE))
    return reserves


@pytest.mark.parametrize(("offset", "number"), [(0, 10), (SIZE - ALIGNED_BYTES, 10), (2 * SIZE + ALIGNED_BYTES, 11)])
def test_tensors_in_a_reserve(reserves, offset, number):
    """The place is as far in the memory as the pointer is."""
    found = reserves.find(contents(POINTER + offset, ALIGNED_BYTES))
    assert found == OnGpu(address(number, 512 + offset % (2 * SIZE)), 3)


@pytest.mark.parametrize("offset", [-ALIGNED_BYTES, SIZE - ALIGNED_BYTES + 1, SIZE, ALIGNED_BYTES // 2, 4 * SIZE])
def test_tensors_elsewhere(reserves, offset):
    """They have no place: those in part of it, and those at addresses that readers do not expect."""
    assert reserves.find(contents(POINTER + offset, ALIGNED_BYTES)) is None


def test_tensors_of_others(reserves):
    """They have a place of their own."""
    assert reserves.find(contents(POINTER, 4, OnGpu(0, 3))) is None


def test_regions(reserves):
    """Those with a reserve are known by number."""
    assert [number for number in range(9, 13) if reserves.are_in(number)] == [10, 11]


def test_a_reserve_that_is_full(logged):
    """The log says so once for each reserve, when a tensor lies elsewhere."""
    reserves, lacked = Reserves(), [0]
    reserves.find(contents(0, 4))
    reserves.add(reserve(10, POINTER, lambda: lacked[0]))
    for lacked[0] in (0, 100, 200):
        reserves.find(contents(0, 4))
    reserves.add(reserve(11, 2 * POINTER, lambda: lacked[0]))
    reserves.find(contents(0, 4))
    assert logged == [
        f"pyruntime.torch_allocator has no room for {size} bytes that torch has asked for: tensors there are copied"
        for size in (100, 200)
    ]
