# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests while the cache looks them up; a lookup ends when the test ends it."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from pyruntime.runtime.caching.answers import CachedResponse
from pyruntime.runtime.caching.entry import encode
from pyruntime.runtime.caching.key import request_key
from pyruntime.runtime.caching.local import AT_ONCE_MAX, LocalCache
from pyruntime.runtime.caching.requests import CachedRequests
from pyruntime.runtime.config.spec import DynamicBatchingSpec
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.statistics import CacheStatistics, FailureReason, ModelStatistics
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.runtime.scheduling.response_order import ResponseOrder
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX
from pyruntime.utils.request_codec import RequestOptions

from .threads import Threads

OUTPUT = OutputTensor("OUT", "INT8", [1], b"a")


class Broken(Exception):
    """An exception of the extension."""


class Cache(Threads):
    """Keeps one entry, and takes its time over everything."""

    name = "tested"
    failure = Broken
    answers = None

    def __init__(self):
        super().__init__()
        self.kept = None

    def lookup(self, key):
        return self.kept

    def insert(self, key, entry):
        self.kept = memoryview(entry)


class Model:
    """Executes jobs."""

    spec = SimpleNamespace(name="m", outputs={"OUT": None}, decoupled=False, dynamic_batching=None)
    version = 1
    memory = None

    def __init__(self):
        self.statistics = ModelStatistics()
        self.statistics.cache = CacheStatistics()
        self.queued = []
        self.turns = []
        self.refusal = None

    def queue(self, job):
        if self.refusal is not None:
            raise self.refusal
        self.queued.append(job)

    def take_turn(self, job):
        self.turns.append(job)


class Slot:
    def __init__(self):
        self.frees = 0

    def free(self):
        self.frees += 1


class World:
    """A cache, a model, and one request."""

    def __init__(self, **spec):
        self.cache = Cache()
        self.model = Model()
        self.model.spec = SimpleNamespace(**(vars(Model.spec) | spec))
        self.cached = CachedRequests(self.cache, self.model)
        self.answers = []
        self.slot = Slot()
        self.job = self.make_job("id")

    def make_job(self, id, size=1):
        tensors = [("IN", "INT8", [size], b"x" * size, size, 0, 0)]
        respond = lambda outcome, final: self.answers.append((outcome, final))  # noqa: E731
        return Job(id, RequestOptions(), tensors, 1, None, [self.slot], respond, time.monotonic_ns())

    def counts(self):
        cache = self.model.statistics.cache
        return cache.hit_count, cache.miss_count


@pytest.fixture
def world():
    """`world(test, **spec)`: run a test, which is given a World of a model with this spec."""

    def run(test, **spec):
        async def main():
            await test(World(**spec))

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
        assert (world.model.queued, world.model.turns) == ([], [world.job])

    world(test)


def test_response_that_can_be_prepared(world):
    """A response of an entry has its key; not so one into the memory of a client, whose contents change."""

    async def test(world):
        world.cache.kept = memoryview(encode([OUTPUT]))
        in_memory = world.make_job("other")
        in_memory.client = SimpleNamespace(places={})
        for job in (world.job, in_memory):
            world.cached.start(job)
            world.cache.go()
        (first, _), (second, _) = world.answers
        assert first.key == request_key("m", 1, ["OUT"], [("IN", "INT8", [1], b"x")])
        assert not isinstance(second, CachedResponse)

    world(test)


@pytest.mark.parametrize(
    ("spec", "is_prepared"),
    [
        ({}, True),
        ({"decoupled": True}, False),
        ({"dynamic_batching": DynamicBatchingSpec(preserve_ordering=True)}, False),
        ({"dynamic_batching": DynamicBatchingSpec()}, True),
    ],
)
def test_models_with_prepared_answers(spec, is_prepared):
    """Those whose responses need no place among others, and are one for each request, if the cache keeps them."""
    model = Model()
    model.spec = SimpleNamespace(**(vars(Model.spec) | spec))
    assert (CachedRequests(LocalCache("local", {}), model).answers is not None) is is_prepared
    assert CachedRequests(Cache(), model).answers is None


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


class Region:
    """Counts its uses. The process that has it has one."""

    def __init__(self):
        self.uses = 1

    def count_on(self):
        self.uses += 1

    def close(self):
        self.uses -= 1


def test_region_of_a_response_that_is_inserted(world):
    """It stays open until the client releases the response, also if the process of the model ends meanwhile."""

    async def test(world):
        region = Region()
        world.cached.start(world.job)
        world.cache.go()
        world.job.respond(InferResponse("m", 1, "id", [OUTPUT], regions=(region,)), True)
        region.close()
        world.cache.go()
        ((response, _),) = world.answers
        assert region.uses == 1
        response.release()
        assert region.uses == 0

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


ORDERED = {"dynamic_batching": DynamicBatchingSpec(preserve_ordering=True)}


def test_lookups_in_order(world):
    """Where responses keep an order, a hit or a miss waits for the lookups of the requests before it."""

    async def test(world):
        second = world.make_job("2")
        world.cached.start(world.job)
        world.cached.start(second)
        world.cache.steps.reverse()
        world.cache.go()
        assert (len(world.cached), world.model.queued) == (2, [])
        world.cache.go()
        assert (len(world.cached), world.model.queued) == (0, [world.job, second])

    world(test, **ORDERED)


