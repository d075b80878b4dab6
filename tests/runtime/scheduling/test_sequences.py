# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sequences: slots, the backlog, the next requests, and the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyruntime.runtime.config.spec import QueuePolicySpec, SequenceBatchingSpec
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.scheduling import sequences as module
from pyruntime.runtime.scheduling.policy_queue import QueueFull
from pyruntime.runtime.scheduling.sequences import Sequences
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions

START, END = 1, 2
IDLE_S = 10.0
NO_LIMITS = QueuePolicySpec()
START_MISSING = (
    "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence"
)


def job(id=1, flags=0, rows=1, at=0.0, timeout_s=0.0):
    options = RequestOptions(id, flags, int(timeout_s * 1e6))
    return Job("", options, [], rows, None, [], lambda *_: None, int(at * 1e9))


class Table:
    """Sequences, with what tests say of them in few words."""

    def __init__(self, slots=1, instances=1, oldest=False, backlog=NO_LIMITS):
        batching = SequenceBatchingSpec(oldest, slots, int(IDLE_S * 1e6), 0, 0.0, (), (), (), False, backlog)
        self.all = Sequences("m", slots, batching)
        self.all.serve(dict.fromkeys(range(instances), True))

    def submit(self, *jobs):
        for each in jobs:
            self.all.check(each)
            self.all.submit(each)
        return jobs

    def run(self, *jobs, instance=0, now=0.0):
        """These are the next batch, and are executed."""
        assert self.all.take(instance, now) == list(jobs)
        for each in jobs:
            self.all.done(each, now)

    def is_idle(self, instance=0):
        return self.all.take(instance, 0.0) is None


def refused(table, each):
    with pytest.raises(InferenceError) as caught:
        table.all.check(each)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


class TestRequests:
    def test_in_order(self):
        """The requests of a sequence are executed in order, one after the other."""
        table = Table(slots=4)
        first, second, third = table.submit(job(flags=START), job(), job(flags=END))
        assert table.all.take(0, 0) == [first]
        assert table.is_idle()
        assert len(table.all) == 2
        table.all.done(first, 0)
        table.run(second)
        table.run(third)
        assert len(table.all) == 0
        assert repr(table.all) == "<Sequences [0 known, 0 in the backlog | 0 queued]>"

    def test_together(self):
        """Requests of several sequences are executed together."""
        table = Table(slots=4)
        jobs = table.submit(job(1, START), job("1", START), job(2, START))
        table.run(*jobs)

    def test_no_id(self):
        """Zero and the empty string are not valid IDs."""
        message = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
        assert refused(Table(), job(0, START)) == message
        assert refused(Table(), job("", START)) == message

    def test_rows(self):
        """A request of a sequence has one row."""
        assert refused(Table(), job(1, START, rows=2)) == (
            "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
        )

    @pytest.mark.parametrize("id", [7, "seven"])
    def test_no_start(self, id):
        """A sequence begins with START, and again after its end even before that was executed."""
        table = Table()
        assert refused(table, job(id)) == START_MISSING.format(id)
        assert refused(table, job(id, END)) == START_MISSING.format(id)
        (only,) = table.submit(job(id, START | END))
        assert refused(table, job(id)) == START_MISSING.format(id)
        table.run(only)
        assert refused(table, job(id)) == START_MISSING.format(id)

    def test_begins_anew(self):
        """START in the midst of a sequence is let pass, with a word; behind its end it is nothing special."""
        table = Table()
        assert table.all.check(job(flags=START)) is False
        first, second = table.submit(job(flags=START), job(flags=START))
        assert table.all.check(job(flags=START)) is True
        assert table.all.check(job()) is False
        (third,) = table.submit(job(flags=END))
        assert table.all.check(job(flags=START)) is False
        for each in (first, second, third):
            table.run(each)

    def test_too_many(self, monkeypatch):
        """There is a limit to sequences, but not to the requests of one."""
        monkeypatch.setattr(module, "SEQUENCES_MAX", 2)
        table = Table()
        table.submit(job(1, START), job(2, START), job(1))
        with pytest.raises(QueueFull):
            table.all.check(job(3, START))
        assert len(table.all) == 3

    def test_full_backlog(self):
        """The configuration may limit how many sequences wait for a slot. Their requests are any number."""
        table = Table(backlog=QueuePolicySpec(max_queue_size=2))
        first, second, *_ = table.submit(
            job(1, START | END), job(2, START | END), job(3, START), job(3), job(1, START | END)
        )
        with pytest.raises(QueueFull):
            table.submit(job(4, START))
        table.run(first)
        # The end of the first sequence put its successor behind the others.
        with pytest.raises(QueueFull):
            table.submit(job(4, START))
        table.run(second)
        table.submit(job(4, START))

    def test_single(self):
        """A sequence without a client's ID ends with its only request."""
        table = Table()
        only = job(1, START)
        table.all.submit(only, is_single=True)
        (other,) = table.submit(job(2, START))
        table.run(only)
        table.run(other)
        assert refused(table, job(1)) == START_MISSING.format(1)


