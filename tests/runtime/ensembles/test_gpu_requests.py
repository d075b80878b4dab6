# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to ensembles with tensors on GPUs: these stay there by reference, and their memory until its last use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.ensembles.gpu_places import ensemble_places
from pyruntime.runtime.gpus.tensor_places import TensorPlaces
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.addresses import address
from pyruntime.utils.request_codec import MEMORY_GPU

from ..gpu_regions import gpu_region
from .graphs import ensembles
from .test_gpu_places import PLACES, nowhere, on, reads_main_memory
from .test_request import World, answers_of, chain


class Memory:
    """Owns regions on GPUs."""

    def __init__(self):
        self.made = []
        self.free = []

    def region(self, gpu=0):
        self.made.append(gpu_region(gpu, self))
        return self.made[-1]

    def unused(self, region):
        self.free.append(region)

    def check_over(self):
        """Nobody counts on a region but its owner."""
        for region in self.made:
            assert not region.is_closed
            region.close()
            assert region.is_closed
        assert self.free == self.made


@pytest.fixture
def memory():
    made = Memory()
    yield made
    made.check_over()


def put_on(world, memory, *gpus):
    """Have the models of a world share memory on these GPUs, None for main memory."""
    for gpu, node, model in zip(gpus, world.graphs.nodes, world.models.values(), strict=True):
        model.on_gpus = None if gpu is None else on(gpu, node)
        model.chunk = None if gpu is None else memory.region(gpu)


def test_from_end_to_end(memory):
    """From the memory of a client to that of a client, or a caller, no tensor leaves the GPU."""
    world = chain()
    put_on(world, memory, 0, 0)
    given, kept = memory.region(), []
    job = world.request(memory={"in": given}, places={"out": PLACES[0]})
    job.respond = lambda response, final: kept.append(response)
    first, last = world.models.values()
    assert world.open[0][1].tensors == [("i0", "INT8", [1], address(given.number, 0), 1, MEMORY_GPU, 0)]
    assert world.open[0][1].regions == [given]
    world.answer(0)
    assert world.open[0][1].tensors == [("i0", "INT8", [1], address(first.chunk.number, 0), 1, MEMORY_GPU, 0)]
    world.answer(0)
    (response,) = kept
    (output,) = response.outputs
    assert (output.name, output.data, output.address) == ("out", b"", address(last.chunk.number, 0))
    assert (output.place.memory, response.regions) == (last.chunk, (last.chunk,))
    response.release()
    answers_of(world).append((response, True))
    world.check_over()


@pytest.mark.parametrize("places", [None, {"out": PLACES[1]}], ids=["main memory", "another GPU"])
def test_output_that_nobody_wants_there(memory, places):
    """An output leaves the GPU of its step if the request does not want it on that one."""
    world = chain()
    put_on(world, memory, 0, 0)
    world.request(places=places)
    world.answer(0)
    assert world.open[0][1].places is None
    world.answer(0)
    ((response, _),) = answers_of(world)
    assert response.outputs[0].place is None
    world.check_over()


@given(ensembles(), st.integers(0, 2), st.data())
def test_whatever_happens(graphs, limit, data):
    """Each model finds its inputs where it reads them, and whatever happens all memory is free at the end."""
    world, memory = World(graphs, limit), Memory()
    world.frees_late = data.draw(st.booleans())
    for node, model in zip(graphs.nodes, world.models.values(), strict=True):
        gpu = data.draw(st.integers(0, 1))
        model.on_gpus = data.draw(st.sampled_from([on, on, reads_main_memory, nowhere]))(gpu, node)
        model.chunk = memory.region(gpu)
    models = {index: model.on_gpus for index, model in enumerate(world.models.values())}
    places = ensemble_places(graphs.graph().plan(None), models) or TensorPlaces({}, {})
    given_there = {name: memory.region(gpu) for name, gpu in places.reads.items() if name in graphs.given}
    wanted = data.draw(st.sampled_from([None, places.outputs, {name: PLACES[0] for name in graphs.outputs}]))
    for _ in range(data.draw(st.integers(1, 3))):
        world.request(memory=given_there, places=wanted)
    actions = ["answer"] * 6 + ["fail", "refuse", "cancel", "give up"]
    for action in data.draw(st.lists(st.sampled_from(actions))):
        world.act(action, data.draw)
    while world.open:
        world.answer(data.draw(st.integers(0, len(world.open) - 1)))
    for _, _, answers in world.jobs:
        for response, _ in answers:
            if isinstance(response, InferResponse):
                assert all(output.place is None or (wanted or {}).get(output.name) for output in response.outputs)
    world.check_over()
    memory.check_over()
