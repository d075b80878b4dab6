# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to ensembles whose steps are on two GPUs. The test says when a copy is complete."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.utils.addresses import address
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU

from ..event_loops import settle
from ..gpu_copies import Peers
from .graphs import Node, ensembles
from .test_gpu_places import nowhere, on, reads_main_memory
from .test_gpu_requests import Memory, put_on
from .test_request import GONE, Region, World, answers_of, chain

# Two steps on the second GPU, and one on the first, read what the first step makes there.
READERS = [Node([("in", False)], ["a"]), *(Node([("a", False)], [f"b{index}"]) for index in range(3))]
JOIN = Node([("b0", False), ("b1", False), ("b2", False)], ["out"])


class Copies(Peers):
    """Copies to regions of its own."""

    def __init__(self, memory):
        super().__init__()
        self._memory = memory
        self.main_memory = Region(50)

    def complete(self, index=0, *, is_on_gpu=True):
        """A copy is complete. Returns its region."""
        tensors, gpu, *_ = self.pending[index]
        region = self._memory.region(gpu) if is_on_gpu and gpu is not None else self.main_memory
        super().complete(region, *[address(region.number, 0)] * len(tensors), index=index)
        return region


def run(world, check):
    """Run `check`, which is awaited with the memory and the peers of the world. Nothing may be left then."""
    memory = Memory()
    peers = world.ensemble.peers = Copies(memory)

    async def within():
        async with asyncio.TaskGroup() as peers.tasks:
            await check(memory, peers)
            await settle()

    asyncio.run(within())
    assert (peers.slots, peers.main_memory.uses, peers.pending) == ([], 0, [])
    world.check_over()
    memory.check_over()


def test_step_on_another_gpu():
    """A step begins when its input has been copied to its GPU. The copy is free when the step is done with it."""
    world = chain()

    async def check(memory, peers):
        put_on(world, memory, 0, 1)
        world.request()
        (source,) = [model.chunk for model in world.models.values() if model.on_gpus.reads == {"i0": 0}]
        world.answer(0)
        await settle()
        ((tensors, gpu, *_),) = peers.pending
        assert ([each.region for each in tensors], gpu, world.open) == ([source], 1, [])
        copy = peers.complete()
        await settle()
        ((_, job, _),) = world.open
        assert job.tensors == [("i0", "INT8", [1], address(copy.number, 0), 1, MEMORY_GPU, 1)]
        assert (job.regions, len(peers.slots)) == ([copy], 1)
        world.answer(0)
        assert peers.slots == []

    run(world, check)


@pytest.mark.parametrize("gpu", [1, None], ids=["another GPU", "main memory"])
def test_model_that_was_loaded_again(gpu):
    """The input of a request is copied if its reader is another model than when the ensemble said where it reads it."""
    world = chain()

    async def check(memory, peers):
        put_on(world, memory, gpu, None)
        given_there = memory.region(0)
        world.request(memory={"in": given_there})
        await settle()
        ((tensors, target, *_),) = peers.pending
        assert ([each.region for each in tensors], target, world.open) == ([given_there], gpu, [])
        copy = peers.complete()
        await settle()
        ((_, job, _),) = world.open
        where = (MEMORY_CPU, 0) if gpu is None else (MEMORY_GPU, 1)
        assert job.tensors == [("i0", "INT8", [1], address(copy.number, 0), 1, *where)]
        world.answer(0)
        world.answer(0)

    run(world, check)


def test_one_copy_for_each_gpu():
    """Readers on one GPU share a copy, also if both need it at the same time; on its own GPU none is needed."""
    world = chain(*READERS, JOIN)

    async def check(memory, peers):
        put_on(world, memory, 0, 1, 1, 0, 0)
        world.request()
        world.answer(0)
        await settle()
        assert [model.node.writes for model, _, _ in world.open] == [["b2"]]
        copy = peers.complete()
        await settle()
        assert len(peers.moves) == 1
        assert [job.regions == [copy] for _, job, _ in world.open] == [False, True, True]
        while world.open or peers.pending:
            world.answer(0) if world.open else peers.complete()
            await settle()

    run(world, check)


