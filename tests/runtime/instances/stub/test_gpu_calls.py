# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls between models on two GPUs: the test says when a copy is complete, and the stub on the first one calls."""

import asyncio
from dataclasses import replace

import pytest

from pyruntime.runtime.gpus.tensor_places import TensorPlaces
from pyruntime.runtime.memory.gpu_peers import GpuSlot, Tensor
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.requests.types import InferResponse, OnGpu, OutputTensor
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code
from pyruntime.utils.messages import NO_SLOT, Answer, MapGpu, ReleaseHold, Unread
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU

from ...event_loops import settle
from ...gpu_copies import LOST, Peers
from ...gpu_regions import gpu_region
from .test_calls import SIZE, Bench, Callee

DECOUPLED = "model_transaction_policy { decoupled: true }"


class Lessor:
    """Owns regions on GPUs."""

    def __init__(self):
        self.ended = []

    def writer_ended(self, region):
        """See regions.Lessor."""

    def unused(self, region):
        self.ended.append(region)


class GpuBench(Bench):
    """The caller is on the first GPU, and the callee on the second one."""

    def __init__(self, text=""):
        super().__init__(text)
        self.lessor = Lessor()
        self.here, self.there, self.copy = (gpu_region(gpu, self.lessor) for gpu in (0, 1, 0))
        self.peers = self.server.peers = Peers()
        self.memory = self.callee.memory = RequestMemory("other", 4096, 4096)
        self.callee.expected = 0
        self.callee.on_gpus = TensorPlaces({"IN": 1}, {"OUT": (0, 0, MEMORY_GPU, 1)})
        self.calls._plan = replace(self.calls._plan, gpu=0)
        self.connection.regions.lease(self.here)
        self.taken = []

    def run(self, check):
        """Run `check`, and what it has calls do."""

        async def within():
            async with asyncio.TaskGroup() as tasks:
                self.calls._tasks = tasks
                await check()
                assert self.callee.expected == 0

        asyncio.run(within())

    def on_gpu(self, number=1, size=4):
        """A response with an output on the callee's GPU."""
        output = OutputTensor("OUT", "UINT8", [size], b"", address(self.there.number, number), OnGpu(self.there, size))
        regions = (self.outputs, self.there)
        return InferResponse("other", 1, "7", [output], {}, lambda: self.released.append(number), regions=regions)

    def close(self):
        super().close()
        self.memory.close()


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(Callee, "expect", lambda self: setattr(self, "expected", self.expected + 1), raising=False)
    monkeypatch.setattr(Callee, "arrived", lambda self: setattr(self, "expected", self.expected - 1), raising=False)
    made = []

    def make(text=""):
        made.append(GpuBench(text))
        return made[-1]

    yield make
    for each in made:
        each.close()


def outputs(message):
    """What an Answer says of its outputs: where they are, how large, and in which memory."""
    return [each[3:] for each in message.response[3]]


