# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The queue with priorities and policies: its rules one by one, and all of them against a plain list."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.config.spec import DynamicBatchingSpec, QueuePolicySpec
from pyruntime.runtime.observe.level_statistics import LEVELS_SHOWN_MAX
from pyruntime.runtime.scheduling.policy_queue import PASSED_OVER_MAX, PolicyQueue, QueueFull

REJECT = QueuePolicySpec(default_timeout_us=10_000_000)
DELAY = QueuePolicySpec(default_timeout_us=10_000_000, delays=True)


@dataclass(eq=False)
class Queued:
    name: object = ""
    arrived_s: float = 0.0
    priority: int = 0
    timeout_s: float = 0.0

    def __repr__(self):
        return str(self.name)


UNLIMITED = QueuePolicySpec()


def queue(policy=UNLIMITED, levels=0, default=1, **level_policies):
    """`level_policies` are named level_1 and so on."""
    own = tuple((int(name.removeprefix("level_")), each) for name, each in level_policies.items())
    return PolicyQueue(DynamicBatchingSpec((8,), 0, policy, levels, default, own))


def filled(made, *requests):
    for each in requests:
        made.add(each)
    return made


def names(requests):
    return "".join(str(each.name) for each in requests)


class TestPriority:
    def test_order(self):
        """Level 1 comes first; within a level requests are in order of arrival."""
        made = filled(queue(levels=3), Queued("a", 0, 2), Queued("b", 1, 3), Queued("c", 2, 1), Queued("d", 3, 2))
        assert names(made) == "cadb"
        assert names(made.take(3)) == "cad"
        assert names(made.take(1)) == "b"

    @pytest.mark.parametrize("priority", [0, 4, 1 << 64])
    def test_default_level(self, priority):
        """A priority that the model does not have stands for the default level."""
        made = filled(queue(levels=3, default=2), Queued("a", 0, 3), Queued("b", 1, priority), Queued("c", 2, 1))
        assert names(made) == "cba"

    def test_no_levels(self):
        """Without levels the priority is of no importance, and policies of levels are none."""
        made = filled(queue(level_1=QueuePolicySpec(1)), Queued("a", 0, 2), Queued("b", 1, 1))
        assert names(made) == "ab"

    def test_last(self):
        """It tells whether a request is behind all others."""
        made = queue(DELAY, levels=2)
        assert made.add(Queued("a", 0, 2))
        assert made.add(Queued("b", 1, 2))
        assert not made.add(Queued("c", 2, 1))
        made.take(2)
        made.expire(20)
        assert not made.add(Queued("d", 3, 2))


class TestTurns:
    def test_lowest_level(self):
        """A level that PASSED_OVER_MAX batches have passed over begins the next one."""
        made = filled(queue(levels=2), Queued("low", 0, 2))
        for _ in range(PASSED_OVER_MAX):
            filled(made, Queued("a", 0, 1), Queued("b", 0, 1))
            assert names(made.take(1)) in ("a", "b")
        assert names(made.take(1)) == "low"
        assert names(made.take(2)) == "ab"

    def test_batch_goes_on_with_the_first_level(self):
        """Behind the requests whose turn it is, the batch has those of the highest level."""
        made = filled(queue(levels=3), Queued("c", 0, 3))
        for _ in range(PASSED_OVER_MAX):
            filled(made, Queued("a", 0, 1))
            made.take(1)
        filled(made, Queued("b", 0, 2), Queued("a", 0, 1))
        assert names(made) == "cab"
        assert names(made.take(2)) == "ca"

    def test_level_that_got_empty(self):
        """A level whose last request was cancelled has no turn any more."""
        low = Queued("low", 0, 2)
        made = filled(queue(levels=2), low)
        for _ in range(PASSED_OVER_MAX):
            made.take(len(filled(made, Queued("a", 0, 1)).take(1)) - 1)
        assert made.remove(low)
        filled(made, Queued("later", 0, 2), Queued("a", 0, 1))
        assert names(made.take(1)) == "a"

    def test_level_that_was_alone(self):
        """A level that was served while no other had requests is passed over as often again before its turn."""
        made = filled(queue(levels=2), Queued("low", 0, 2), Queued("lower", 0, 2), Queued("lowest", 0, 2))
        for _ in range(PASSED_OVER_MAX - 1):
            filled(made, Queued("a", 0, 1)).take(1)
        assert names(made.take(1)) == "low"
        for _ in range(PASSED_OVER_MAX):
            assert names(filled(made, Queued("a", 0, 1)).take(1)) == "a"
        assert names(filled(made, Queued("a", 0, 1)).take(1)) == "lower"

    @given(
        levels=st.integers(2, 6),
        arrivals=st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=80),
        size=st.integers(1, 4),
    )
    def test_bound(self, levels, arrivals, size):
        """A level with waiting requests is in one of any PASSED_OVER_MAX + levels batches."""
        made = queue(levels=levels)
        without = dict.fromkeys(range(1, levels + 1), 0)
        for priorities in arrivals:
            # The first level is never empty.
            filled(made, *(Queued("x", 0, min(priority, levels)) for priority in [*priorities, *[1] * size]))
            waiting = {each.priority for each in made}
            batch = {each.priority for each in made.take(size)}
            for level in without:
                without[level] = without[level] + 1 if level in waiting - batch else 0
                assert without[level] < PASSED_OVER_MAX + levels


