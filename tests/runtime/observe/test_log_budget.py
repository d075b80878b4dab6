# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How much a model may log: at once, on average, and after it logged too much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.observe.log_budget import LOG_BURST_BYTES, LOG_BYTES_PER_S, SILENCE_S, LogBudget


@pytest.fixture
def spent():
    """A budget that is spent at 100 s."""
    budget = LogBudget(100.0)
    assert budget.spend(LOG_BURST_BYTES, 100.0)
    return budget


def test_burst():
    """A burst passes whole, and what follows at once does not."""
    budget = LogBudget(5.0)
    for _ in range(LOG_BURST_BYTES // 1024):
        assert budget.spend(1024, 5.0)
    assert not budget.spend(1, 5.0)
    assert budget.take_dropped() == 1


def test_last_record_passes_whole():
    """A record that is larger than what is left is not cut; later ones wait longer for that."""
    budget = LogBudget(0.0)
    assert budget.spend(LOG_BURST_BYTES - 1, 0.0)
    assert budget.spend(LOG_BYTES_PER_S, 0.0)
    assert budget.is_spent(1.9)
    assert not budget.is_spent(2.0)


def test_silence(spent):
    """A model that logged too much is silenced for a while, and not for each line anew."""
    assert spent.is_spent(100.0)
    assert spent.is_spent(100.0 + 0.9 * SILENCE_S)
    assert not spent.is_spent(100.0 + SILENCE_S)
    assert spent.spend(1, 100.0 + SILENCE_S)
    assert spent.spend(1, 100.0 + SILENCE_S)


def test_dropped(spent):
    """All that is dropped is counted, and told once."""
    assert not spent.spend(7, 100.0)
    spent.drop(10)
    assert spent.take_dropped() == 17
    assert spent.take_dropped() == 0


def test_rest_is_not_saved_beyond_a_burst(spent):
    """After a long time a burst is possible again, and no more."""
    assert spent.spend(LOG_BURST_BYTES, 1e6)
    assert not spent.spend(1, 1e6)


@given(st.lists(st.tuples(st.integers(0, 65536), st.floats(0, 2)), max_size=200))
def test_average(steps):
    """For all records and times, no more is logged than the burst, the rate, and one record."""
    budget = LogBudget(0.0)
    now_s, logged, dropped = 0.0, 0, 0
    for size, pause_s in steps:
        now_s += pause_s
        if budget.spend(size, now_s):
            logged += size
        else:
            dropped += size
    assert logged <= LOG_BURST_BYTES + now_s * LOG_BYTES_PER_S + 65536
    assert budget.take_dropped() == dropped
