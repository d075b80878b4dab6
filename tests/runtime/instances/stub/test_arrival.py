# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Batches with inputs on a GPU that their instance does not read: the test says when a copy is complete.

The stub is on the second GPU. Requests came when the instances of its model were on the first one.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.memory.gpu_peers import Tensor
from pyruntime.runtime.regions import create_region
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, LocalError
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU

from ...event_loops import settle
from ...gpu_copies import LOST, Peers
from ...gpu_regions import gpu_region
from .test_batches import EMPTY, KILLED, Bench, Request, result
from .test_gpu_calls import Lessor

BUG = "the server failed to copy inputs of a request; its log says why"


class GpuBench(Bench):
    """The batches of a stub on the second GPU. `elsewhere` is memory on the first one, `copy` the host's."""

    def __init__(self, gpu=1, **kwargs):
        self.peers = Peers()
        self.memory = object()
        super().__init__(gpu=gpu, memory=self.memory, server=SimpleNamespace(peers=self.peers), **kwargs)
        self.connection.is_serving = True
        lessor = Lessor()
        self.elsewhere, self.here, self.copy = (gpu_region(each, lessor) for each in (0, 1, 1))
        self.shared = create_region("other inputs")

    def run(self, check):
        async def within():
            async with asyncio.TaskGroup() as tasks:
                self.peers.tasks = tasks
                await check()

        asyncio.run(within())

    def request(self, region=None):
        """A request with an input on a GPU, of 4 bytes at 8, and another one that lies on none."""
        region = region or self.elsewhere
        request = Request(regions=[self.shared, region])
        there = ("A", "UINT8", [4], address(region.number, 8), 4, MEMORY_GPU, region.gpu.ordinal)
        request.job.tensors = [("B", "UINT8", [1], b"b", 1, MEMORY_CPU, 0), there]
        return request

    async def complete(self, region=None):
        """The copy is complete, at 64 of the host's memory on the GPU or of this region."""
        region = region or self.copy
        self.peers.complete(region, address(region.number, 64))
        await settle()

    def close(self):
        super().close()
        self.shared.close()