class Counted(dict):
    """Counts how often something is looked up."""

    lookups = 0

    def __getitem__(self, key):
        self.lookups += 1
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.lookups += 1
        return super().get(key, default)


def test_a_batch_looks_only_at_levels_that_it_takes_requests_from():
    made = queue(levels=2000)
    filled(made, *(Queued("x", number, number) for number in range(1, 2001)))
    made._levels = levels = Counted(made._levels)
    for _ in range(100):
        assert len(made.take(4)) == 4
        assert made.oldest_s() > 0
    assert levels.lookups <= 100 * 4 * 4


class TestPolicies:
    def test_size_of_a_level(self):
        """max_queue_size counts the requests of one level, late ones included."""
        made = queue(DELAY, levels=2, default=1, level_2=QueuePolicySpec(2, 1_000_000, delays=True))
        filled(made, Queued("a", 0, 2), Queued("b", 2, 2), Queued("c", 0, 1), Queued("d", 0, 1), Queued("e", 0, 1))
        made.expire(2)
        with pytest.raises(QueueFull, match=r"^Exceeds maximum queue size$"):
            made.add(Queued("f", 3, 2))
        assert names(made) == "cdeba"
        assert made.count == 5

    def test_reject(self):
        """A request whose time is over leaves the queue; at its deadline it is not yet over."""
        made = filled(queue(REJECT), Queued("a", 0), Queued("b", 1))
        assert made.deadline() == 10
        assert made.expire(10) == ([], False)
        rejected, changed = made.expire(10.5)
        assert (names(rejected), changed, names(made)) == ("a", True, "b")
        assert made.deadline() == 11

    def test_delay(self):
        """Late requests go behind the others of their level only, and have no deadline any more."""
        made = filled(queue(DELAY, levels=2), Queued("a", 0, 1), Queued("b", 5, 1), Queued("c", 5, 2))
        assert made.expire(11) == ([], True)
        assert names(made) == "bac"
        assert names(made.take(2)) == "ba"
        assert made.deadline() == 15

    def test_own_timeout(self):
        """A request may shorten its time, where the policy says so; it cannot make it longer, nor set one."""
        override = QueuePolicySpec(0, 10_000_000, allow_timeout_override=True)
        unlimited = QueuePolicySpec(allow_timeout_override=True)
        for policy, timeout_s, deadline in [(override, 4, 4), (override, 40, 10), (override, 0, 10), (REJECT, 4, 10)]:
            assert filled(queue(policy), Queued("a", 0, 0, timeout_s)).deadline() == deadline
        assert filled(queue(unlimited), Queued("a", 0, 0, 4)).deadline() is None

    def test_taken(self):
        """A request that was taken has no deadline, even if another object has its identity now."""
        made = filled(queue(REJECT), Queued("a", 0))
        made.take(1)
        assert made.deadline() is None
        filled(made, *(Queued("b", 5) for _ in range(100)))
        assert made.expire(12) == ([], False)

    def test_requeued(self):
        """A request that its model has begun has neither a deadline nor a limit."""
        policy = QueuePolicySpec(1, 10_000_000)
        made = queue(policy)
        first = Queued("a", 0)
        made.add(first)
        made.take(1)
        made.add(Queued("b", 1))
        made.requeue(first)
        assert names(made) == "ba"
        rejected, _ = made.expire(100)
        assert (names(rejected), names(made)) == ("b", "a")

    def test_put_back_before_requeued(self):
        """A request that its model has begun stays behind those that waited then, whenever it arrived."""
        begun, waiting, later = Queued("a", 0), Queued("b", 1), Queued("d", 3)
        made = filled(queue(), begun, Queued("c", 2))
        taken = made.take(2)
        made.add(waiting)
        made.requeue(begun)
        made.add(later)
        made.put_back(taken[1:])
        assert names(made) == "bcad"
        assert made.take(4)[2] is begun
        made.add(Queued("e", 4))
        made.put_back([begun])
        assert names(made) == "ae"

    def test_put_back(self):
        """A batch that did not begin is in order of arrival again, and its time goes on."""
        made = filled(queue(REJECT, levels=2), Queued("a", 0, 2), Queued("b", 0, 1), Queued("c", 1, 1))
        batch = made.take(3)
        filled(made, Queued("d", 0, 1), Queued("e", 2, 1))
        made.put_back(batch)
        assert names(made) == "bdcea"
        assert made.count == 5
        assert made.deadline() == 10

    def test_stale_deadlines(self):
        """Deadlines of requests that were taken in time do not pile up."""
        made = queue(REJECT)
        for number in range(1000):
            made.add(Queued("a", number))
            made.take(1)
        assert len(made._deadlines) < 100


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4), st.sampled_from([0, 1, 3])),
        st.tuples(st.just("wait"), st.integers(1, 4)),
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.just("remove"), st.integers(0, 59)),
        st.tuples(st.sampled_from(["put back", "requeue"])),
    ),
    max_size=60,
)


