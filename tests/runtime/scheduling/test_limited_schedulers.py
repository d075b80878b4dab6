# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The schedulers of a server with a rate limiter, between jobs and instances that only note their calls."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.execution.deadlock import FREE, explain_deadlock
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.scheduling.factory import create_scheduler
from pyruntime.runtime.scheduling.limited_schedulers import LimitedScheduler, LimitedSequenceScheduler
from pyruntime.runtime.scheduling.resource_grants import ResourceGrants
from pyruntime.runtime.settings import ResourceLimit
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions
from tests.patience import PATIENCE_S

from ..event_loops import in_a_loop
from ..model_specs import spec_from

CONFIG = "name: 'm' backend: 'b' max_batch_size: 4 input { name: 'IN' data_type: TYPE_INT32 dims: 2 } "


class Worker:
    """Executes one batch, and waits for calls as the test says."""

    def __init__(self, model_name, batch):
        self.model_name = model_name
        self.batch = batch
        self.calls = []

    def waiting_calls(self):
        return self.calls


class Instance:
    """Executes as many batches at a time as it has places. `fails` refuses batches without executing them."""

    def __init__(self, name="m", places=1):
        self.name = name
        self.places = places
        self.running = []
        self.is_ready = True
        self.fails = False
        self.at_execute = lambda: None

    @property
    def inflight(self):
        """It stands for its batches, too."""
        return self

    @property
    def capacity(self):
        return self.places - len(self.running)

    @property
    def is_idle(self):
        return not self.running

    def workers(self):
        return self.running if not self.capacity else (FREE,)

    def execute(self, batch):
        assert self.capacity > 0
        self.at_execute()
        if self.fails:
            end(batch)
        else:
            self.running.append(Worker(self.name, batch))

    def finish(self, owner):
        end(self.running.pop(0).batch)
        owner.capacity_freed()

    def die(self, owner):
        """As a stub that dies: its batches fail, and its owner is told."""
        running, self.running = self.running, []
        for worker in running:
            end(worker.batch, InferenceError("died"))
        owner.executor_changed()


def end(batch, outcome=None):
    for each in batch:
        each.free()
        each.respond(outcome, True)


class Slot:
    def free(self):
        pass


def job(id=0, flags=0, outcomes=None):
    def respond(outcome, final):
        if outcomes is not None:
            outcomes.append(outcome)

    options = RequestOptions(id, flags)
    tensors = [("IN", "INT32", [1, 2], 0, 8, 0, 0)]
    return Job("", options, tensors, 1, None, [Slot()], respond, time.monotonic_ns())


@pytest.fixture
def memory():
    made = RequestMemory("m", 1 << 16, 1 << 16)
    yield made
    made.close()


class Server:
    """The schedulers of a server: `model(name, needs, ...)` makes one with its instances."""

    def __init__(self, memory=None, **limits):
        self.grants = ResourceGrants(ResourceLimit(name, amount) for name, amount in limits.items())
        self.memory = memory

    def add(self, instance, **needs):
        given = tuple((name, True, count) for name, count in needs.items())
        self.grants.add(instance, InstanceSpec(instance.name, "CPU", 0, needs=given), instance.name)
        return instance

    def model(self, *instances, more=""):
        spec = spec_from(CONFIG + more, files=[])
        made = create_scheduler(spec, lambda: None, ModelStatistics(), self.memory, None, self.grants)
        made.serve(instances)
        return made


