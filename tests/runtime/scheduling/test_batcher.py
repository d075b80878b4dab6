# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batcher: the rules of its docstring one by one, and all of them against a model that tries every front."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.config.spec import DynamicBatchingSpec, QueuePolicySpec
from pyruntime.runtime.scheduling.batcher import Batcher
from pyruntime.runtime.scheduling.policy_queue import QueueFull

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Queued:
    """A waiting request: all that the batcher looks at, and a payload to know it by."""

    request: object
    rows: int
    arrived_s: float
    signature: object = None
    priority: int = 0
    timeout_s: float = 0.0


def batching(*preferred, delay_us=0, max_queue_size=0):
    return DynamicBatchingSpec(preferred, delay_us, QueuePolicySpec(max_queue_size))


def filled(batcher, *rows, arrived_s=0.0, signature=None):
    """Submits one request of each size; the payloads are the letters a, b, c, ..."""
    for payload, size in zip(LETTERS, rows, strict=False):
        batcher.submit(Queued(payload, size, arrived_s, signature))
    return batcher


def payloads(batch):
    return None if batch is None else "".join(queued.request for queued in batch)


def taken(batcher, now=0.0):
    return payloads(batcher.take(now))


def all_taken(batcher, now=0.0):
    """Every batch that the batcher gives without further requests."""
    batches = []
    while (batch := batcher.take(now)) is not None:
        batches.append(payloads(batch))
    return batches


class TestWithoutBatching:
    def test_every_request_is_alone(self):
        """Without dynamic_batching, a batch is one request, however many would fit."""
        assert all_taken(filled(Batcher(8, None), 1, 2, 1)) == ["a", "b", "c"]

    def test_a_model_that_does_not_batch_is_served_too(self):
        """max_batch_size 0 is a model without batch dimension."""
        assert all_taken(filled(Batcher(0, None), 1, 1)) == ["a", "b"]

    def test_the_queue_has_no_limit(self):
        """Only a queue policy limits a queue."""
        batcher = Batcher(8, None)
        for _ in range(1000):
            filled(batcher, 1)
        assert len(batcher) == 1000

    def test_nothing_queued_gives_nothing(self):
        """take() on an empty queue is None, without a time to wake up."""
        batcher = Batcher(8, None)
        assert batcher.take(0.0) is None
        assert batcher.wake_at() is None

    def test_wakes_at_once(self):
        """A request is due from its arrival on."""
        assert filled(Batcher(8, None), 1, arrived_s=3.0).wake_at() == 3.0


class TestWithoutDelay:
    def test_takes_all_that_fits(self):
        """Without preferred sizes, a batch is all that is queued up to max_batch_size."""
        assert all_taken(filled(Batcher(4, batching()), 1, 1, 1)) == ["abc"]
        assert all_taken(filled(Batcher(4, batching()), 1, 1, 1, 1, 1)) == ["abcd", "e"]

    def test_never_splits_a_request(self):
        """A request that does not fit any more waits for the next batch, whole."""
        assert all_taken(filled(Batcher(4, batching()), 3, 2, 2, 4)) == ["a", "bc", "d"]

    def test_never_lets_a_smaller_request_overtake(self):
        """Order is kept even where a later request would fill the gap."""
        assert all_taken(filled(Batcher(4, batching()), 3, 2, 1)) == ["a", "bc"]

    def test_takes_the_largest_preferred_size(self):
        """Of several preferred sizes that can be formed, the largest is."""
        assert taken(filled(Batcher(8, batching(2, 4)), 1, 1, 1, 1, 1)) == "abcd"
        assert taken(filled(Batcher(8, batching(2, 4)), 1, 1, 1)) == "ab"

    def test_takes_everything_when_no_preferred_size_can_be_formed(self):
        """Without a delay no request waits for a preferred size."""
        assert taken(filled(Batcher(8, batching(4)), 1, 1)) == "ab"

    def test_stops_before_it_leads_past_every_preferred_size(self):
        """A request that leads past the largest preferred size stays out, if no preferred size was formed."""
        assert all_taken(filled(Batcher(8, batching(4)), 3, 2, 1)) == ["a", "bc"]

    def test_a_single_request_may_be_larger_than_every_preferred_size(self):
        """Such a request is a batch of its own."""
        assert all_taken(filled(Batcher(8, batching(4)), 6, 1)) == ["a", "b"]

    def test_another_signature_closes_the_batch(self):
        """Requests of different signatures never share a batch, and never overtake one another."""
        batcher = Batcher(8, batching())
        for payload, signature in [("a", 1), ("b", 1), ("c", 2), ("d", 1)]:
            batcher.submit(Queued(payload, 1, 0.0, signature))
        assert all_taken(batcher) == ["ab", "c", "d"]