class TestSlots:
    def test_backlog(self):
        """A sequence without a slot waits with all its requests; slots are given in order of arrival."""
        table = Table()
        first, second, third, fourth = table.submit(job(1, START), job(2, START), job(2), job(3, START))
        table.run(first)
        assert table.is_idle()
        (end,) = table.submit(job(1, END))
        table.run(end)
        table.run(second)
        table.run(third)
        assert table.is_idle()
        table.run(*table.submit(job(2, END)))
        table.run(fourth)

    def test_more_slots_than_sequences(self):
        """Slots that no sequence could ever have take no memory."""
        table = Table(slots=1 << 62)
        table.run(*table.submit(job(1, START), job(2, START)))

    def test_spread(self):
        """A sequence gets a slot where most are free, and stays there."""
        table = Table(slots=2, instances=2)
        jobs = table.submit(*(job(id, START) for id in (1, 2, 3, 4)))
        table.run(jobs[0], jobs[2], instance=0)
        table.run(jobs[1], jobs[3], instance=1)
        more = table.submit(*(job(id) for id in (4, 3, 2, 1)))
        table.run(more[3], more[1], instance=0)
        table.run(more[2], more[0], instance=1)

    def test_lowest_slot(self):
        """Slots at the beginning are given first, so that batches by slot are short."""
        table = Table(slots=4)
        jobs = table.submit(*(job(id, START) for id in (1, 2, 3)))
        table.run(*jobs)
        table.run(*table.submit(job(2, END), job(1, END))[::-1])
        again = table.submit(job(4, START), job(5, START))
        assert [each.sequence.slot for each in again] == [0, 1]

    def test_behind_its_own_end(self):
        """A sequence that begins again behind its end goes behind those that wait for a slot."""
        table = Table()
        first, second, other = table.submit(job(1, START | END), job(1, START | END, at=1), job(2, START | END))
        table.run(first)
        table.run(other)
        table.run(second)

    def test_without_instances(self):
        """Requests that come before there are instances wait for them."""
        table = Table()
        table.all.serve({})
        (first,) = table.submit(job(1, START))
        table.all.serve({0: False, 1: True})
        table.run(first, instance=1)

    def test_due(self):
        """When an instance has something to do."""
        table = Table()
        assert table.all.due_at(0) is None
        table.submit(job(1, START, at=3.0))
        assert table.all.due_at(0) == 3.0


