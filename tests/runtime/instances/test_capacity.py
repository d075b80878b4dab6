# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How many batches may be with an executor: by how long its batches take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.instances.capacity import AHEAD_NS_MAX, CAPACITY_MIN, AdaptiveCapacity


@pytest.fixture
def capacity():
    return AdaptiveCapacity(8, 1, False)


def test_at_first(capacity):
    """Before anything is known of its batches, one runs and one waits."""
    assert capacity.total == CAPACITY_MIN


def test_short_batches(capacity):
    """The shorter they are, the more of them, up to the most there may be."""
    capacity.observe_sum(100, 100 * (AHEAD_NS_MAX // 5))
    assert capacity.total == 5
    for _ in range(100):
        capacity.observe(0)
    assert capacity.total == 8


def test_long_batches(capacity):
    """However long they are, one may wait."""
    capacity.observe(1 << 60)
    assert capacity.total == CAPACITY_MIN


def test_average(capacity):
    """The latest batch counts for an eighth, and so does a sum of few batches."""
    capacity.observe(0)
    assert capacity.average_ns == AHEAD_NS_MAX * 7 // 8
    capacity.observe_sum(2, 2 * AHEAD_NS_MAX)
    assert capacity.average_ns == AHEAD_NS_MAX * 57 // 64
    capacity.observe_sum(8, 80)
    assert capacity.average_ns == 10


@pytest.mark.parametrize(("threads", "is_batched", "total"), [(3, False, 3), (3, True, 3), (1, True, 1)])
def test_fixed(threads, is_batched, total):
    """Threads take a batch each; where requests are batched, nothing waits behind a batch."""
    capacity = AdaptiveCapacity(8, threads, is_batched)
    assert capacity.total == total
    capacity.observe_sum(100, 100)
    capacity.expect_calls()
    assert (capacity.total, capacity.average_ns) == (total, 1)


def test_calls(capacity):
    """No batch may wait behind a batch that waits for another model."""
    capacity.observe_sum(100, 100)
    capacity.expect_calls()
    capacity.observe(1)
    assert (capacity.total, capacity.makes_calls) == (1, True)


@given(st.lists(st.integers(0, 1 << 40)))
def test_whatever_the_durations(durations):
    """There is room for one batch behind the one that runs, and never for more than there may be."""
    capacity = AdaptiveCapacity(8, 1, False)
    for duration_ns in durations:
        capacity.observe(duration_ns)
        assert CAPACITY_MIN <= capacity.total <= 8
        assert capacity.total == CAPACITY_MIN or capacity.total * capacity.average_ns <= AHEAD_NS_MAX


@pytest.mark.parametrize("calls", [False, True])
def test_pause(capacity, calls):
    """There is no room in a pause, whatever ends meanwhile. What is learnt then holds after it."""
    capacity.observe_sum(100, 100)
    capacity.pause()
    assert capacity.total == 0
    capacity.observe(0)
    if calls:
        capacity.expect_calls()
    assert capacity.total == 0
    capacity.resume()
    assert capacity.total == (1 if calls else 8)