class TestWithDelay:
    """A delay of 10 ms."""

    def batcher(self, *preferred):
        return Batcher(8, batching(*preferred, delay_us=10_000))

    def test_waits_for_the_delay_of_the_oldest(self):
        """A batch that may still grow waits until its oldest request has waited for the delay."""
        batcher = self.batcher()
        batcher.submit(Queued("a", 1, 0.000))
        batcher.submit(Queued("b", 1, 0.008))
        assert batcher.take(0.009) is None
        assert batcher.wake_at() == 0.010
        assert taken(batcher, 0.010) == "ab"

    def test_the_delay_of_the_rest_is_its_own(self):
        """The delay of a request that a batch leaves behind counts from the request's own arrival."""
        batcher = self.batcher(2)
        for payload, arrived_s in [("a", 0.0), ("b", 0.001), ("c", 0.002)]:
            batcher.submit(Queued(payload, 1, arrived_s))
        assert taken(batcher, 0.002) == "ab"
        assert batcher.take(0.011) is None
        assert batcher.wake_at() == 0.012

    def test_a_full_batch_does_not_wait(self):
        """max_batch_size rows are executed at once."""
        assert all_taken(filled(self.batcher(), 4, 4, 1)) == ["ab"]

    def test_a_preferred_size_does_not_wait(self):
        """A preferred size is executed at once, and further requests wait."""
        assert all_taken(filled(self.batcher(2, 4), 1, 1, 1)) == ["ab"]

    def test_a_preferred_size_may_come_later(self):
        """A batch below every preferred size waits, and is executed when a request completes it."""
        batcher = filled(self.batcher(2), 1)
        assert batcher.take(0.001) is None
        batcher.submit(Queued("z", 1, 0.002))
        assert taken(batcher, 0.002) == "az"

    def test_no_use_to_wait_past_every_preferred_size(self):
        """Requests that cannot reach a preferred size any more are executed at once."""
        assert all_taken(filled(self.batcher(4), 3, 2)) == ["a"]
        assert all_taken(filled(self.batcher(4), 6)) == ["a"]

    def test_a_closed_batch_does_not_wait(self):
        """A batch that cannot grow is executed at once: because of its rows, or of the next request's signature."""
        assert all_taken(filled(self.batcher(8), 5, 4)) == ["a"]
        batcher = filled(self.batcher(), 1, 1, signature="x")
        batcher.submit(Queued("z", 1, 0.0, "y"))
        assert all_taken(batcher) == ["ab"]

    def test_after_the_delay_more_than_a_preferred_size_is_taken(self):
        """Once the oldest has waited, everything that fits goes with it."""
        assert taken(filled(self.batcher(2), 1, 1, 1), 0.010) == "abc"

    def test_a_submit_after_the_batch_closed_changes_nothing(self):
        """A later request does not join a closed batch, even one that it would fit."""
        batcher = filled(self.batcher(2), 1, signature="x")
        assert batcher.take(0.0) is None
        batcher.submit(Queued("y", 1, 0.001, "y"))
        batcher.submit(Queued("z", 1, 0.001, "x"))
        assert taken(batcher, 0.001) == "a"


