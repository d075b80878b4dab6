# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's shell, between jobs and instances that only note their calls."""

import asyncio
import functools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.scheduling.policy_queue import QueueFull
from pyruntime.runtime.scheduling.response_order import HELD_MAX
from pyruntime.runtime.scheduling.scheduler import Scheduler
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions
from tests.patience import PATIENCE_S

from ..model_specs import spec_from

CONFIG = "name: 'm' max_batch_size: 4 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "


def spec_of(text=""):
    return spec_from(CONFIG + text)


class Instance:
    """Takes batches while it has capacity."""

    def __init__(self, capacity, is_idle=True):
        self.capacity = capacity
        self.is_idle = is_idle
        self.batches = []

    @property
    def inflight(self):
        """It stands for its batches, too."""
        return self

    def execute(self, batch):
        assert self.capacity > 0
        self.capacity -= 1
        self.is_idle = False
        self.batches.append(batch)


class Slot:
    def __init__(self):
        self.freed = 0

    def free(self):
        self.freed += 1


def job(outcome=None, rows=1, arrived_ns=None):
    def respond(each, final):
        assert final
        if outcome is not None:
            outcome.append(each)

    arrived_ns = time.monotonic_ns() if arrived_ns is None else arrived_ns
    return Job("", RequestOptions(), [], rows, None, [Slot()], respond, arrived_ns)


def scheduler(*instances, text="", on_change=lambda: None, statistics=None):
    made = Scheduler(spec_of(text), on_change, statistics or ModelStatistics())
    made.serve(instances)
    return made


class TestDispatch:
    def test_at_once(self):
        """Without batching a job goes to an instance with a place at once, alone."""
        instance = Instance(2)
        made = scheduler(instance)
        jobs = [job(), job()]
        for each in jobs:
            made.submit(each)
        assert instance.batches == [[jobs[0]], [jobs[1]]]
        assert len(made) == 0

    def test_waits_for_a_place(self):
        """Without a place it waits, until one is freed."""
        instance = Instance(0)
        made = scheduler(instance)
        first, second = job(), job()
        made.submit(first)
        made.submit(second)
        assert len(made) == 2
        instance.capacity = 1
        made.capacity_freed()
        assert instance.batches == [[first]]
        instance.capacity = 5
        made.capacity_freed()
        assert instance.batches == [[first], [second]]

    def test_to_the_freest(self):
        """Of those that execute already, the one that takes more is preferred."""
        first, second = Instance(1, is_idle=False), Instance(2, is_idle=False)
        made = scheduler(first, second)
        made.submit(job())
        assert (len(first.batches), len(second.batches)) == (0, 1)
        made.submit(job())
        made.submit(job())
        assert (len(first.batches), len(second.batches)) == (1, 2)

    def test_to_an_idle_one(self):
        """An idle instance is preferred to one that would only queue the batch, however much capacity that has."""
        busy, idle = Instance(8, is_idle=False), Instance(2)
        made = scheduler(busy, idle)
        made.submit(job())
        assert (len(busy.batches), len(idle.batches)) == (0, 1)
        made.submit(job())
        assert (len(busy.batches), len(idle.batches)) == (1, 1)

    def test_no_instances_yet(self):
        """Before there are instances everything waits."""
        made = scheduler()
        made.submit(job())
        made.capacity_freed()
        assert len(made) == 1

    def test_nothing_to_do(self):
        """A place that is freed while nothing waits stays free."""
        instance = Instance(1)
        scheduler(instance).capacity_freed()
        assert instance.batches == []

    def test_batches(self):
        """With dynamic batching, what waits goes together."""
        instance = Instance(0)
        made = scheduler(instance, text="dynamic_batching { }")
        jobs = [job() for _ in range(5)]
        for each in jobs:
            made.submit(each)
        instance.capacity = 1
        made.capacity_freed()
        assert instance.batches == [jobs[:4]]