class TestOutputs:
    def test_are_copied_before_the_answer(self, bench):
        """The caller has an output on its own GPU, which stays until the caller drops it."""
        bench = bench()

        async def check():
            bench.call()
            job = bench.callee.jobs[0]
            assert job.places == {"OUT": (0, 0, MEMORY_GPU, 1)}
            job.respond(bench.on_gpu(), True)
            await settle()
            assert bench.stub.hear() == []
            assert bench.peers.moves[0][:3] == ([Tensor(bench.there, 1, 4)], 0, bench.memory)
            bench.peers.complete(bench.copy, address(bench.copy.number, 64))
            await settle()
            *_, granted, answer = bench.stub.hear()
            assert (type(granted), granted.number) == (MapGpu, bench.copy.number)
            assert outputs(answer) == [[address(bench.copy.number, 64), 4, MEMORY_GPU, 0]]
            assert (len(bench.peers.slots), bench.released) == (1, [])
            bench.calls.drop(ReleaseHold([1]))
            assert (bench.peers.slots, bench.released) == ([], [1])

        bench.run(check)

    def test_stay_in_order(self, bench):
        """What needs no copy waits for what does, and so does the end."""
        bench = bench(DECOUPLED)

        async def check():
            bench.call(decoupled=True)
            respond = bench.callee.jobs[0].respond
            for response in (bench.on_gpu(1), bench.response(), bench.on_gpu(2)):
                respond(response, False)
            respond(None, True)
            await settle()
            assert (bench.stub.hear(), len(bench.peers.moves)) == ([], 1)
            bench.peers.complete(bench.copy, address(bench.copy.number, 64))
            await settle()
            answers = [each for each in bench.stub.hear() if isinstance(each, Answer)]
            where = [outputs(each)[0][0] for each in answers]
            assert where == [address(bench.copy.number, 64), address(bench.outputs.number, 64)]
            bench.peers.complete(bench.copy, address(bench.copy.number, 128))
            await settle()
            last, end = (each for each in bench.stub.hear() if isinstance(each, Answer))
            assert outputs(last)[0][0] == address(bench.copy.number, 128)
            assert (end, len(bench.calls)) == (Answer(1, None, True), 0)

        bench.run(check)

    def test_through_main_memory(self, bench):
        """What has no room on the caller's GPU lies in memory of the callee, or is sent along if it is small."""
        bench = bench()

        async def check():
            region = bench.memory.region
            for number, size in ((1, 4), (2, SIZE)):
                bench.call(number=number).respond(bench.on_gpu(number, size), True)
                await settle()
                slot = bench.memory.allocate(size, data=b"x" * size)
                bench.peers.complete(region, address(region.number, slot.offset))
                await settle()
                (answer,) = bench.stub.hear()
                where = b"xxxx" if size == 4 else address(region.number, slot.offset)
                assert outputs(answer) == [[where, size, MEMORY_CPU, 0]]
                assert bench.released == [1]
                slot.free()
            assert bench.stub.granted()[-1] == region.number

        bench.run(check)

    def test_keep_the_memory_of_the_callee(self, bench):
        """A callee that is unloaded waits from its answer on until no output is copied to its memory any more."""
        bench = bench(DECOUPLED)

        async def check():
            bench.call(decoupled=True)
            respond = bench.callee.jobs[0].respond
            respond(bench.on_gpu(1), False)
            assert bench.callee.expected == 1
            respond(bench.on_gpu(2), True)
            for at in (64, 128):
                await settle()
                assert bench.callee.expected == 1
                bench.peers.complete(bench.copy, address(bench.copy.number, at))
            await settle()

        bench.run(check)

    def test_are_lost(self, bench):
        """A copy that fails is the answer, and the response is released."""
        bench = bench()

        async def check():
            bench.call().respond(bench.on_gpu(), True)
            await settle()
            bench.peers.fail()
            await settle()
            assert bench.stub.hear() == [Answer(1, [Code.UNAVAILABLE, LOST.message, NO_SLOT, [], ""], True)]
            assert bench.released == [1]

        bench.run(check)

    def test_of_which_a_copy_fails_by_a_bug(self, bench):
        """The caller has an error instead, once, and whatever the callee answers is released."""
        bench = bench(DECOUPLED)

        async def check():
            bench.call(decoupled=True)
            respond = bench.callee.jobs[0].respond
            respond(bench.on_gpu(1), False)
            respond(bench.on_gpu(2), False)
            await settle()
            bench.peers.fail(KeyError("a bug"))
            await settle()
            failure = [Code.INTERNAL, "the server failed to copy outputs of a call; its log says why", NO_SLOT, [], ""]
            assert bench.stub.hear() == [Answer(1, failure, True)]
            respond(bench.on_gpu(3), True)
            assert (bench.released, len(bench.calls), bench.stub.hear()) == ([1, 2, 3], 0, [])
            assert bench.callee.cancelled == bench.callee.jobs

        bench.run(check)

    def test_of_a_caller_that_died(self, bench):
        """Nothing is sent, and all is released, as soon as the copy is complete: until then the broker writes."""
        bench = bench()

        async def check():
            bench.call().respond(bench.on_gpu(), True)
            await settle()
            bench.calls.died()
            assert bench.released == []
            bench.peers.complete(bench.copy, address(bench.copy.number, 64))
            await settle()
            assert (bench.stub.hear(), bench.released, bench.peers.slots) == ([], [1], [])
            assert (len(bench.calls), bench.there.is_closed) == (0, False)

        bench.run(check)

    def test_that_might_lie_there_and_do_not(self, bench):
        """Small outputs in main memory are sent along, also where they may lie on a GPU."""
        bench = bench()

        async def check():
            bench.call().respond(bench.response(size=3), True)
            (answer,) = bench.stub.hear()
            assert outputs(answer) == [[b"xxx", 3, MEMORY_CPU, 0]]
            assert (bench.released, bench.stub.granted()) == ([64], [])

        bench.run(check)

    def test_that_cannot_be_copied(self, bench):
        """As far as that is known, such outputs leave their GPU at once."""
        bench = bench()

        async def check():
            bench.peers.unreachable.add((1, 0))
            assert bench.call().places is None

        bench.run(check)