@given(
    operations=OPERATIONS,
    levels=st.sampled_from([0, 3]),
    delays=st.booleans(),
    override=st.booleans(),
    timeout_s=st.sampled_from([0, 2, 5]),
)
def test_agrees_with_a_list(operations, levels, delays, override, timeout_s):
    """For all operations: nothing is lost or doubled, and order and deadlines are those of the rules.

    Fewer batches than PASSED_OVER_MAX are taken between two arrivals of a level, so turns play no part.
    """
    policy = QueuePolicySpec(0, timeout_s * 1_000_000, delays, override)
    made = queue(policy, levels, 2)
    # (level, late, order, request, deadline or None), in an order of its own.
    waiting, everything, last, now, late = [], [], None, 0.0, 0

    def level_of(each):
        if not levels:
            return 1
        return each.priority if 1 <= each.priority <= levels else 2

    def deadline(each):
        if not timeout_s:
            return None
        own = each.timeout_s if override and 0 < each.timeout_s < timeout_s else timeout_s
        return each.arrived_s + own

    def in_order():
        return [entry[3] for entry in sorted(waiting, key=lambda entry: entry[:3])]

    batches = 0
    for serial, operation in enumerate(operations):
        # No two requests arrive, or begin, at the same time: the order of those that do is tested above.
        moment = now + serial * 1e-6
        match operation:
            case ("add", priority, timeout):
                each = Queued(serial, moment, priority, timeout)
                made.add(each)
                everything.append(each)
                waiting.append((level_of(each), 0, (moment, serial), each, deadline(each)))
            case ("wait", seconds):
                now += seconds
                rejected, _ = made.expire(now)
                expired = [entry for entry in waiting if entry[4] is not None and entry[4] < now]
                waiting = [entry for entry in waiting if entry not in expired]
                if delays:
                    assert rejected == []
                    for entry in sorted(expired, key=lambda entry: (entry[4], entry[2])):
                        late += 1
                        waiting.append((entry[0], 1, (late, 0), entry[3], None))
                else:
                    assert set(rejected) == {entry[3] for entry in expired}
            case ("take", count) if waiting and batches < PASSED_OVER_MAX:
                batches += 1
                count = min(count, len(waiting))
                expected = in_order()[:count]
                last = made.take(count)
                assert last == expected
                waiting = [entry for entry in waiting if entry[3] not in last]
            case ("remove", number) if everything:
                each = everything[number % len(everything)]
                assert made.remove(each) is any(entry[3] is each for entry in waiting)
                waiting = [entry for entry in waiting if entry[3] is not each]
            case ("put back",) if last:
                made.put_back(last)
                for each in last:
                    waiting.append((level_of(each), 0, (each.arrived_s, each.name), each, deadline(each)))
                last = None
            case ("requeue",) if last:
                each, *last = last
                made.requeue(each)
                waiting.append((level_of(each), 0, (moment, serial), each, None))
        assert made.count == len(waiting)
        if waiting:  # those that are late and those in time are each in an order of their own
            assert made.oldest_s() == min(level.oldest_s() for level in made._levels.values() if level)
        assert {id(each) for each in made} == {id(entry[3]) for entry in waiting}
    assert set(made.drain()) == {entry[3] for entry in waiting}
    assert made.count == 0