class TestJoiningAndLeaving:
    def test_joins(self):
        """What waits goes to an instance that joins at once."""
        busy, idle = Instance(0), Instance(1)
        made = scheduler(busy)
        waiting = job()
        made.submit(waiting)
        made.serve([busy, idle])
        assert idle.batches == [[waiting]]

    def test_leaves(self):
        """An instance that leaves gets no new work, not even what it gives back."""
        leaving, staying = Instance(2), Instance(1)
        made = scheduler(leaving)
        first, second = job(), job()
        made.submit(first)
        made.serve([staying])
        made.put_back([first])
        made.submit(second)
        assert leaving.batches == [[first]]
        assert staying.batches == [[first]]
        assert len(made) == 1
        assert made.lone_instance() is None
        staying.capacity = 1
        made.capacity_freed()
        assert staying.batches == [[first], [second]]

    def test_has_left(self):
        """There is nothing to wait for: requests are independent of each other."""
        instance = Instance(1)
        made = scheduler(instance)
        made.serve([Instance(1)])
        asyncio.run(made.wait_left(instance))
        made.hurry()

    @given(
        st.sampled_from(["", "dynamic_batching { }"]),
        st.lists(
            st.one_of(
                st.sampled_from([("submit",), ("join",)]),
                st.tuples(st.sampled_from(["leave", "finish", "put_back"]), st.integers(0, 5)),
            ),
            max_size=60,
        ),
    )
    def test_any_steps(self, text, steps):
        """Whoever joins and leaves: each request is executed once, and none by an instance that has left."""
        first = Instance(2)
        made = scheduler(first, text=text)
        serving, every, jobs, done = [first], [first], [], []

        def finish(instance):
            done.extend(instance.batches.pop(0))
            instance.capacity += 1
            made.capacity_freed()

        for name, *arguments in steps:
            taken = {id(each): list(each.batches) for each in every if each not in serving}
            busy = [each for each in every if each.batches]
            if name == "submit":
                jobs.append(job())
                made.submit(jobs[-1])
            elif name == "join":
                every.append(Instance(1))
                serving.append(every[-1])
                made.serve(list(serving))
            elif name == "leave" and len(serving) > 1:
                serving.pop(arguments[0] % len(serving))
                made.serve(list(serving))
            elif name in ("finish", "put_back") and busy:
                instance = busy[arguments[0] % len(busy)]
                taken.pop(id(instance), None)
                if name == "finish":
                    finish(instance)
                else:
                    instance.capacity += 1
                    made.put_back(instance.batches.pop())
            assert all(each.batches == taken.get(id(each), each.batches) for each in every)
            assert not len(made) or all(not each.capacity for each in serving)
        while any(each.batches for each in every):
            finish(next(each for each in every if each.batches))
        assert sorted(map(id, done)) == sorted(map(id, jobs))
        assert not len(made)


class TestTimer:
    def test_a_batch_that_is_not_full(self):
        """A batch that is not full is executed when its delay has passed."""

        async def run():
            instance = Instance(1)
            executed = asyncio.Event()
            real = instance.execute
            instance.execute = lambda batch: (real(batch), executed.set())
            made = scheduler(instance, text="dynamic_batching { max_queue_delay_microseconds: 1000 }")
            each = job()
            made.submit(each)
            await executed.wait()
            assert time.monotonic_ns() - each.arrived_ns >= 1_000_000
            assert instance.batches == [[each]]

        asyncio.run(run())

    def test_full_before_its_time(self):
        """A batch that is full does not wait, and its timer does no harm."""

        async def run():
            instance = Instance(2)
            made = scheduler(instance, text="dynamic_batching { max_queue_delay_microseconds: 600000000 }")
            jobs = [job() for _ in range(4)]
            for each in jobs:
                made.submit(each)
            assert instance.batches == [jobs]

        asyncio.run(run())

    def test_long_overdue(self):
        """A job that has waited for too long already goes at once."""

        async def run():
            instance = Instance(1)
            made = scheduler(instance, text="dynamic_batching { max_queue_delay_microseconds: 1000000 }")
            each = job(arrived_ns=time.monotonic_ns() - 10**10)
            made.submit(each)
            assert instance.batches == [[each]]

        asyncio.run(run())


class TestRefusal:
    def test_queue_full(self):
        """A full queue refuses; waiting requests stay."""
        text = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
        made = scheduler(Instance(0), text=text)
        outcome = []
        made.submit(job())
        refused = job(outcome)
        with pytest.raises(QueueFull, match=r"^Exceeds maximum queue size$"):
            made.submit(refused)
        assert outcome == []
        assert refused.slots[0].freed == 0
        assert len(made) == 1


