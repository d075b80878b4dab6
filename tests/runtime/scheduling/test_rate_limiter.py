# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The rate limiter: its rules one by one, and all of them against an oracle that computes everything anew."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyruntime.runtime.scheduling.rate_limiter import Lack, RateLimiter
from pyruntime.runtime.scheduling.resources import Resource
from pyruntime.runtime.settings import ResourceLimit

R, S = Resource("R", 0), Resource("S", None)


def limiter(*limits, **instances):
    """`instances` are pairs of what each needs and its priority, or what it needs."""
    made = RateLimiter([ResourceLimit(name, amount) for name, amount in limits])
    for key, of in instances.items():
        needs, priority = of if isinstance(of, tuple) else (of, 0)
        made.add(key, needs, priority)
    return made


def granted(made, *requests):
    """All that is granted after these requests."""
    for key in requests:
        made.request(key)
    return "".join(iter(made.grant, None))


def turns(made, count, *always):
    """Who is granted when these always have work, and one execution ends after the other."""
    order = ""
    running = granted(made, *always)
    while len(order) < count:
        order += running[0]
        ended, running = running[0], running[1:]
        made.release(ended)
        running += granted(made, ended)
    return order


class TestResources:
    def test_shared(self):
        """Two that share a resource never have it together."""
        made = limiter(a={R: 1}, b={R: 1})
        assert granted(made, "a", "b") == "a"
        made.release("a")
        assert granted(made) == "b"

    def test_as_many_as_fit(self):
        """As many as there is enough for are granted."""
        made = limiter(("R", 4), a={R: 2}, b={R: 2}, c={R: 1})
        assert granted(made, "a", "b", "c") == "ab"
        made.release("b")
        assert granted(made, "b") == "c"

    def test_several_times(self):
        """One may hold its resources several times."""
        made = limiter(("R", 2), a={R: 1})
        assert granted(made, "a") == "a"
        assert granted(made, "a") == "a"
        assert granted(made, "a") == ""
        made.release("a")
        assert granted(made) == "a"

    def test_removed(self):
        """One that ends gives all back, waits for nothing, and may be added again."""
        made = limiter(("R", 2), a={R: 1}, b={R: 2})
        assert granted(made, "a") == "a"
        assert granted(made, "b", "a") == ""
        made.remove("a")
        assert "a" not in made
        assert granted(made) == "b"
        made.remove("b")
        assert repr(made) == "<RateLimiter [0 instances, 0 waiting, 0 granted]>"
        made.add("b", {R: 1}, 0)
        assert granted(made, "b") == "b"

    def test_maxima_shrink(self):
        """When the one that needs the most ends, less may run together."""
        made = limiter(large={R: 3}, a={R: 1}, b={R: 1})
        assert granted(made, "a", "b") == "ab"
        made.remove("large")
        made.release("a")
        assert granted(made, "a") == ""
        made.release("b")
        assert granted(made) == "a"

    def test_withdrawn(self):
        """One that has no work any more is not granted anything."""
        made = limiter(a={R: 1}, b={R: 1})
        made.request("a")
        made.request("b")
        made.withdraw("a")
        made.withdraw("a")
        assert granted(made) == "b"


class TestOrder:
    def test_priorities(self):
        """One of priority 2 has half the turns of one of priority 1, and 0 is the same as 1."""
        made = limiter(a=({R: 1}, 1), b=({R: 1}, 2), c=({R: 1}, 0))
        assert Counter(turns(made, 100, *"abc")) == {"a": 40, "b": 20, "c": 40}

    def test_priorities_of_those_with_several_resources(self):
        """The same holds where they share more than one."""
        made = limiter(a=({R: 1, S: 2}, 1), b=({S: 2, R: 1}, 3))
        assert Counter(turns(made, 80, *"ab")) == {"a": 60, "b": 20}

    def test_equal(self):
        """Of those that are equal, the one goes first that waits longest."""
        assert turns(limiter(a={R: 1}, b={R: 1}, c={R: 1}), 9, *"bca") == "bcabcabca"

    def test_newcomer(self):
        """One that is loaded later does not catch up with the executions that others had before."""
        made = limiter(a={R: 1})
        turns(made, 1000, "a")
        made.add("b", {R: 1}, 1)
        assert Counter(turns_on(made, "a", 100, "b")) == {"a": 50, "b": 50}

    def test_nothing_was_there(self):
        """A grant for which there was nothing to execute does not count."""
        made = limiter(a={R: 1}, b={R: 1})
        for _ in range(10):
            assert granted(made, "a") == "a"
            made.refuse("a")
        assert turns(made, 4, "a", "b") == "abab"

    def test_no_overtaking(self):
        """One that needs much is not starved by those that need little."""
        made = limiter(("R", 4), large={R: 4}, a={R: 1}, b={R: 1})
        assert granted(made, "a", "b") == "ab"
        assert granted(made, "large") == ""
        made.release("a")
        assert granted(made, "a") == ""
        made.release("b")
        assert granted(made, "b") == "large"

    def test_others_go_on(self):
        """One that needs nothing of what the first waits for goes ahead, and one that needs some of it does not."""
        made = limiter(a={R: 1}, both={R: 1, S: 1}, s={S: 1})
        assert granted(made, "a") == "a"
        assert granted(made, "both", "s") == ""
        made.withdraw("both")
        assert granted(made) == "s"


def turns_on(made, running, count, *more):
    """As `turns`, where one runs already and others begin to have work."""
    order = ""
    granted(made, *more)
    while len(order) < count:
        order += running
        made.release(running)
        running = granted(made, running)
        assert len(running) == 1
    return order


