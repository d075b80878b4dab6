# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs of calls on GPUs: those are copied that the callee does not read where they are, and no others."""

import asyncio

import pytest

from pyruntime.runtime.calls.call_request import CallRequest
from pyruntime.runtime.calls.gpu_inputs import bring_inputs, lie_elsewhere
from pyruntime.runtime.memory.gpu_peers import Tensor
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU

from ..event_loops import settle
from ..gpu_copies import Peers
from ..gpu_regions import gpu_region

MEMORY = object()
NO_MEMORY = InferenceError("no memory")


@pytest.fixture
def shared(new_region):
    return new_region()


@pytest.fixture
def regions():
    """Regions on the first two GPUs."""
    return [gpu_region(gpu) for gpu in range(2)]


def on_gpu(name, region, at, size):
    return name, "UINT8", [size], address(region.number, at), size, MEMORY_GPU, region.gpu.ordinal


def request_of(shared, one, two):
    """Two inputs on the first GPU, one on the second one, and others that lie on none."""
    plain = ("D", "UINT8", [4], address(shared.number, 64), 4, MEMORY_CPU, 0)
    contents = ("E", "UINT8", [1], b"e", 1, MEMORY_CPU, 0)
    there = [on_gpu("A", one, 3, 5), on_gpu("B", one, 9, 2), on_gpu("C", two, 7, 3)]
    return CallRequest("", None, {}, [*there, plain, contents], [shared, one, two], on_gpu=True)


async def bring(request, reads, targets, peers, slots):
    """Bring the inputs. A copy is complete at once, in the region of its GPU in `targets`; without one it fails."""
    bringing = asyncio.ensure_future(bring_inputs(request.tensors, request.regions, reads, MEMORY, peers, slots))
    await settle()
    while peers.pending:
        (move,) = peers.pending
        if (region := targets.get(move.gpu)) is None:
            peers.fail(NO_MEMORY)
        else:
            peers.complete(region, *(address(region.number, index * 64) for index in range(len(move.tensors))))
        await settle()
    return await bringing


@pytest.mark.parametrize(
    ("reads", "copied", "left"),
    [
        ({}, {None: "ABC"}, ""),
        ({"A": 0}, {None: "BC"}, "A"),
        ({"A": 1, "B": 0}, {1: "A", None: "C"}, "B"),
        ({"A": 1, "B": 1, "C": 1}, {1: "AB"}, "C"),
        ({"A": 1, "B": 1, "C": 0}, {1: "AB", 0: "C"}, ""),
        ({"A": 0, "B": 0, "C": 1}, {}, "ABC"),
    ],
    ids=str,
)
def test_copies(shared, regions, reads, copied, left):
    """Each input is looked at by itself: it goes to its GPU. A region goes along while an input is left there."""
    request, peers, slots = request_of(shared, *regions), Peers(), []
    targets = {None: shared, 0: gpu_region(0), 1: gpu_region(1)}
    former = {tensor[0]: tensor for tensor in request.tensors}
    sources = {"A": Tensor(regions[0], 3, 5), "B": Tensor(regions[0], 9, 2), "C": Tensor(regions[1], 7, 3)}
    assert lie_elsewhere(request, reads) is bool(copied)
    tensors, kept = asyncio.run(bring(request, reads, targets, peers, slots))
    moves = [([sources[name] for name in names], gpu, MEMORY) for gpu, names in copied.items()]
    assert [move[:3] for move in peers.moves] == moves
    expected = dict(former)
    for gpu, names in copied.items():
        where = (MEMORY_CPU, 0) if gpu is None else (MEMORY_GPU, gpu)
        for index, name in enumerate(names):
            at = address(targets[gpu].number, index * 64)
            expected[name] = (*former[name][:3], at, former[name][4], *where)
    assert tensors == list(expected.values())
    known = {shared} | {sources[name].region for name in left} | {targets[gpu] for gpu in copied}
    assert (set(kept), len(kept)) == (known, len(known))
    assert slots == peers.slots
    assert [slot.region for slot in slots] == [targets[gpu] for gpu in copied]


def test_failure(shared, regions):
    """Of copies to several GPUs those are known that were made before one fails: the caller frees them."""
    request, peers, slots = request_of(shared, *regions), Peers(), []
    there = gpu_region(1)
    with pytest.raises(InferenceError, match="no memory"):
        asyncio.run(bring(request, {"A": 1, "B": 0, "C": 2}, {1: there}, peers, slots))
    assert [slot.region for slot in slots] == [there]