class TestEnds:
    def test_idle(self):
        """A sequence of which nothing is heard is over, and its slot is free."""
        table = Table()
        first, other = table.submit(job(1, START), job(2, START))
        assert table.all.expires_at() is None
        table.run(first, now=5.0)
        assert table.all.expires_at() == 5.0 + IDLE_S
        assert table.all.expire(4.9 + IDLE_S) == []
        assert table.is_idle()
        assert table.all.expire(5.0 + IDLE_S) == []
        table.run(other)
        assert refused(table, job(1)) == START_MISSING.format(1)

    def test_not_idle(self):
        """While a request waits or is executed a sequence is not idle, however long that takes."""
        table = Table()
        (first,) = table.submit(job(1, START))
        table.run(first, now=5.0)
        (second,) = table.submit(job(1))
        assert table.all.expires_at() is None
        assert table.all.take(0, 6.0) == [second]
        assert table.all.expire(1000.0) == []
        table.all.done(second, 1000.0)
        assert table.all.expires_at() == 1000.0 + IDLE_S

    def test_timeout(self):
        """In the backlog the first timeout of any request ends the sequence, and all its requests fail."""
        table = Table()
        (first,) = table.submit(job(1, START))
        waiting = table.submit(job(2, START, at=1, timeout_s=9), job(2, at=2, timeout_s=3), job(2, at=3))
        (other,) = table.submit(job(3, START, at=4, timeout_s=100))
        assert table.all.expires_at() == 5.0
        assert table.all.expire(4.9) == []
        assert table.all.expire(5.0) == [*waiting]
        assert table.all.expires_at() == 104.0
        assert refused(table, job(2)) == START_MISSING.format(2)
        table.run(first)
        table.run(*table.submit(job(1, END)))
        assert table.all.expires_at() is None
        table.run(other)

    def test_timeout_of_the_configuration(self):
        """The configuration may limit the wait for a slot; a client may make it shorter, and no longer."""
        table = Table(backlog=QueuePolicySpec(default_timeout_us=5_000_000))
        (first,) = table.submit(job(1, START))
        second, third, more = table.submit(
            job(2, START, at=1), job(3, START, at=1, timeout_s=2), job(2, at=2, timeout_s=100)
        )
        assert table.all.expire(2.9) == []
        assert table.all.expire(3.0) == [third]
        assert table.all.expire(5.9) == []
        assert table.all.expire(6.0) == [second, more]
        table.run(first)

    def test_timeout_behind_its_own_end(self):
        """A sequence that goes back to the backlog has the timeout of its waiting requests."""
        table = Table()
        table.submit(job(1, START | END, timeout_s=1), job(1, START, timeout_s=7), job(2, START))
        assert table.all.expires_at() is None
        table.all.done(table.all.take(0, 0)[0], 0)
        assert table.all.expires_at() == 7.0

    def test_deadlines_of_no_meaning_go(self):
        """A sequence that has a slot leaves no deadline behind."""
        table = Table()
        for _ in range(1000):
            first, second = table.submit(job(1, START | END), job(2, START | END, timeout_s=1000))
            table.run(first)
            table.run(second)
        assert len(table.all._deadlines) <= module.DEADLINES_KEPT + 2

    def test_cancel(self):
        """Cancelling a request that waits cancels its sequence."""
        table = Table()
        first, second, third, other = table.submit(job(1, START), job(1), job(1), job(2, START))
        assert table.all.take(0, 0) == [first]
        assert table.all.cancel(first) == []
        assert table.all.cancel(third) == [second, third]
        assert table.is_idle()
        assert refused(table, job(1)) == START_MISSING.format(1)
        table.all.done(first, 0)
        table.run(other)
        assert table.all.cancel(job(9)) == []

    def test_cancel_what_is_next(self):
        """A request that is next is not executed, and the slot is free at once."""
        table = Table(slots=2)
        first, second = table.submit(job(1, START), job(2, START))
        assert table.all.cancel(first) == [first]
        table.run(second)

    def test_cancel_in_the_backlog(self):
        """The sequence waits for no slot any more."""
        table = Table()
        first, second, third = table.submit(job(1, START | END), job(2, START), job(3, START))
        assert table.all.cancel(second) == [second]
        table.run(first)
        table.run(third)

    def test_new_one_while_the_old_one_runs(self):
        """A cancelled sequence is unknown at once; a new one of the same id has a slot of its own."""
        table = Table(slots=2)
        first, second = table.submit(job(1, START), job(1))
        assert table.all.take(0, 0) == [first]
        table.all.cancel(second)
        (again,) = table.submit(job(1, START))
        table.run(again)
        table.all.done(first, 0)
        table.run(*table.submit(job(1), job(2, START))[::-1])

    def test_abandoned(self):
        """The model is to be told of sequences that it has begun and that end without END: once, on their instance."""
        table = Table(slots=3)
        first, second, third = table.submit(job(1, START), job("two", START), job(3, START))
        table.run(first, second, third)
        (waits,) = table.submit(job("two"))
        assert table.all.cancel(waits) == [waits]
        assert table.all.take_abandoned() == [(0, ["two"])]
        table.run(*table.submit(job(1, END)))
        table.all.expire(IDLE_S)
        assert table.all.take_abandoned() == [(0, [3])]
        assert table.all.take_abandoned() == []

    def test_abandoned_while_it_runs(self):
        """A request that runs begins its sequence, or ends it."""
        table = Table(slots=2)
        first, waits, other = table.submit(job(1, START), job(1), job(2, START))
        assert table.all.take(0, 0) == [first, other]
        table.all.cancel(waits)
        assert table.all.take_abandoned() == [(0, [1])]
        table.all.done(other, 0)
        last, begins_again = table.submit(job(2, END), job(2, START))
        assert table.all.take(0, 0) == [last]
        table.all.cancel(begins_again)
        assert table.all.take_abandoned() == []

    @pytest.mark.parametrize("is_waiting", [False, True])
    def test_abandoned_between_executions(self, is_waiting):
        """A request that is executed again, as a sequence of its own, has begun; so it is if it runs when it leaves."""
        table = Table()
        each = job(1, START)
        table.all.check(each)
        table.all.submit(each, is_single=True)
        assert table.all.take(0, 0) == [each]
        if is_waiting:
            assert table.all.put_back(each, has_run=True)
            assert table.all.cancel(each) == [each]
        else:
            table.all.give_up(each)
            table.all.done(each, 0)
        assert table.all.take_abandoned() == [(0, [1])]
        assert table.is_idle()

    def test_not_abandoned(self):
        """A model knows nothing of a sequence that has not begun, or that begins behind its own end."""
        table = Table()
        first, _ = table.submit(job(1, START), job(2, START, timeout_s=1))
        table.all.expire(1)
        table.all.cancel(first)
        last, again = table.submit(job(1, START | END), job(1, START))
        table.run(last)
        table.all.cancel(again)
        assert table.all.take_abandoned() == []

    def test_drain(self):
        """Everything that waits, in the end."""
        table = Table()
        first, second, third = table.submit(job(1, START), job(1), job(2, START))
        assert table.all.take(0, 0) == [first]
        assert table.all.drain() == [second, third]
        assert len(table.all) == 0
        table.all.done(first, 0)