class TestQueue:
    def test_a_full_queue_refuses(self):
        """max_queue_size counts requests; a refused one is not queued."""
        batcher = filled(Batcher(8, batching(max_queue_size=2)), 4, 4)
        with pytest.raises(QueueFull, match=r"^Exceeds maximum queue size$"):
            batcher.submit(Queued("z", 1, 0.0))
        assert all_taken(batcher) == ["ab"]

    def test_put_back_comes_first(self):
        """A batch that did not begin is in front again, in its order, even in a full queue."""
        batcher = filled(Batcher(2, batching(max_queue_size=3)), 1, 1, 1)
        batch = batcher.take(0.0)
        batcher.submit(Queued("d", 1, 0.0))
        batcher.submit(Queued("e", 1, 0.1))
        batcher.put_back(batch)
        assert all_taken(batcher) == ["ab", "cd", "e"]

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_two_batches_put_back_are_in_order_of_arrival(self, order):
        """The batches of two instances that died come back by arrival, whichever died first."""
        batcher = Batcher(1, batching())
        for payload, arrived_s in [("a", 0.0), ("b", 0.1)]:
            batcher.submit(Queued(payload, 1, arrived_s))
        batches = [batcher.take(0.2), batcher.take(0.2)]
        for position in order:
            batcher.put_back(batches[position])
        assert all_taken(batcher) == ["a", "b"]

    def test_remove_takes_out_one(self):
        """A cancelled request is no part of the next batch, even if that was being formed."""
        batcher = filled(Batcher(8, batching(delay_us=10_000)), 1)
        cancelled = Queued("b", 1, 0.0)
        batcher.submit(cancelled)
        batcher.submit(Queued("c", 1, 0.0))
        assert batcher.take(0.0) is None
        assert batcher.remove(cancelled)
        assert taken(batcher, 0.010) == "ac"

    def test_remove_goes_by_identity(self):
        """A request that is not queued (any more) is not removed, nor is one that is only equal."""
        batcher = Batcher(8, None)
        batcher.submit(Queued("a", 1, 0.0))
        assert not batcher.remove(Queued("a", 1, 0.0))
        assert len(batcher) == 1

    def test_removing_the_last_leaves_nothing_to_wake_for(self):
        """An empty queue has no time to wake at."""
        batcher = Batcher(8, batching(delay_us=10_000))
        batcher.submit(only := Queued("a", 1, 0.0))
        batcher.remove(only)
        assert batcher.wake_at() is None
        assert batcher.take(1.0) is None

    def test_drain_takes_everything(self):
        """All that is queued, in order; the batcher can be used again."""
        batcher = filled(Batcher(2, batching(delay_us=10_000)), 1, 1, 1)
        assert payloads(batcher.drain()) == "abc"
        assert len(batcher) == 0
        assert taken(filled(batcher, 2)) == "a"

    def test_repr_says_how_many_wait(self):
        """The repr for log lines."""
        assert repr(filled(Batcher(8, None), 1, 1, 1)) == "<Batcher [3 queued]>"


def expected(waiting, maximum, preferred, delay_s, now):
    """The length of the next batch by the rules alone, trying every front; 0 for none."""
    preferred = preferred or {maximum}
    rows = [sum(queued.rows for queued in waiting[:length]) for length in range(len(waiting) + 1)]
    fits = [
        length
        for length in range(1, len(waiting) + 1)
        if (rows[length] <= maximum or length == 1) and len({queued.signature for queued in waiting[:length]}) == 1
    ]
    pending = max(fits)
    exact = [length for length in fits if rows[length] in preferred]
    past = [length for length in fits if rows[length] > max(preferred)]
    if not past and pending < len(waiting) and rows[pending + 1] > max(preferred):
        past = [pending + 1]
    if delay_s and now >= waiting[0].arrived_s + delay_s:
        return pending
    if exact:
        return max(exact)
    if past:
        return max(past[0] - 1, 1)
    return pending if pending < len(waiting) or not delay_s else 0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 6), st.sampled_from("xxxy")),
        st.tuples(st.just("wait"), st.integers(0, 8)),
        st.tuples(st.sampled_from(["take", "sleep", "put back"])),
        st.tuples(st.just("remove"), st.integers(0, 59)),
    ),
    max_size=60,
)