class TestCancel:
    def test_of_one_that_waits(self):
        """A job that has not begun never will; its memory is free."""
        instance = Instance(0)
        made = scheduler(instance)
        outcome = []
        each = job(outcome)
        (slot,) = each.slots
        made.submit(each)
        made.cancel(each)
        assert len(made) == 0
        assert slot.freed == 1
        assert [failure.code for failure in outcome] == [Code.CANCELLED]
        instance.capacity = 1
        made.capacity_freed()
        assert instance.batches == []

    def test_of_one_that_runs(self):
        """A job that has begun goes on."""
        instance = Instance(1)
        made = scheduler(instance)
        outcome = []
        each = job(outcome)
        made.submit(each)
        made.cancel(each)
        assert outcome == []
        assert each.slots[0].freed == 0

    def test_lets_the_others_form_a_batch(self):
        """Requests behind the cancelled one are not held up."""

        async def run():
            instance = Instance(1)
            made = scheduler(instance, text="dynamic_batching { max_queue_delay_microseconds: 1000000 }")
            jobs = [job(rows=3), job(rows=2), job(rows=2)]
            instance.capacity = 0
            for each in jobs:
                made.submit(each)
            made.cancel(jobs[0])
            instance.capacity = 1
            made.capacity_freed()
            assert instance.batches == [jobs[1:]]

        asyncio.run(run())


class TestCancelledMeanwhile:
    """A job may be cancelled while it is with an instance; if it comes back from there it goes no further."""

    def test_put_back(self):
        """Cancelled requests of a batch that comes back are not queued again."""
        instance = Instance(0)
        made = scheduler(instance)
        outcome = []
        gone, left = job(outcome), job(outcome)
        (slot,) = gone.slots
        gone.cancelled = True
        made.put_back([gone, left])
        assert slot.freed == 1
        assert [failure.code for failure in outcome] == [Code.CANCELLED]
        instance.capacity = 2
        made.capacity_freed()
        assert instance.batches == [[left]]

    def test_reschedule(self):
        """A cancelled request is not executed again."""
        instance = Instance(1)
        made = scheduler(instance)
        outcome = []
        gone = job(outcome)
        (slot,) = gone.slots
        gone.cancelled = True
        made.reschedule(gone)
        assert slot.freed == 1
        assert [failure.code for failure in outcome] == [Code.CANCELLED]
        assert instance.batches == []


class TestStatistics:
    """A request that ends in the queue counts as failed."""

    @pytest.mark.parametrize("step", ["cancel", "put_back", "reschedule"])
    def test_of_what_is_cancelled(self, step):
        """A cancelled request counts as cancelled."""
        statistics = ModelStatistics()
        made = scheduler(Instance(0), statistics=statistics)
        each = job(arrived_ns=time.monotonic_ns() - 10**9)
        if step == "cancel":
            made.submit(each)
        each.cancelled = True
        getattr(made, step)([each] if step == "put_back" else each)
        assert statistics.failures[FailureReason.CANCELED] == statistics.failure_count == 1
        assert statistics.failure_ns >= 10**9

    def test_of_what_comes_to_no_instance(self):
        """The model was unloaded, or lost."""
        statistics = ModelStatistics()
        made = scheduler(Instance(0), statistics=statistics)
        made.submit(job())
        made.fail_all(InferenceError("gone"))
        assert statistics.failures[FailureReason.OTHER] == statistics.failure_count == 1