class TestScheduler:
    def test_one_after_the_other(self):
        """What waits for a resource begins when it is released, also at another model."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = server.model(a), server.model(b)
        assert isinstance(first, LimitedScheduler)
        first.submit(job())
        second.submit(job())
        first.submit(job())
        assert (len(a.running), len(b.running), len(first), len(second)) == (1, 0, 1, 1)
        a.finish(first)
        assert (len(a.running), len(b.running)) == (0, 1)
        b.finish(second)
        assert (len(a.running), len(b.running), len(first), len(second)) == (1, 0, 0, 0)

    def test_free_ones_first(self):
        """Instances that need nothing of the same model get their work as without a limiter."""
        server = Server()
        limited, free = server.add(Instance(), R=1), Instance()
        made = server.model(limited, free)
        assert made.free_instance() is free
        made.submit(job())
        made.submit(job())
        made.submit(job())
        assert (len(free.running), len(limited.running), len(made)) == (1, 1, 1)
        assert made.free_instance() is None
        assert made.lone_instance() is None
        assert list(made.executors) == [limited, free]

    def test_failed_at_once(self):
        """A batch that fails while it begins holds nothing."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = server.model(a), server.model(b)
        a.fails = True
        first.submit(job())
        second.submit(job())
        assert len(b.running) == 1

    def test_submitted_while_it_begins(self):
        """A client that answers a failure with another request does not release what others hold."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = server.model(a), server.model(b)
        left = [job(), job()]

        def again(_outcome, _final):
            if left:
                first.submit(left.pop())
                second.submit(job())
                a.fails = bool(left)

        each = job()
        each.respond = again
        a.fails = True
        first.submit(each)
        assert len(a.running) + len(b.running) == 1

    def test_submitted_before_it_runs(self):
        """A request that arrives while an instance is given its batch does not release what that is granted."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = server.model(a), server.model(b)
        a.at_execute = lambda: (second.submit(job()), first.submit(job()))
        first.submit(job())
        assert (len(a.running), len(b.running)) == (1, 0)

    @pytest.mark.parametrize("way", ["dies", "leaves", "ends"])
    def test_gives_back(self, way):
        """An instance that dies, or leaves and has finished, or has ended, holds nothing."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = server.model(a), server.model(b)
        first.submit(job())
        second.submit(job())
        if way == "dies":
            a.die(first)
        elif way == "leaves":
            first.serve([])
            first.submit(job())
            assert not b.running
            a.finish(first)
            assert not a.running
        else:
            first.limited.ended(a)
            first.limited.ended(a)
        assert len(b.running) == 1

    def test_cancelled(self):
        """A request that is cancelled reserves nothing."""
        server = Server(R=2, S=1)
        a, both, s = (server.add(Instance(name), **needs) for name, needs in
                      (("a", {"R": 1}), ("both", {"R": 2, "S": 1}), ("s", {"S": 1})))  # fmt: skip
        models = [server.model(each) for each in (a, both, s)]
        models[0].submit(job())
        waits = job()
        models[1].submit(waits)
        models[2].submit(job())
        assert not s.running
        models[1].cancel(waits)
        assert len(s.running) == 1
        models[0].submit(job())
        models[0].fail_all(InferenceError("", Code.UNAVAILABLE))
        assert len(models[0]) == 0

    def test_threads(self):
        """An instance of several threads is granted its resources for each batch."""
        server = Server(R=3)
        instance = server.add(Instance(places=4), R=1)
        made = server.model(instance)
        for _ in range(5):
            made.submit(job())
        assert len(instance.running) == 3
        instance.finish(made)
        assert len(instance.running) == 3
        assert len(made) == 1

    @in_a_loop
    async def test_delay(self):
        """A batch that is not due keeps nobody waiting, and begins when it is."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        slow = server.model(a, more="dynamic_batching { max_queue_delay_microseconds: 10000 }")
        quick = server.model(b)
        slow.submit(job())
        quick.submit(job())
        assert len(b.running) == 1
        b.finish(quick)
        waiting = asyncio.create_task(slow.wait_empty(PATIENCE_S))
        await waiting
        assert len(a.running) == 1

    @given(st.lists(st.tuples(st.sampled_from(["submit", "finish", "die", "cancel"]), st.integers(0, 3)), max_size=60))
    def test_any_steps(self, steps):
        """Never more runs than fits; whatever could run does; and each request is answered once."""
        server = Server(R=3)
        needs = [1, 2, 3, 1]
        instances = [server.add(Instance(str(index)), R=count) for index, count in enumerate(needs)]
        models = [server.model(each) for each in instances]
        answers, jobs, submitted = [], [[], [], [], []], 0
        for step, index in steps:
            model, instance = models[index], instances[index]
            if step == "submit":
                jobs[index].append(job(outcomes=answers))
                model.submit(jobs[index][-1])
                submitted += 1
            elif step == "die":
                instance.die(model)
            elif step == "cancel" and jobs[index]:
                model.cancel(jobs[index].pop())
            elif step == "finish" and instance.running:
                instance.finish(model)
            used = sum(count * len(each.running) for count, each in zip(needs, instances, strict=True))
            assert used <= 3
            assert used or not any(map(len, models))
        while any(each.running for each in instances):
            for model, instance in zip(models, instances, strict=True):
                if instance.running:
                    instance.finish(model)
        assert len(answers) == submitted


class TestSequences:
    @in_a_loop
    async def test_one_after_the_other(self, memory):
        """Requests of sequences wait for resources, and go on when they are free."""
        server = Server(memory)
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = (server.model(each, more="sequence_batching { }") for each in (a, b))
        assert isinstance(first, LimitedSequenceScheduler)
        first.submit(job(1, 1))
        second.submit(job(1, 1))
        second.submit(job(2, 1))
        assert (len(a.running), len(b.running)) == (1, 0)
        a.finish(first)
        assert len(b.running) == 1
        b.die(second)
        first.submit(job(1, 2))
        assert len(a.running) == 1
        a.finish(first)
        first.fail_all(InferenceError(""))
        second.fail_all(InferenceError(""))

    @in_a_loop
    async def test_not_limited(self, memory):
        """An instance without resources gets its batches at once."""
        server = Server(memory)
        limited, free = server.add(Instance("m"), R=1), Instance("m")
        made = server.model(limited, free, more="sequence_batching { oldest { max_candidate_sequences: 1 } }")
        for id in (1, 2, 3):
            made.submit(job(id, 1))
        assert len(free.running) == len(limited.running) == 1
        made.fail_all(InferenceError(""))

    @in_a_loop
    async def test_delay(self, memory):
        """A batch that is not due begins when it is."""
        server = Server(memory)
        instance = server.add(Instance(), R=1)
        direct = "direct { max_queue_delay_microseconds: 10000 minimum_slot_utilization: 1 }"
        made = server.model(instance, more=f"sequence_batching {{ {direct} }}")
        made.submit(job(1, 1))
        assert not instance.running
        await made.wait_empty(PATIENCE_S)
        assert len(instance.running) == 1

    @in_a_loop
    async def test_no_timer_for_resources(self, memory):
        """A batch that is due and lacks resources is not looked for again and again: it begins when they are free."""
        server = Server(memory, R=1)
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = (server.model(each, more="sequence_batching { }") for each in (a, b))
        first.submit(job(1, 3))
        second.submit(job(1, 3))
        assert not b.running
        assert second._timer is None
        a.finish(first)
        assert len(b.running) == 1