class TestInputs:
    def given(self, bench):
        """A call with an input on the caller's GPU. Returns its job, if it has begun."""
        return bench.call(["IN", "FP32", [1, 2], address(bench.here.number, 64), 8, MEMORY_GPU, 0])

    def test_are_copied_before_the_call(self, bench):
        """The callee finds them on its own GPU. The copy is free when it is done with it, as the caller's tensor is."""
        bench = bench()

        async def check():
            assert self.given(bench) is None
            await settle()
            assert bench.peers.moves[0][:3] == ([Tensor(bench.here, 64, 8)], 1, bench.memory)
            bench.peers.complete(bench.there, address(bench.there.number, 0))
            await settle()
            (job,) = bench.callee.jobs
            assert job.tensors == [("IN", "FP32", [1, 2], address(bench.there.number, 0), 8, MEMORY_GPU, 1)]
            assert job.regions == [bench.there]
            job.free()
            assert bench.peers.slots == []
            job.respond(None, True)
            assert bench.stub.hear() == [Unread([1]), Answer(1, None, True)]

        bench.run(check)

    def test_are_lost(self, bench):
        """The call fails, and the caller may use the memory again."""
        bench = bench()

        async def check():
            self.given(bench)
            await settle()
            bench.peers.fail()
            await settle()
            unread, answer = bench.stub.hear()
            assert (unread, bench.callee.jobs) == (Unread([1]), [])
            assert LOST.message in answer.response[1]

        bench.run(check)

    def test_of_which_a_copy_fails_by_a_bug(self, bench):
        """The call fails, and the caller may use the memory again."""
        bench = bench()

        async def check():
            self.given(bench)
            await settle()
            bench.peers.fail(KeyError("a bug"))
            await settle()
            unread, answer = bench.stub.hear()
            assert (unread, bench.callee.jobs, len(bench.calls)) == (Unread([1]), [], 0)
            assert answer.response[:2] == [
                Code.INTERNAL,
                "the server failed to copy inputs of a call; its log says why",
            ]

        bench.run(check)

    def test_of_a_caller_that_died(self, bench):
        """The call does not begin, and the copy is free when it is complete."""
        bench = bench()

        async def check():
            self.given(bench)
            await settle()
            bench.calls.died()
            bench.peers.complete(bench.there, address(bench.there.number, 0))
            await settle()
            assert (bench.callee.jobs, bench.peers.slots, len(bench.calls)) == ([], [], 0)

        bench.run(check)

    def test_that_a_dead_callee_has_passed_on(self, bench):
        """A copy that a stub was given is not free before a model that it called is done with it."""
        bench = bench()

        async def check():
            bench.callee.on_gpus = TensorPlaces({"IN": 0}, {})
            assert self.given(bench).regions == [bench.here]
            freed = []
            bench.calls.died()
            bench.calls.free_unread([GpuSlot(bench.here, lambda: freed.append(1))])
            assert freed == []
            bench.callee.jobs[0].free()
            assert freed == [1]

        bench.run(check)