@pytest.fixture
def benches():
    """A function that makes a bench."""
    made = []

    def make(**kwargs):
        made.append(GpuBench(**kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def bench(benches):
    return benches()


@pytest.mark.parametrize("gpu", [1, None])
def test_copied_first(benches, gpu):
    """The stub gets the batch with the copy, which is free with the request: on its GPU, or in main memory."""
    bench = benches(gpu=gpu)

    async def check():
        first, second = bench.post(bench.request(), Request())
        await settle()
        assert (bench.connection.batches, bench.batches.capacity, bench.batches.is_idle) == ([], 0, False)
        assert (len(bench.batches), bench.batches.waiting, len(bench.batches.running)) == (1, 2, 1)
        assert bench.peers.moves[0][:3] == ([Tensor(bench.elsewhere, 8, 4)], gpu, bench.memory)
        copy = bench.shared if gpu is None else bench.copy
        await bench.complete(copy)
        assert [number for number, _ in bench.connection.batches] == [1]
        assert (first.job.serial, second.job.serial) == (1, 2)
        where = (MEMORY_CPU, 0) if gpu is None else (MEMORY_GPU, 1)
        assert first.job.tensors[1] == ("A", "UINT8", [4], address(copy.number, 64), 4, *where)
        assert (set(bench.connection.granted), set(first.job.regions)) == ({bench.shared, copy}, {bench.shared, copy})
        assert (len(bench.peers.slots), bench.batches.capacity, bench.owner.places_freed) == (1, 1, 1)
        bench.batches.answered(result(1, EMPTY, EMPTY))
        assert (bench.peers.slots, first.is_free, first.response.id) == ([], True, "7")

    bench.run(check)


def test_what_lies_there_is_not_copied(bench):
    """A request whose inputs lie on the instance's own GPU is executed at once."""
    request = bench.post(bench.request(bench.here))
    assert (request.job.serial, bench.peers.moves) == (1, [])
    assert bench.connection.granted == [bench.shared, bench.here]


def test_no_other_batch_meanwhile(bench):
    """There is no room before the copies are complete, also not after the end of an earlier batch."""

    async def check():
        bench.post()
        bench.post(bench.request())
        await settle()
        bench.batches.answered(result(1, EMPTY))
        assert bench.batches.capacity == 0
        await bench.complete()
        assert bench.batches.capacity == 1

    bench.run(check)


def test_a_failure_fails_one_request(bench):
    """A request whose inputs are lost fails. The others of its batch are executed."""

    async def check():
        lost, kept = bench.post(bench.request(), bench.request())
        await settle()
        bench.peers.fail()
        await settle()
        await bench.complete()
        assert (lost.failure.message, lost.is_free, kept.outcomes) == (LOST.message, True, [])
        assert kept.job.serial == 1
        bench.batches.answered(result(1, EMPTY))
        assert (kept.response.id, bench.peers.slots) == ("7", [])

    bench.run(check)


def test_a_loss_fails_one_request(bench):
    """A request whose inputs were lost while it queued fails. The others of its batch are executed."""
    bench.here.lose("the broker of GPU 1 was lost")
    grant = bench.connection.grant

    def grant_what_is_there(region):
        if region is bench.here:
            raise LocalError(region.loss)
        grant(region)

    bench.connection.grant = grant_what_is_there
    kept, lost = bench.post(Request(), bench.request(bench.here))
    assert lost.failure.message == "the request cannot be sent to m_0: the broker of GPU 1 was lost"
    assert (lost.failure.code, lost.is_free) == (Code.UNAVAILABLE, True)
    assert (kept.outcomes, kept.job.serial, len(bench.batches), bench.batches.capacity) == ([], 1, 1, 1)
    bench.batches.answered(result(1, EMPTY))
    assert kept.response.id == "7"


def test_a_bug_fails_the_batch(bench):
    """The requests fail, and the instance goes on."""

    async def check():
        first, second = bench.post(bench.request(), bench.request())
        await settle()
        await bench.complete()
        bench.peers.fail(KeyError("a bug"))
        await settle()
        assert [each.failure.message for each in (first, second)] == [BUG, BUG]
        assert (first.is_free, second.is_free, bench.peers.slots) == (True, True, [])
        assert (bench.batches.capacity, len(bench.batches), bench.owner.places_freed) == (2, 0, 1)

    bench.run(check)


def test_cancelled(bench):
    """A request that is cancelled meanwhile is not executed."""

    async def check():
        request = bench.post(bench.request())
        bench.batches.cancel(request.job)
        await settle()
        assert request.outcomes == []
        await bench.complete()
        assert (request.failure.code, request.is_free, bench.peers.slots) == (Code.CANCELLED, True, [])
        assert (bench.connection.batches, bench.batches.capacity) == ([], 2)

    bench.run(check)


def test_executed_although_the_instance_leaves(bench):
    """An instance that is to stop executes what it was given before, and takes nothing more."""

    async def check():
        request, ends = bench.post(bench.request()), []
        await settle()
        bench.batches.close(lambda: ends.append(True))
        await bench.complete()
        assert (request.job.serial, bench.batches.capacity, ends) == (1, 0, [])
        bench.batches.answered(result(1, EMPTY))
        assert (request.response.id, bench.batches.capacity, ends) == ("7", 0, [True])

    bench.run(check)


@pytest.mark.parametrize("restarts", [True, False])
def test_death(bench, restarts):
    """A batch that never began is put back. Its memory, and the copy, is free when the broker no longer copies."""

    async def check():
        request = bench.post(bench.request())
        await settle()
        bench.batches.died(KILLED, restarts)
        assert (bench.owner.put_backs, len(bench.batches)) == ([[request.job]] if restarts else [], 0)
        if restarts:
            assert (request.job.instance, request.outcomes) == (None, [])
            assert request.job.tensors[1][5:] == (MEMORY_GPU, 0)
            request.job.free()
        else:
            assert "is not healthy" in request.failure.message
        assert not request.is_free
        await bench.complete()
        assert (request.is_free, bench.peers.slots, bench.connection.batches) == (True, [], [])

    bench.run(check)


def test_put_back_twice(bench):
    """A request may be given to a second instance that does not read its input while the first copy is under way."""

    async def check():
        request = bench.post(bench.request())
        await settle()
        bench.connection.is_serving = False
        await bench.complete()
        assert (request.outcomes, bench.peers.slots, len(bench.batches)) == ([], [], 1)
        bench.batches.died(KILLED, restarts=True)
        assert (bench.owner.put_backs, request.is_free) == ([[request.job]], False)
        other = GpuBench()
        other.peers.tasks = bench.peers.tasks
        other.post(request)
        await settle()
        other.peers.complete(other.copy, address(other.copy.number, 0))
        await settle()
        other.batches.answered(result(1, EMPTY))
        assert (request.response.id, request.is_free, other.peers.slots) == ("7", True, [])
        other.close()

    bench.run(check)