class TestWaits:
    def test_lacks(self):
        """It tells who holds what an instance waits for, and how much of that they may keep."""
        made = limiter(("R", 5), ("S", 1), a={R: 2}, b={R: 1, S: 1}, c={R: 4, S: 1})
        granted(made, "a")
        granted(made, "a", "b")
        granted(made, "c")
        assert made.lacks("c") == [Lack(R, [("a", 4), ("b", 1)], 1), Lack(S, [("b", 1)], 0)]
        assert made.lacks("a") == []

    def test_before(self):
        """It tells who reserves what an instance needs; whoever is urgent does not wait for that."""
        made = limiter(("R", 2), a={R: 1}, large={R: 2}, b={R: 1})
        granted(made, "a", "large", "b")
        assert (made.before("b"), made.before("large"), made.before("a")) == (["large"], [], [])
        assert made.lacks("b") == []
        made.request("b", urgent=True)
        assert made.before("b") == []
        assert granted(made) == "b"


NAMES = "abcdef"
NEEDS = st.dictionaries(st.sampled_from([R, S, Resource("Q", 1)]), st.integers(1, 3), min_size=1)


class Limiting(RuleBasedStateMachine):
    """Any steps of any instances, against an oracle that knows nothing but what each instance holds and waits for."""

    def __init__(self):
        super().__init__()
        self.needs = {}
        self.held = Counter()
        self.waiting = {}
        self.number = 0

    @initialize(limit=st.one_of(st.none(), st.integers(3, 5)))
    def begin(self, limit):
        self.limit = limit
        limits = [] if limit is None else [ResourceLimit(name, limit) for name in "RSQ"]
        self.made = RateLimiter(limits)

    def limit_of(self, resource):
        if self.limit is not None:
            return self.limit
        return max((needs.get(resource, 0) for needs in self.needs.values()), default=0)

    def free(self, resource):
        used = sum(self.needs[key].get(resource, 0) * held for key, held in self.held.items())
        return self.limit_of(resource) - used

    def fits(self, key):
        return all(amount <= self.free(resource) for resource, amount in self.needs[key].items())

    @rule(key=st.sampled_from(NAMES), needs=NEEDS, priority=st.integers(0, 3))
    def add(self, key, needs, priority):
        if key not in self.needs:
            self.made.add(key, needs, priority)
            self.needs[key] = needs

    @precondition(lambda self: self.needs)
    @rule(data=st.data(), urgent=st.booleans())
    def request(self, data, urgent):
        key = data.draw(st.sampled_from(sorted(self.needs)))
        self.made.request(key, urgent=urgent)
        self.waiting[key] = urgent

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.made.withdraw(key)
        del self.waiting[key]

    @precondition(lambda self: +self.held)
    @rule(data=st.data(), used=st.booleans())
    def release(self, data, used):
        key = data.draw(st.sampled_from(sorted(+self.held)))
        (self.made.release if used else self.made.refuse)(key)
        self.held[key] -= 1

    @precondition(lambda self: self.needs)
    @rule(data=st.data())
    def remove(self, data):
        key = data.draw(st.sampled_from(sorted(self.needs)))
        self.made.remove(key)
        del self.needs[key]
        self.held.pop(key, None)
        self.waiting.pop(key, None)

    @rule()
    def grant(self):
        """What is granted fits; and nothing is granted only if nobody could be, but for the reservations of others."""
        key = self.made.grant()
        if key is not None:
            assert key in self.waiting
            assert self.fits(key)
            self.held[key] += 1
            del self.waiting[key]
            return
        for each, urgent in self.waiting.items():
            reserved = {resource for other in self.made.before(each) for resource in self.needs[other]}
            assert not self.fits(each) or (not urgent and not reserved.isdisjoint(self.needs[each]))

    @invariant()
    def somebody_can(self):
        """If nobody runs, whoever waits is granted something: nothing is lost, and nobody waits for those that wait."""
        if self.waiting and not +self.held:
            key = self.made.grant()
            assert key is not None
            assert self.fits(key)
            self.held[key] += 1
            del self.waiting[key]

    @invariant()
    def counts(self):
        """It holds what the oracle holds."""
        expected = f"[{len(self.needs)} instances, {len(self.waiting)} waiting, {sum(self.held.values())} granted]"
        assert repr(self.made) == f"<RateLimiter {expected}>"


TestLimiting = Limiting.TestCase


@given(st.lists(st.tuples(NEEDS, st.integers(1, 4)), min_size=2, max_size=6), st.integers(3, 6))
def test_nobody_starves(instances, limit):
    """While all always have work, each is granted something within a bounded number of executions."""
    made = RateLimiter([ResourceLimit(name, limit) for name in "RSQ"])
    keys = NAMES[: len(instances)]
    for key, (needs, priority) in zip(keys, instances, strict=True):
        made.add(key, needs, priority)
    order = turns(made, 60 * len(keys), *keys)
    last = dict.fromkeys(keys, 0)
    for index, key in enumerate(order):
        last[key] = index
    bound = 4 * 4 * len(keys) + len(keys)
    assert all(len(order) - index <= bound for index in last.values())


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_order_is_that_of_executions_times_priority(priorities):
    """Of those that share one resource and always have work, the one with the smallest product goes first, as in
    Triton; of equal ones the one that waits longest.
    """
    keys = NAMES[: len(priorities)]
    made = limiter(**{key: ({R: 1}, priority) for key, priority in zip(keys, priorities, strict=True)})
    executions, waiting, expected = Counter(), list(keys), ""
    for _ in range(60):
        key = min(waiting, key=lambda each: executions[each] * priorities[keys.index(each)])
        waiting.remove(key)
        executions[key] += 1
        waiting.append(key)
        expected += key
    assert turns(made, 60, *keys) == expected