def test_copy_that_others_can_read():
    """A copy for a GPU that lies in main memory after all is read by all that read the tensor there."""
    nodes = [Node([("in", False)], [name]) for name in ("b0", "b1")]
    world = chain(*nodes, Node([("b0", False), ("b1", False)], ["out"]))

    async def check(memory, peers):
        put_on(world, memory, None, 1, None)  # the second step begins first
        world.request(memory={"in": memory.region(0)})
        await settle()
        region = peers.complete(is_on_gpu=False)
        await settle()
        assert (len(peers.moves), peers.pending) == (1, [])
        assert [job.regions for _, job, _ in world.open] == [[region], [region]]
        while world.open:
            world.answer(0)

    run(world, check)


def test_through_main_memory():
    """What has no room on the GPU is read in main memory, in the memory of the model that reads it."""
    world = chain()

    async def check(memory, peers):
        put_on(world, memory, 0, 1)
        world.request()
        world.answer(0)
        await settle()
        region = peers.complete(is_on_gpu=False)
        await settle()
        ((_, job, _),) = world.open
        assert job.tensors == [("i0", "INT8", [1], address(region.number, 0), 1, MEMORY_CPU, 0)]
        assert job.regions == [region]
        world.answer(0)

    run(world, check)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("fail", "in ensemble 'e', the broker of GPU 0 was lost (step 1, model 'm1')"),
        ("cancel", ""),
        ("give up", "gone"),
        ("bug", "in ensemble 'e', the server failed to copy inputs of a step; its log says why (step 1, model 'm1')"),
    ],
)
def test_ends_while_a_step_waits(end, says, caplog):
    """A step whose input is lost fails the request; after another end it does not begin. Only a bug is logged."""
    world = chain()

    async def check(memory, peers):
        put_on(world, memory, 0, 1)
        job = world.request()
        world.answer(0)
        await settle()
        if end == "fail":
            peers.fail()
        elif end == "bug":
            peers.fail(error=KeyError("a bug"))
        elif end == "cancel":
            world.requests.cancel(job)
            peers.complete()
        else:
            world.requests.give_up(GONE)
            assert len(world.requests) == 0
            peers.complete()
        await settle()
        assert world.open == []
        ((failure, _),) = answers_of(world)
        assert says in failure.message
        assert [each.getMessage() for each in caplog.records] == (
            ["The server failed to copy inputs of a step."] if end == "bug" else []
        )

    run(world, check)


@given(ensembles(), st.integers(0, 2), st.data())
def test_whatever_happens(graphs, limit, data):
    """Each model finds its inputs where it reads them, and whatever happens all memory is free at the end."""
    world = World(graphs, limit)
    world.frees_late = data.draw(st.booleans())

    def go_on(peers, *, fails):
        """One thing that a model or a broker does."""
        if (peers.pending and data.draw(st.booleans())) or not world.open:
            index = data.draw(st.integers(0, len(peers.pending) - 1))
            peers.fail(index=index) if fails else peers.complete(index, is_on_gpu=data.draw(st.booleans()))
        else:
            world.answer(data.draw(st.integers(0, len(world.open) - 1)), InferenceError("no") if fails else None)

    async def check(memory, peers):
        for node, model in zip(graphs.nodes, world.models.values(), strict=True):
            gpu = data.draw(st.integers(0, 2))
            model.on_gpus = data.draw(st.sampled_from([on, on, on, reads_main_memory, nowhere]))(gpu % 2, node)
            model.chunk = memory.region(gpu % 2)
        for _ in range(data.draw(st.integers(1, 3))):
            world.request()
        for action in data.draw(st.lists(st.sampled_from(["go on"] * 6 + ["fail", "refuse", "cancel", "give up"]))):
            if action not in ("go on", "fail"):
                world.act(action, data.draw)
            elif world.open or peers.pending:
                go_on(peers, fails=action == "fail")
            await settle()
        while world.open or peers.pending:
            go_on(peers, fails=False)
            await settle()

    run(world, check)
