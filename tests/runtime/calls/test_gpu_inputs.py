# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs of calls on GPUs: those are copied that the callee does not read where they are, and no others."""

import asyncio

import pytest

from pyruntime.runtime.calls.call_request import CallRequest
from pyruntime.runtime.calls.gpu_inputs import fetch, lie_elsewhere, slot_of
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import GpuRegion, create_region
from pyruntime.utils.addresses import address
from pyruntime.utils.gpu.driver import GpuProperties
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU


class Lessor:
    """Copies what the tensor says it has: its offset, repeated."""

    def __init__(self):
        self.copied = []

    async def fetch(self, region, at, size, target, offset):
        self.copied.append((region, at, size))
        target.view[offset : offset + size] = bytes([at]) * size


@pytest.fixture
def memory():
    made = RequestMemory("m", 0, 4096)
    yield made
    made.close()


def on_gpu(name, region, at, size):
    return name, "UINT8", [size], address(region.number, at), size, MEMORY_GPU, region.gpu.ordinal


@pytest.mark.parametrize(
    ("reads", "names"),
    [
        ({}, ["A", "B", "C"]),
        ({"A": 0}, ["B", "C"]),
        ({"A": 0, "B": 0}, ["C"]),
        ({"A": 1, "B": 0, "C": 1}, ["A"]),
        ({"A": 0, "B": 0, "C": 1}, []),
    ],
    ids=str,
)
def test_copies(memory, reads, names):
    """Each input is looked at by itself. A region goes along while an input is left there."""
    lessor = Lessor()
    one, two = [
        GpuRegion(GpuProperties(gpu, f"GPU-{gpu}", "G", (8, 0), 1, 1, False), bytes(64), 100, b"", lessor)
        for gpu in range(2)
    ]
    shared = create_region("test")
    plain = ("D", "UINT8", [4], address(shared.number, 64), 4, MEMORY_CPU, 0)
    contents = ("E", "UINT8", [1], b"e", 1, MEMORY_CPU, 0)
    given = {"A": on_gpu("A", one, 3, 5), "B": on_gpu("B", one, 9, 2), "C": on_gpu("C", two, 7, 3)}
    request = CallRequest("", None, {}, [*given.values(), plain, contents], [shared, one, two], on_gpu=True)
    assert lie_elsewhere(request, reads) is bool(names)
    slot = slot_of(request, reads, memory)
    copied = asyncio.run(fetch(request, reads, memory, slot))
    assert len(lessor.copied) == len(names)
    found = {tensor[0]: tensor for tensor in copied.tensors}
    assert (found["D"], found["E"]) == (plain, contents)
    for name, former in given.items():
        if name not in names:
            assert found[name] == former
            continue
        _, _, shape, at, size, kind, device = found[name]
        assert (shape, size, kind, device) == (former[2], former[4], MEMORY_CPU, 0)
        offset = at - address(memory.region.number, 0)
        assert offset % 64 == 0
        assert bytes(memory.region.view[offset : offset + size]) == bytes([former[3] & 0xFF]) * size
    left = {one: {"A", "B"}, two: {"C"}}
    assert set(copied.regions) == {shared, memory.region, *(each for each in left if left[each] - set(names))}
    slot.free()
    shared.close()
