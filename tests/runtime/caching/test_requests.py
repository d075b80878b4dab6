# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests while the cache looks them up; a lookup ends when the test ends it."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from pyruntime.runtime.caching.entry import encode
from pyruntime.runtime.caching.requests import CachedRequests
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.statistics import CacheStatistics, FailureReason, ModelStatistics
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions

OUTPUT = OutputTensor("OUT", "INT8", [1], b"a")


class Broken(Exception):
    """An exception of the extension."""


class Cache:
    """Keeps one entry, and takes its time over everything."""

    name = "tested"
    failure = Broken

    def __init__(self):
        self.kept = None
        self.steps = []

    def lookup(self, key):
        return self.kept

    def insert(self, key, entry):
        self.kept = memoryview(entry)

    def post(self, step, call_back, size):
        self.steps.append((step, call_back))

    def go(self):
        """Perform the step that was posted first."""
        step, call_back = self.steps.pop(0)
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(step())
        except Exception as exc:
            done.set_exception(exc)
        call_back(done)


class Model:
    """Executes jobs."""

    spec = SimpleNamespace(name="m", outputs={"OUT": None})
    version = 1
    memory = None

    def __init__(self):
        self.statistics = ModelStatistics()
        self.statistics.cache = CacheStatistics()
        self.queued = []
        self.refusal = None

    def queue(self, job):
        if self.refusal is not None:
            raise self.refusal
        self.queued.append(job)


class Slot:
    def __init__(self):
        self.frees = 0

    def free(self):
        self.frees += 1


class World:
    """A cache, a model, and one request."""

    def __init__(self):
        self.cache = Cache()
        self.model = Model()
        self.cached = CachedRequests(self.cache, self.model)
        self.answers = []
        self.slot = Slot()
        tensors = [("IN", "INT8", [1], b"x", 1, 0, 0)]
        respond = lambda outcome, final: self.answers.append((outcome, final))  # noqa: E731
        self.job = Job("id", RequestOptions(), tensors, 1, None, [self.slot], respond, time.monotonic_ns())

    def counts(self):
        cache = self.model.statistics.cache
        return cache.hit_count, cache.miss_count


@pytest.fixture
def world():
    """`world(test)`: run a test, which is given a World."""

    def run(test):
        async def main():
            await test(World())

        asyncio.run(main())

    return run


def test_hit(world):
    """The request memory is free, and the answer final."""

    async def test(world):
        world.cache.kept = memoryview(encode([OUTPUT]))
        world.cached.start(world.job)
        assert len(world.cached) == 1
        world.cache.go()
        ((response, final),) = world.answers
        assert (response.outputs, response.id, final) == ([OUTPUT], "id", True)
        assert (world.slot.frees, len(world.cached), world.counts()) == (1, 0, (1, 0))
        assert world.model.queued == []

    world(test)


def test_miss(world):
    """The response is sent when the cache has it."""

    async def test(world):
        world.cached.start(world.job)
        world.cache.go()
        assert world.model.queued == [world.job]
        response = InferResponse("m", 1, "id", [OUTPUT])
        world.job.respond(response, True)
        assert world.answers == []
        world.cache.go()
        assert world.answers == [(response, True)]
        assert bytes(world.cache.kept) == encode([OUTPUT])
        assert world.counts() == (0, 1)

    world(test)


def test_failure(world):
    """It is sent at once, and not kept."""

    async def test(world):
        world.cached.start(world.job)
        world.cache.go()
        failure = InferenceError("no")
        world.job.respond(failure, True)
        assert world.answers == [(failure, True)]
        assert world.cache.steps == []

    world(test)


def test_cancelled_while_it_is_looked_up(world):
    """It is answered as one that was cancelled while it queued, even if the cache has a response."""

    async def test(world):
        world.cache.kept = memoryview(encode([OUTPUT]))
        world.cached.start(world.job)
        assert world.cached.cancel(world.job)
        assert world.answers == []
        world.cache.go()
        ((failure, final),) = world.answers
        assert (failure.code, failure.message, final) == (Code.CANCELLED, "", True)
        assert world.model.statistics.failures[FailureReason.CANCELED] == 1
        assert (world.slot.frees, world.model.queued, world.counts()) == (1, [], (0, 0))

    world(test)


def test_cancelled_later(world):
    """That is for the scheduler to see to."""

    async def test(world):
        world.cached.start(world.job)
        world.cache.go()
        assert not world.cached.cancel(world.job)

    world(test)


def test_a_full_queue(world):
    """It is too late to refuse the request: it is answered with the refusal."""

    async def test(world):
        world.model.refusal = InferenceError("Exceeds maximum queue size", Code.UNAVAILABLE)
        world.cached.start(world.job)
        world.cache.go()
        assert world.answers == [(world.model.refusal, True)]

    world(test)


def test_memory_that_is_gone(world):
    """A request that cannot be read is answered all the same."""

    async def test(world):
        world.job.tensors = [("IN", "INT8", [1], 64, 1, 0, 0)]
        world.cached.start(world.job)
        world.cache.go()
        ((failure, final),) = world.answers
        assert isinstance(failure, InferenceError)
        assert final
        assert world.slot.frees == 1

    world(test)


def test_waiting(world):
    """Until nothing is looked up or inserted any more."""

    async def test(world):
        await world.cached.wait_idle(0)
        world.cached.start(world.job)
        waiting = asyncio.create_task(world.cached.wait_idle(60))
        await asyncio.sleep(0)
        world.cache.go()
        await waiting
        world.job.respond(InferResponse("m", 1, "id", [OUTPUT]), True)
        waiting = asyncio.create_task(world.cached.wait_idle(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        world.cache.go()
        await waiting

    world(test)


def test_waiting_no_longer(world):
    """A cache that does not finish does not block the wait for ever."""

    async def test(world):
        world.cached.start(world.job)
        await world.cached.wait_idle(0)
        assert len(world.cached) == 1

    world(test)