def test_order_of_responses(world):
    """A hit goes behind the requests that are being executed, and behind their insertion."""

    async def test(world):
        order = ResponseOrder(lambda: None)
        world.model.take_turn = order.begin
        world.cached.start(world.job)
        world.cache.go()
        order.begin(world.job)
        world.cache.kept = memoryview(encode([OUTPUT]))
        world.cached.start(world.make_job("hit"))
        world.cache.go()
        assert world.answers == []
        world.job.respond(InferResponse("m", 1, "id", [OUTPUT]), True)
        assert world.answers == []
        world.cache.go()
        assert [response.id for response, _ in world.answers] == ["id", "hit"]

    world(test, **ORDERED)


def test_one_thread(world, monkeypatch):
    """The cache `local` needs no thread for what is small; threads digest what is large, once."""
    digested = []

    def noting_key(*arguments):
        digested.append(threading.current_thread())
        return request_key(*arguments)

    monkeypatch.setattr("pyruntime.runtime.caching.requests.request_key", noting_key)

    async def test(world):
        cache = LocalCache("local", {"size": "4096"})
        await cache.open()
        world.cached = CachedRequests(cache, world.model)
        for size, is_here in ((1, True), (AT_ONCE_MAX + 1, False)):
            for is_hit in (False, True):
                job = world.make_job("", size)
                world.cached.start(job)
                await world.cached.wait_idle(60)
                assert (digested.pop() is threading.current_thread()) is is_here
                assert digested == []
                if not is_hit:
                    assert world.model.queued.pop() is job
                    job.respond(InferResponse("m", 1, "", [OUTPUT]), True)
                    await world.cached.wait_idle(60)
                assert world.answers.pop()[0].outputs == [OUTPUT]
        assert world.counts() == (2, 2)
        await cache.close()

    world(test)


STREAMS = {"decoupled": True}
STREAM = [[OUTPUT], [OUTPUT], None]


def stream_entry(stream):
    return memoryview(b"".join(map(encode, stream)))


def test_stream_hit(world):
    """All responses, in order, and one hit when the last one is sent."""

    async def test(world):
        world.cache.kept = stream_entry(STREAM)
        world.cached.start(world.job)
        world.cache.go()
        assert [(outcome and outcome.outputs, final) for outcome, final in world.answers] == [
            ([OUTPUT], False),
            ([OUTPUT], False),
            (None, True),
        ]
        assert (world.slot.frees, world.counts(), world.model.turns) == (1, (1, 0), [world.job])

    world(test, **STREAMS)


def test_stream_miss(world):
    """Responses pass at once, but for the last one, which waits for the insertion."""

    async def test(world):
        world.cached.start(world.job)
        world.cache.go()
        response = InferResponse("m", 1, "id", [OUTPUT])
        for _ in range(2):
            world.job.respond(response, False)
        world.job.respond(None, True)
        assert world.answers == [(response, False)] * 2
        world.cache.go()
        assert world.answers[2:] == [(None, True)]
        assert world.cache.kept == stream_entry(STREAM)
        assert world.counts() == (0, 1)

    world(test, **STREAMS)


def test_stream_that_fails(world):
    """It is a miss, and is not kept."""

    async def test(world):
        world.cached.start(world.job)
        world.cache.go()
        failure = InferenceError("no")
        world.job.respond(InferResponse("m", 1, "id", [OUTPUT]), False)
        world.job.respond(failure, True)
        assert world.answers[1:] == [(failure, True)]
        assert (world.cache.steps, world.counts()) == ([], (0, 1))

    world(test, **STREAMS)


def test_replay_that_is_cancelled(world):
    """It ends at once, as cancelled; nothing waits for it any more."""

    async def test(world):
        world.cache.kept = stream_entry([[OUTPUT]] * (RESPONSES_AHEAD_MAX + 2))
        world.cached.start(world.job)
        world.cache.go()
        waiting = asyncio.create_task(world.cached.wait_idle(60))
        await asyncio.sleep(0)
        assert world.cached.cancel(world.job)
        failure, final = world.answers[-1]
        assert (failure.code, final) == (Code.CANCELLED, True)
        await waiting
        assert not world.cached.cancel(world.job)
        assert world.counts() == (0, 0)
        assert world.model.statistics.failures[FailureReason.CANCELED] == 1

    world(test, **STREAMS)


def test_replay_that_takes_too_long(world):
    """The end of the model ends it."""

    async def test(world):
        world.cache.kept = stream_entry([[OUTPUT]] * (RESPONSES_AHEAD_MAX + 2))
        world.cached.start(world.job)
        world.cache.go()
        failure = InferenceError("it was unloaded")
        world.cached.fail_replays(failure)
        assert world.answers[-1] == (failure, True)
        await world.cached.wait_idle(60)

    world(test, **STREAMS)


def test_an_entry_of_the_other_kind(world):
    """A stream is no response of a model that answers once, which executes the request."""

    async def test(world):
        world.cache.kept = stream_entry(STREAM)
        world.cached.start(world.job)
        world.cache.go()
        assert world.model.queued == [world.job]

    world(test)