class TestReschedule:
    def test_behind_all_that_wait(self):
        """A job that is to be executed again goes to the end of the queue, however early it arrived."""
        instance = Instance(0)
        made = scheduler(instance)
        again, first, second = job(arrived_ns=1), job(arrived_ns=2), job(arrived_ns=3)
        made.submit(first)
        made.submit(second)
        made.reschedule(again)
        instance.capacity = 3
        made.capacity_freed()
        assert instance.batches == [[first], [second], [again]]

    def test_at_once(self):
        """Where nothing waits it is executed at once."""
        instance = Instance(1)
        made = scheduler(instance)
        again = job()
        made.reschedule(again)
        assert instance.batches == [[again]]

    def test_is_not_refused(self):
        """It was admitted once: a queue that is full meanwhile does not refuse it."""
        made = scheduler(Instance(0), text="dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
        made.submit(job())
        made.reschedule(job())
        assert len(made) == 2

    def test_can_be_cancelled(self):
        """While it queues it can be cancelled like any other."""
        made = scheduler(Instance(0))
        outcome = []
        again = job(outcome)
        made.reschedule(again)
        made.cancel(again)
        assert len(made) == 0
        assert [failure.code for failure in outcome] == [Code.CANCELLED]


class TestWaitEmpty:
    def wait(self, made, *steps):
        """Wait until nothing waits, however long that takes, with these steps taken one after the other meanwhile."""

        async def run():
            async with asyncio.timeout(PATIENCE_S):
                waiting = asyncio.ensure_future(made.wait_empty(1000 * PATIENCE_S))
                for step in steps:
                    await asyncio.sleep(0)
                    assert not waiting.done()
                    step()
                await waiting

        asyncio.run(run())
        assert len(made) == 0

    def test_nothing_waits(self):
        """An empty queue is not waited for."""
        self.wait(scheduler(Instance(0)))

    def test_until_all_is_taken(self):
        """It is over when the last job has gone to an instance."""
        instance = Instance(0)
        made = scheduler(instance)
        made.submit(job())
        made.submit(job())

        def free():
            instance.capacity = 1
            made.capacity_freed()

        self.wait(made, free, free)
        assert len(instance.batches) == 2

    def test_until_all_is_cancelled(self):
        """The wait ends when the last request is cancelled."""
        made = scheduler(Instance(0))
        jobs = [job(), job()]
        for each in jobs:
            made.submit(each)
        self.wait(made, *[functools.partial(made.cancel, each) for each in jobs])

    def test_until_all_has_failed(self):
        """The wait ends when all requests fail."""
        made = scheduler(Instance(0))
        made.submit(job())
        self.wait(made, lambda: made.fail_all(InferenceError("no")))

    def test_no_longer_than_that(self):
        """After its time it is over, and what waits goes on waiting."""
        made = scheduler(Instance(0))
        made.submit(job())
        asyncio.run(made.wait_empty(0))
        assert len(made) == 1

    def test_cancelled(self):
        """Cancelling the wait changes nothing."""

        async def run():
            made = scheduler(Instance(0))
            made.submit(job())
            waiting = asyncio.ensure_future(made.wait_empty(PATIENCE_S))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert len(made) == 1

        asyncio.run(run())


class TestEnd:
    def test_fail_all(self):
        """Everything that waits fails, in order, once, and its memory is free."""
        made = scheduler(Instance(0))
        outcome = []
        jobs = [job(outcome), job(outcome)]
        slots = [each.slots[0] for each in jobs]
        for each in jobs:
            made.submit(each)
        failure = InferenceError("no")
        made.fail_all(failure)
        made.fail_all(failure)
        assert outcome == [failure, failure]
        assert [slot.freed for slot in slots] == [1, 1]
        assert len(made) == 0

    def test_put_back(self):
        """A batch that never started comes before everything that arrived later, and runs when there is a place."""
        instance = Instance(0)
        made = scheduler(instance)
        early, late = job(arrived_ns=1), job(arrived_ns=2)
        made.submit(late)
        made.put_back([early])
        assert len(made) == 2
        instance.capacity = 2
        made.capacity_freed()
        assert instance.batches == [[early], [late]]

    def test_put_back_to_another_instance(self):
        """If another instance has a place it takes the batch at once."""
        instance = Instance(1)
        made = scheduler(Instance(0), instance)
        each = job()
        made.put_back([each])
        assert instance.batches == [[each]]

    def test_instance_changed(self):
        """The scheduler's owner is notified of changes."""
        changes = []
        scheduler(on_change=lambda: changes.append(1)).executor_changed()
        assert changes == [1]


def test_repr():
    """A scheduler shows what waits and for how many instances."""
    made = scheduler(Instance(0), Instance(0))
    made.submit(job())
    assert repr(made) == "<Scheduler m [1 queued | 2 instances]>"


class TestFreeInstance:
    """The instance that may be given a request directly, without the queue."""

    def test_with_a_place(self):
        """The one that a job would go to."""
        busy, idle = Instance(8, is_idle=False), Instance(2)
        made = scheduler(busy, idle)
        assert made.free_instance() is idle
        assert scheduler(busy).free_instance() is busy
        idle.is_idle = False
        assert made.free_instance() is busy

    def test_without(self):
        """None, if no instance has capacity, or there is none."""
        assert scheduler(Instance(0)).free_instance() is None
        assert scheduler(Instance(0), Instance(0)).free_instance() is None
        assert scheduler().free_instance() is None

    def test_behind_others(self):
        """None, while others wait."""
        instance = Instance(0)
        made = scheduler(instance)
        made.submit(job())
        instance.capacity = 2  # which the scheduler does not know yet
        assert made.free_instance() is None
        assert made.lone_instance() is None
        made.capacity_freed()
        assert made.free_instance() is instance

    def test_alone(self):
        """The only one there is."""
        one, other = Instance(1), Instance(1)
        assert scheduler(one).lone_instance() is one
        assert scheduler(one, other).lone_instance() is None
        assert scheduler(Instance(0)).lone_instance() is None


PRIORITIES = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"


def test_priority():
    """A job of a higher level goes first."""
    instance = Instance(0)
    made = scheduler(instance, text=PRIORITIES)
    jobs = [job(rows=4), job(rows=4)]
    jobs[1].priority = 1
    for each in jobs:
        made.submit(each)
    instance.capacity = 2
    made.capacity_freed()
    assert instance.batches == [[jobs[1]], [jobs[0]]]


class TestTimeout:
    POLICY = "dynamic_batching { default_queue_policy { default_timeout_microseconds: %d timeout_action: %s } }"

    def test_rejected_in_time(self):
        """A job is answered when its time is over, although no instance is free, and is counted as rejected."""

        async def run():
            answered = asyncio.Event()
            outcome = []

            def respond(each, final):
                outcome.append(each)
                answered.set()

            statistics = ModelStatistics()
            made = scheduler(Instance(0), text=self.POLICY % (1000, "REJECT"), statistics=statistics)
            late = Job("", RequestOptions(), [], 1, None, [Slot()], respond, time.monotonic_ns())
            made.submit(late)
            await asyncio.wait_for(answered.wait(), PATIENCE_S)
            assert time.monotonic_ns() - late.arrived_ns > 1_000_000
            (failure,) = outcome
            assert (str(failure), failure.code) == ("Request timeout expired", Code.UNAVAILABLE)
            assert statistics.failures[FailureReason.REJECTED] == 1
            assert late.slots == []
            assert len(made) == 0

        asyncio.run(run())

    def test_begun(self):
        """A job that an instance has taken has no deadline any more."""

        async def run():
            instance = Instance(1)
            minute_us = 60_000_000
            made = scheduler(instance, text=self.POLICY % (minute_us, "REJECT"))
            outcome = []
            made.submit(job(outcome, arrived_ns=time.monotonic_ns()))
            made.submit(job(late := [], arrived_ns=time.monotonic_ns() - 2 * minute_us * 1000))
            assert (len(instance.batches), outcome, len(late)) == (1, [], 1)

        asyncio.run(run())

    def test_delayed(self):
        """With DELAY a late job goes behind the others."""

        async def run():
            instance = Instance(0)
            made = scheduler(instance, text=self.POLICY % (10**9, "DELAY"))
            late, other = job(rows=4, arrived_ns=time.monotonic_ns() - 10**13), job(rows=4)
            made.submit(late)
            made.submit(other)
            instance.capacity = 2
            made.capacity_freed()
            assert instance.batches == [[other], [late]]

        asyncio.run(run())


class TestPreserveOrdering:
    TEXT = "dynamic_batching { preserve_ordering: true }"

    def test_two_instances(self):
        """The response of the instance that is faster waits for the other one."""
        instances = [Instance(1), Instance(1)]
        made = scheduler(*instances, text=self.TEXT)
        outcome = []
        jobs = [job(outcome), job(outcome)]
        for each in jobs:
            made.submit(each)
        assert [instance.batches for instance in instances] == [[[jobs[0]]], [[jobs[1]]]]
        jobs[1].respond("b", True)
        assert outcome == []
        jobs[0].respond("a", True)
        assert outcome == ["a", "b"]

    def test_cancelled_while_it_waits(self):
        """A job that did not leave the queue is answered at once."""
        instance = Instance(1)
        made = scheduler(instance, text=self.TEXT)
        outcome = []
        made.submit(job([]))
        waiting = job(outcome)
        made.submit(waiting)
        made.cancel(waiting)
        assert len(outcome) == 1

    def test_too_many_held(self):
        """While many responses are held no further job begins."""
        slow, fast = Instance(1), Instance(HELD_MAX + 10)
        made = scheduler(slow, fast, text=self.TEXT)
        first = job([], rows=4)
        made.submit(first)
        for _ in range(HELD_MAX + 5):
            each = job([], rows=4)
            made.submit(each)
            if each.instance is None and fast.batches and fast.batches[-1] == [each]:
                each.respond("x", True)
        assert len(fast.batches) == HELD_MAX
        assert len(made) == 5
        first.respond("x", True)
        assert len(fast.batches) == HELD_MAX + 5

    @pytest.mark.parametrize("again", ["put_back", "reschedule"])
    def test_first_begins_again(self, again):
        """However many responses are held, the job whose turn it is begins again, after a crash or by its model."""
        slow, fast = Instance(2), Instance(HELD_MAX)
        made = scheduler(slow, fast, text=self.TEXT)
        first = job([], rows=4)
        made.submit(first)
        for _ in range(HELD_MAX):
            each = job([], rows=4)
            made.submit(each)
            each.respond("x", True)
        before = len(slow.batches) + len(fast.batches)
        if again == "put_back":
            made.put_back([first])
        else:
            made.reschedule(first)
        assert len(slow.batches) + len(fast.batches) == before + 1
        assert [first] in (slow.batches[-1], fast.batches[-1])