class TestTurns:
    @in_a_loop
    async def test_turn(self):
        """What executes without a scheduler holds the resources meanwhile, and waits for them."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        made = server.model(a)
        async with server.grants.turn(b):
            made.submit(job())
            assert not a.running
        assert a.running
        waiting = asyncio.create_task(enter(server.grants.turn(b)))
        await asyncio.sleep(0)
        assert not waiting.done()
        a.finish(made)
        await waiting

    @in_a_loop
    async def test_cancelled(self):
        """One that is cancelled while it waits gets nothing."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        made = server.model(a)
        made.submit(job())
        made.submit(job())
        waiting = asyncio.create_task(enter(server.grants.turn(b)))
        await asyncio.sleep(0)
        waiting.cancel()
        a.finish(made)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        a.finish(made)
        made.submit(job())
        other = server.model(b)
        other.submit(job())
        assert (len(a.running), len(b.running)) == (1, 0)

    @in_a_loop
    async def test_removed(self):
        """One whose instance ends while it waits does not wait any longer."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        async with server.grants.turn(a):
            waiting = asyncio.create_task(enter(server.grants.turn(b)))
            await asyncio.sleep(0)
            server.grants.remove(b)
            with pytest.raises(asyncio.CancelledError):
                await waiting

    @in_a_loop
    async def test_not_limited(self):
        """Without resources there is nothing to wait for."""
        server = Server()
        await enter(server.grants.turn(server.add(Instance())))


async def enter(turn):
    async with turn:
        pass


class TestDeadlocks:
    def call(self, caller, callee):
        """The worker of `caller` waits for a call that queues at `callee`. Returns the circle, if there is one."""
        worker = caller.running[0]
        workers = callee.limited.workers(callee.executors)
        worker.calls = [(workers, "callee")]
        return explain_deadlock(worker.model_name, "callee", workers)

    def test_of_the_caller(self):
        """A call to a model that needs what its caller holds is one."""
        server = Server()
        a, b = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1)
        first, second = server.model(a), server.model(b)
        first.submit(job())
        waits = job()
        second.submit(waits)
        assert self.call(a, second) == "a -> callee -> a"
        assert second.limited.expedite(waits) == ["R"]
        assert self.call(a, second) == "a -> callee -> a"

    def test_of_somebody_else(self):
        """It is none if somebody holds the resource who goes on; unless the caller alone holds too much of it."""
        for limit, expected in ((3, ""), (2, "a -> callee -> a")):
            server = Server(R=limit)
            a, b, c = server.add(Instance("a"), R=1), server.add(Instance("b"), R=1), server.add(Instance("c"), R=2)
            first, second, third = server.model(a), server.model(b), server.model(c)
            first.submit(job())
            second.submit(job())
            third.submit(job())
            assert self.call(a, third) == expected

    def test_of_those_that_wait(self):
        """A call behind one that waits for its caller goes ahead of that."""
        server = Server(R=2)
        a, large, b = server.add(Instance("a"), R=1), server.add(Instance("large"), R=2), server.add(Instance("b"), R=1)
        first, second, third = server.model(a), server.model(large), server.model(b)
        first.submit(job())
        second.submit(job())
        waits = job()
        third.submit(waits)
        assert not b.running
        assert self.call(a, third).startswith("a -> callee -> large")
        assert third.limited.expedite(waits) == []
        assert b.running
        b.finish(third)
        third.submit(job())
        assert not b.running

    def test_none(self):
        """Workers of instances that wait for nothing are as they were."""
        server = Server()
        instance = server.add(Instance(), R=1)
        made = server.model(instance)
        assert made.limited.workers([instance]) == [FREE]
        made.submit(job())
        assert made.limited.workers([instance]) == instance.running
        assert repr(server.grants) == "<ResourceGrants <RateLimiter [1 instances, 0 waiting, 1 granted]>>"


def test_named_twice():
    """Of a resource that an instance names twice the last one counts."""
    server = Server(R=2)
    instance = Instance()
    server.grants.add(instance, InstanceSpec("m_0", "CPU", 0, needs=(("R", True, 5), ("R", True, 1))), "m")
    assert server.grants.limits(instance)