@given(
    preferred=st.sets(st.integers(1, 6), max_size=3),
    delay_ms=st.sampled_from([0, 4]),
    operations=OPERATIONS,
    eager=st.booleans(),
)
def test_agrees_with_the_rules(preferred, delay_ms, operations, eager):
    """For all operations the batches are those of the rules: no request is lost, doubled, reordered or late."""
    batcher = Batcher(6, batching(*preferred, delay_us=delay_ms * 1000))
    waiting, submitted, last, now, delay_s = [], [], None, 0.0, delay_ms * 1000 / 1e6

    def take():
        batch = batcher.take(now)
        length = expected(waiting, 6, preferred, delay_s, now) if waiting else 0
        assert (batch or []) == waiting[:length]
        assert batch is None or sum(queued.rows for queued in batch) <= 6
        del waiting[:length]
        return batch

    for operation in operations:
        match operation:
            case ("submit", rows, signature):
                queued = Queued(object(), rows, now, signature)
                batcher.submit(queued)
                submitted.append(queued)
                waiting.append(queued)
            case ("wait", milliseconds):
                now += milliseconds / 1000
            case ("take",):
                last = take()
            case ("sleep",) if waiting:
                now = max(now, batcher.wake_at())
                oldest = waiting[0]
                last = take()
                assert last[0] is oldest
            case ("put back",) if last is not None:
                batcher.put_back(last)
                waiting[:0], last = last, None
            case ("remove", number) if submitted:
                cancelled = submitted[number % len(submitted)]
                assert batcher.remove(cancelled) is any(queued is cancelled for queued in waiting)
                waiting = [queued for queued in waiting if queued is not cancelled]
        if eager and operation[0] == "submit":
            take()
        assert len(batcher) == len(waiting)
    assert batcher.drain() == waiting


class Strategy:
    """Lets requests of a batch come to `limit` rows, and notes its calls."""

    def __init__(self, limit):
        self.limit = limit
        self.rows = None
        self.asked = []

    def begin(self):
        assert self.rows is None
        self.rows = 0
        self.asked.append("(")

    def include(self, queued):
        self.asked.append(queued.request)
        self.rows += queued.rows
        return self.rows <= self.limit

    def end(self):
        assert self.rows is not None
        self.rows = None
        self.asked.append(")")


class TestStrategy:
    """A model's own say in which requests are executed together."""

    def batcher(self, limit, spec=None):
        return Batcher(8, spec or batching(), Strategy(limit))

    def test_it_closes_a_batch(self):
        """A request that the strategy refuses is the first of the next batch, and is included in the next question."""
        batcher = self.batcher(3)
        assert all_taken(filled(batcher, 1, 2, 1, 1, 1)) == ["ab", "cde"]
        assert "".join(batcher.strategy.asked) == "(abc)(cde)"

    def test_a_closed_batch_waits_no_longer(self):
        """It cannot grow any more."""
        batcher = self.batcher(2, batching(8, delay_us=1000))
        assert taken(filled(batcher, 1, 1)) is None
        batcher.submit(Queued("c", 1, 0.0))
        assert taken(batcher) == "ab"
        assert taken(batcher) is None
        assert taken(batcher, now=0.001) == "c"
        assert "".join(batcher.strategy.asked) == "(abc)(c)"

    def test_nobody_is_left_behind(self):
        """The first request of a batch is in it even if it is not wanted: else it would never be executed."""
        batcher = self.batcher(3)
        assert all_taken(filled(batcher, 4, 1, 4)) == ["a", "b", "c"]
        assert "".join(batcher.strategy.asked) == "(ab)(bc)(c)"

    def test_it_is_not_asked_about_who_cannot_join_anyway(self):
        """The usual rules come first."""
        batcher = self.batcher(100)
        filled(batcher, 5, 4)
        batcher.submit(Queued("x", 1, 0.0, signature="other"))
        assert all_taken(batcher) == ["a", "b", "x"]
        assert "".join(batcher.strategy.asked) == "(a)(b)(x)"

    def test_a_batch_that_is_formed_anew(self):
        """After a request was taken out it is begun again."""
        batcher = self.batcher(2, batching(8, delay_us=1000))
        filled(batcher, 1)
        gone = Queued("x", 1, 0.0)
        batcher.submit(gone)
        assert taken(batcher) is None
        assert batcher.remove(gone)
        assert taken(batcher, now=0.001) == "a"
        assert "".join(batcher.strategy.asked) == "(ax)(a)"

    def test_the_end(self):
        """A batch that is never executed is ended as well."""
        batcher = self.batcher(2, batching(8, delay_us=1000))
        assert taken(filled(batcher, 1)) is None
        assert payloads(batcher.drain()) == "a"
        assert "".join(batcher.strategy.asked) == "(a)"
