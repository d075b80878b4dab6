# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The two strategies: which of the requests that sequences offer are executed together."""

from dataclasses import dataclass

import pytest

from pyruntime.runtime.config.spec import ControlSpec, SequenceBatchingSpec
from pyruntime.runtime.scheduling.sequence_batches import Direct, Oldest, strategy_of


@dataclass(eq=False)
class Offered:
    arrived_s: float = 0.0
    signature: str = ""
    rows: int = 1


def spec(oldest=False, slots=4, delay_s=0.0, utilization=0.0, preferred=(), ready=False):
    controls = (ControlSpec("R", "READY", "BOOL"),) if ready else (ControlSpec("S", "START", "BOOL"),)
    return SequenceBatchingSpec(oldest, slots, 10**6, int(delay_s * 1e6), utilization, preferred, controls, (), False)


def direct(*offers, **how):
    """A strategy with these offers, by slot."""
    made = Direct(spec(**how))
    for slot, offered in offers:
        made.offer(offered, slot)
    return made


class TestDirect:
    def test_nothing_offered(self):
        """There is no batch then, and nothing to wait for."""
        assert direct().take(0) is None
        assert direct().wake_at() is None

    def test_in_order_of_slots(self):
        """A batch has all offered requests, by slot, at once."""
        first, second = Offered(), Offered()
        made = direct((3, first), (1, second))
        assert made.take(0) == [second, first]
        assert made.take(0) is None

    def test_padding(self):
        """For a model that reads READY each slot has its row, as far as the last one with a request."""
        first, second = Offered(), Offered()
        made = direct((2, first), (1, second), ready=True)
        assert made.take(0) == [None, second, first]
        assert made.take(0) is None

    def test_other_shapes_wait(self):
        """A batch has requests like the oldest one; a row of another one is padded."""
        old, new, other = Offered(1, "a"), Offered(3, "a"), Offered(2, "b")
        offers = ((0, new), (1, other), (2, old))
        made = direct(*offers)
        assert (made.take(9), made.take(9)) == ([new, old], [other])
        made = direct(*offers, ready=True)
        assert (made.take(9), made.take(9), made.take(9)) == ([new, None, old], [None, other], None)

    def test_minimum_of_slots(self):
        """A batch is due once enough slots have a request, or when the oldest one has waited for long enough."""
        first, second = Offered(1.0), Offered(1.5)
        made = direct((0, first), delay_s=2, utilization=0.5)
        assert made.take(2.9) is None
        assert made.wake_at() == 3.0
        made.offer(second, 1)
        assert made.wake_at() == 3.0
        assert made.take(1.5) == [first, second]
        made.offer(second, 1)
        assert (made.take(3.4), made.take(3.5)) == (None, [second])

    @pytest.mark.parametrize("how", [{"delay_s": 2}, {"utilization": 1.0}])
    def test_no_minimum(self, how):
        """Without a minimum, or without a delay, a batch is due at once."""
        offered = Offered(1.0)
        made = direct((0, offered), **how)
        assert made.wake_at() == 1.0
        assert made.take(1.0) == [offered]

    def test_withdraw(self):
        """A withdrawn request is not executed; withdrawing it again changes nothing."""
        first, second = Offered(), Offered()
        made = direct((0, first), (1, second))
        made.withdraw(first, 0)
        made.withdraw(first, 0)
        assert made.take(0) == [second]


class TestOldest:
    def test_in_order_of_offers(self):
        """Requests are batched in the order of their offers, for any slots."""
        made = Oldest(4, spec(oldest=True))
        jobs = [Offered() for _ in range(5)]
        for slot, job in enumerate(jobs):
            made.offer(job, 9 - slot)
        assert (made.take(0), made.take(0), made.take(0)) == (jobs[:4], jobs[4:], None)

    def test_preferred_sizes(self):
        """A batch of a preferred size is due at once, and another one after the delay."""
        made = Oldest(4, spec(oldest=True, preferred=(2,), delay_s=2))
        jobs = [Offered(1.0) for _ in range(3)]
        for job in jobs:
            made.offer(job, 0)
        assert (made.take(1.0), made.take(1.0)) == (jobs[:2], None)
        assert made.wake_at() == 3.0
        assert made.take(3.0) == jobs[2:]
        assert made.wake_at() is None

    def test_withdraw(self):
        """A withdrawn request is not executed; withdrawing it again changes nothing."""
        made = Oldest(4, spec(oldest=True))
        first, second = Offered(), Offered()
        made.offer(first, 0)
        made.offer(second, 1)
        made.withdraw(first, 0)
        made.withdraw(first, 0)
        assert made.take(0) == [second]

    def test_without_batching(self):
        """A model that does not batch executes one request at a time."""
        made = Oldest(0, spec(oldest=True))
        jobs = [Offered(), Offered()]
        for slot, job in enumerate(jobs):
            made.offer(job, slot)
        assert (made.take(0), made.take(0)) == ([jobs[0]], [jobs[1]])


def test_strategy_of():
    """The strategy that the configuration names."""
    assert type(strategy_of(4, spec())) is Direct
    assert type(strategy_of(4, spec(oldest=True))) is Oldest