class TestPuttingBack:
    def test_before_all_others(self):
        """A request that never started is the next one of its sequence."""
        table = Table()
        first, second = table.submit(job(1, START), job(1))
        assert table.all.take(0, 0) == [first]
        assert table.all.put_back(first)
        assert len(table.all) == 2
        table.run(first)
        table.run(second)

    def test_of_a_sequence_that_is_over(self):
        """It cannot be executed any more."""
        table = Table()
        first, second, other = table.submit(job(1, START), job(1), job(2, START))
        assert table.all.take(0, 0) == [first]
        table.all.cancel(second)
        assert not table.all.put_back(first)
        table.run(other)


class TestInstances:
    def test_death(self):
        """The sequences of an instance that has died are over."""
        table = Table(slots=2, instances=2)
        jobs = table.submit(job(1, START), job(2, START))
        table.run(jobs[0], instance=0)
        table.run(jobs[1], instance=1)
        lost = table.submit(job(1), job(1))
        assert table.all.readiness(0, False) == [*lost]
        assert refused(table, job(1)) == START_MISSING.format(1)
        table.run(*table.submit(job(2)), instance=1)

    def test_not_begun(self):
        """A request that begins a sequence, and never started, may begin it elsewhere, before all that wait."""
        table = Table(slots=2)
        first, second, third = table.submit(job(1, START), job(2, START), job(3, START))
        assert table.all.take(0, 0) == [first, second]
        assert table.all.put_back(first)
        assert table.all.put_back(second)
        assert table.all.readiness(0, False) == []
        assert table.is_idle()
        assert table.all.readiness(0, True) == []
        table.run(first, second)
        assert third.sequence.place is None

    def test_no_slot_of_a_dead_one(self):
        """Only an instance that is ready is given sequences."""
        table = Table(instances=2)
        assert table.all.readiness(0, False) == []
        first, second = table.submit(job(1, START), job(2, START))
        table.run(first, instance=1)
        assert table.is_idle(0)
        table.all.readiness(0, True)
        table.run(second, instance=0)

    def test_death_while_it_runs(self):
        """The request that ran is not waited for: the slot is free when there is an instance again."""
        table = Table()
        first, second, other = table.submit(job(1, START), job(1), job(2, START))
        assert table.all.take(0, 0) == [first]
        assert table.all.readiness(0, False) == [second]
        table.all.done(first, 0)
        assert not table.all.put_back(first)
        table.all.readiness(0, True)
        table.run(other)

    def test_death_with_what_no_model_is_told(self):
        """Requests of an iterative model without controls and states go on with the next instance."""
        table = Table(slots=2)
        jobs = [job(1, START), job(2, START)]
        for each in jobs:
            table.all.submit(each, is_single=True)
        assert table.all.take(0, 0) == jobs
        for each in jobs:
            each.options = each.options._replace(flags=0)  # it has run once, and queues again
            assert table.all.put_back(each, has_run=True)
        assert table.all.readiness(0, False) == []
        table.all.readiness(0, True)
        table.run(*jobs)

    def test_death_while_an_older_one_runs(self):
        """A sequence that begins anew with what waits goes on without what its instance had."""
        table = Table()
        first, second = table.submit(job(1, START), job(1, START))
        assert table.all.take(0, 0) == [first]
        assert table.all.readiness(0, False) == []
        assert not table.all.put_back(first)
        table.all.readiness(0, True)
        table.run(second)

    def test_death_with_what_is_over(self):
        """A sequence that was cancelled while it ran has left nothing behind."""
        table = Table()
        first, second, other = table.submit(job(1, START), job(1), job(2, START))
        assert table.all.take(0, 0) == [first]
        table.all.cancel(second)
        assert table.all.readiness(0, False) == []
        table.all.readiness(0, True)
        table.run(other)