class TestLevels:
    """What is counted by level."""

    def numbers(self, made):
        return {
            name: (each.waiting, each.taken_count, each.wait_s, each.rejected_count, each.timed_out_count)
            for name, each in made.levels().items()
        }

    def test_none(self):
        """A queue without levels counts none."""
        made = filled(queue(), Queued("a"))
        assert not made.has_levels
        assert made.levels() == {}

    def test_waiting_and_taken(self):
        """Requests count where they queue; when they are taken, with the time that they have waited."""
        made = filled(queue(levels=3, default=2), Queued("a", 0, 2), Queued("b", 1, 0), Queued("c", 2, 1))
        assert made.has_levels
        assert self.numbers(made) == {"1": (1, 0, 0, 0, 0), "2": (2, 0, 0, 0, 0), "3": (0, 0, 0, 0, 0)}
        made.count_taken(made.take(2), 5.0)
        assert self.numbers(made) == {"1": (0, 1, 3.0, 0, 0), "2": (1, 1, 5.0, 0, 0), "3": (0, 0, 0, 0, 0)}

    def test_a_clock_that_is_behind(self):
        """A request that is taken before it arrived, by the clock, has not waited."""
        made = filled(queue(levels=1), Queued("a", 2.0, 1))
        made.count_taken(made.take(1), 1.0)
        assert self.numbers(made) == {"1": (0, 1, 0.0, 0, 0)}

    def test_rejected(self):
        """A request that finds the queue of its level full counts there."""
        made = filled(queue(levels=2, level_2=QueuePolicySpec(max_queue_size=1)), Queued("a", 0, 2))
        with pytest.raises(QueueFull):
            made.add(Queued("b", 0, 2))
        assert self.numbers(made) == {"1": (0, 0, 0, 0, 0), "2": (1, 0, 0, 1, 0)}

    @pytest.mark.parametrize(("policy", "waiting"), [(REJECT, 0), (DELAY, 1)])
    def test_timed_out(self, policy, waiting):
        """A request whose time is over counts once, whether it leaves the queue or goes behind the others."""
        made = filled(queue(policy, levels=1), Queued("a", 0, 1))
        made.expire(11.0)
        made.expire(12.0)
        assert self.numbers(made) == {"1": (waiting, 0, 0, 0, 1)}

    @pytest.mark.parametrize("leave", ["take", "remove", "expire"])
    def test_many_levels(self, leave):
        """Clients choose the levels: of those that are not shown by number, the queue keeps none without requests."""
        made = queue(REJECT, levels=1 << 32)
        for number in range(1, 1000):
            queued = Queued(number, 0, number)
            made.add(queued)
            if leave == "take":
                made.count_taken(made.take(1), 2.0)
            elif leave == "remove":
                assert made.remove(queued)
            else:
                assert made.expire(11.0)[0] == [queued]
        assert len(made._levels) == LEVELS_SHOWN_MAX
        others = 1000 - 1 - LEVELS_SHOWN_MAX
        taken = (others, 2.0 * others) if leave == "take" else (0, 0)
        assert self.numbers(made)["more"] == (0, *taken, 0, others if leave == "expire" else 0)