class TestLeaving:
    def test_goes_on_with_what_has_begun(self):
        """A sequence that has begun stays until its end; then the instance has left."""
        table = Table(slots=2)
        first, second = table.submit(job(1, START), job(1, END))
        table.run(first)
        table.all.serve({1: True})
        assert table.all.take_left() == []
        (other,) = table.submit(job(2, START))
        table.run(second)
        assert table.all.take_left() == [0]
        table.run(other, instance=1)
        assert table.all.take_left() == []

    def test_not_begun(self):
        """A sequence that has a slot, and has not begun, begins elsewhere, before all that wait."""
        table = Table(slots=2)
        first, second, third = table.submit(job(1, START), job(2, START), job(3, START))
        table.all.serve({1: True})
        assert table.all.take_left() == [0]
        table.run(first, second, instance=1)
        assert third.sequence.place is None

    @pytest.mark.parametrize("waits", [True, False])
    def test_begins_again(self, waits):
        """A sequence that begins again does so elsewhere."""
        table = Table()
        (first,) = table.submit(job(1, START))
        assert table.all.take(0, 0) == [first]
        table.all.serve({1: True})
        if waits:
            (again,) = table.submit(job(1, START))
            table.all.done(first, 0)
        else:
            table.all.done(first, 0)
            (again,) = table.submit(job(1, START))
        assert table.all.take_left() == [0]
        table.run(again, instance=1)

    def test_put_back(self):
        """A request that begins its sequence, and was given back, begins it elsewhere."""
        table = Table()
        (first,) = table.submit(job(1, START))
        assert table.all.take(0, 0) == [first]
        table.all.serve({1: True})
        assert table.all.put_back(first)
        assert table.all.take_left() == [0]
        table.run(first, instance=1)

    def test_expires(self):
        """A sequence of which nothing is heard holds the instance no longer than others."""
        table = Table()
        (first,) = table.submit(job(1, START))
        table.run(first, now=5.0)
        table.all.serve({1: True})
        assert table.all.take_left() == []
        assert table.all.expire(5.0 + IDLE_S) == []
        assert table.all.take_left() == [0]

    def test_dies(self):
        """An instance that dies while it leaves has left, and its sequences are lost."""
        table = Table()
        (first,) = table.submit(job(1, START))
        table.run(first)
        (second,) = table.submit(job(1))
        table.all.serve({1: True})
        assert table.all.readiness(0, False) == [second]
        assert table.all.take_left() == [0]

    def test_staying(self):
        """An instance that stays keeps its sequences."""
        table = Table(instances=2)
        first, second = table.submit(job(1, START), job(2, START))
        table.run(first)
        table.all.serve({0: True, 2: True})
        assert table.all.take_left() == [1]
        table.run(*table.submit(job(1)))
        table.run(second, instance=2)


STEPS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 4), st.sampled_from([0, START, END, START | END])),
    st.tuples(st.just("take"), st.integers(0, 4)),
    st.tuples(st.sampled_from(["done", "put_back", "cancel"]), st.integers(0, 20)),
    st.tuples(st.just("readiness"), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("join")),
    st.tuples(st.just("leave"), st.integers(0, 4)),
    st.tuples(st.just("pass"), st.sampled_from([1.0, IDLE_S])),
)


class Model:
    """Does steps, and knows what became of every job."""

    def __init__(self, slots, oldest):
        self.table = Table(slots, instances=2, oldest=oldest)
        self.slots = slots
        self.now = 0.0
        self.waiting = []
        self.running = []
        # Where sequences were begun and not ended.
        self.begun = {}
        # The instances that serve, and those that leave, with the sequences that they may still have.
        self.serving = {0: True, 1: True}
        self.leaving = {}

    def submit(self, id, flags):
        each = job(id, flags, at=self.now, timeout_s=5.0 if id == 4 else 0.0)
        try:
            self.table.all.check(each)
        except InferenceError:
            assert not flags & START
            return
        self.table.all.submit(each)
        self.waiting.append(each)

    def seated(self, index):
        every = [*self.serving, *self.leaving]
        return every[index % len(every)]

    def join(self):
        self.serving[max(self.table.all._instances, default=0) + 1] = True
        self.table.all.serve(self.serving)

    def leave(self, index):
        if len(self.serving) > 1:
            instance = list(self.serving)[index % len(self.serving)]
            del self.serving[instance]
            self.table.all.serve(self.serving)
            self.leaving[instance] = set(self.table.all._instances[instance].sequences)

    def take(self, index):
        batch = self.table.all.take(self.seated(index), self.now)
        if batch is None:
            return
        assert 1 <= len(batch) <= self.slots
        # At most one request of a sequence is executed at a time, and they are in order.
        for each in batch:
            assert all(other.sequence is not each.sequence for other in self.running)
            assert each is next(other for other in self.waiting if other.sequence is each.sequence)
            self.waiting.remove(each)
            self.running.append(each)

    def done(self, index):
        if self.running:
            each = self.running.pop(index % len(self.running))
            self.begun[each.sequence] = None if each.is_end else each.sequence.place
            self.table.all.done(each, self.now)

    def put_back(self, index):
        if self.running:
            each = self.running.pop(index % len(self.running))
            if self.table.all.put_back(each):
                self.waiting.insert(0, each)

    def cancel(self, index):
        if self.waiting:
            each = self.waiting[index % len(self.waiting)]
            wanted = [each.sequence_id] if self.has_begun(each.sequence) else []
            failed = self.table.all.cancel(each)
            assert each in failed
            assert self.told() == wanted
            self.fail(failed)

    def readiness(self, index, is_ready):
        instance = self.seated(index)
        self.fail(self.table.all.readiness(instance, is_ready))
        if not is_ready:  # its requests have failed
            died = self.table.all._instances[instance]
            self.begun = {sequence: place for sequence, place in self.begun.items() if place is not died}
            for each in [each for each in self.running if each.sequence.running is None]:
                self.running.remove(each)
                self.table.all.done(each, self.now)
        if instance in self.serving:
            self.serving[instance] = is_ready

    def has_begun(self, sequence):
        """Whether the instance that the sequence is on has begun it, and is not about to end it."""
        running = [each for each in self.running if each.sequence is sequence]
        begun = not running[0].is_end if running else self.begun.get(sequence) is sequence.place
        return sequence.place is not None and begun

    def told(self):
        """The ids of abandoned sequences."""
        return sorted(id for _, ids in self.table.all.take_abandoned() for id in ids)

    def fail(self, failed):
        for each in failed:
            self.waiting.remove(each)

    def do_pass(self, seconds):
        self.now += seconds
        idle = [each.id for each, since in self.table.all._idle.items() if since + IDLE_S <= self.now]
        self.fail(self.table.all.expire(self.now))
        assert self.told() == sorted(idle)
        expires_at = self.table.all.expires_at()
        assert expires_at is None or expires_at > self.now

    def check(self):
        every = self.table.all
        assert self.told() == []
        assert len(every) == len(self.waiting)
        for slots in every._instances.values():
            taken = [sequence.slot for sequence in slots.sequences]
            assert sorted(taken + slots.free) == list(range(self.slots))
        has_room = any(is_ready and every._instances[instance].free for instance, is_ready in self.serving.items())
        assert not (has_room and every._backlog)
        for instance in every.take_left():
            del self.leaving[instance]
        assert every._instances.keys() == self.serving.keys() | self.leaving.keys()
        for instance, sequences in self.leaving.items():
            now = set(every._instances[instance].sequences)
            assert now
            assert now <= sequences
            self.leaving[instance] = now


@settings(max_examples=4 * settings.default.max_examples)
@given(st.integers(1, 3), st.booleans(), st.lists(STEPS, max_size=60))
def test_any_steps(slots, oldest, steps):
    """For all steps: order, one request at a time, no slot is lost or given twice, and in the end all is done.

    An instance that leaves gets no further sequences, and is there until its last one ends.
    """
    model = Model(slots, oldest)
    for name, *arguments in steps:
        getattr(model, "do_pass" if name == "pass" else name)(*arguments)
        model.check()
    for index in range(len(model.serving)):
        model.readiness(index, True)
    for _ in range(2 * len(steps) + 10):
        for index in range(len(model.serving) + len(model.leaving)):
            model.take(index)
        while model.running:
            model.done(0)
        model.do_pass(IDLE_S)
        model.check()
    assert model.waiting == []
    assert len(model.table.all._known) == 0
    assert not model.leaving
    assert sum(len(each.free) for each in model.table.all._instances.values()) == len(model.serving) * slots
