# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Summaries: their quantiles compared with exact ones, and their window."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe.summaries import SLICES, Latencies, Summary, cell_of, value_of

# A day, in microseconds.
VALUES = st.integers(0, 86_400_000_000)


def summary_of(*values_us):
    made = Summary()
    for value in values_us:
        made.observe(value * 1000)
    return made


@given(VALUES)
def test_a_cell_has_its_values(value):
    """A cell's value is at most 1 % off; cells are in order, and none is left out."""
    assert abs(value_of(cell_of(value)) - value) <= value / 100
    assert cell_of(value + 1) - cell_of(value) in (0, 1)


@given(st.lists(VALUES, min_size=1), st.lists(st.floats(0, 1), min_size=1))
def test_quantiles(values, ranks):
    """A quantile is the value of exactly that rank, give or take 1 %."""
    ordered = sorted(values)
    for rank, found in zip(ranks, summary_of(*values).quantiles(ranks), strict=True):
        exact = ordered[max(0, math.ceil(rank * len(ordered)) - 1)]
        assert abs(found - exact) <= exact / 100


def test_small_values_are_exact():
    """Below 128 microseconds nothing is rounded but to microseconds."""
    summary = summary_of(*range(1, 101))
    assert summary.quantiles([0.5, 0.9, 0.99, 1]) == [50, 90, 99, 100]
    assert (summary.count, summary.sum_us) == (100, 5050)


def test_what_is_below_zero():
    """Two clocks may disagree; nothing lasts for less than no time."""
    summary = Summary()
    summary.observe(-5000)
    assert (summary.count, summary.sum_us, summary.quantiles([0.5])) == (1, 0, [0])


def test_without_values():
    """There is no quantile of nothing."""
    assert all(map(math.isnan, Summary().quantiles([0, 0.5, 1])))


@pytest.mark.parametrize(("turns", "is_known"), [(0, True), (SLICES - 1, True), (SLICES, False)])
def test_window(turns, is_known):
    """A value counts for some turns in quantiles, and always in count and sum."""
    summary = summary_of(7)
    for _ in range(turns):
        summary.turn()
    assert (summary.quantiles([0.5]) == [7]) is is_known
    assert (summary.count, summary.sum_us) == (1, 7)


def test_values_of_several_turns():
    """Quantiles are those of all that counts."""
    summary = summary_of(1, 2)
    summary.turn()
    summary.observe(3_000)
    assert summary.quantiles([0, 0.5, 1]) == [1, 2, 3]


def test_lines():
    """Prometheus reads a summary with its labels and its quantiles."""
    page = "# TYPE s summary\n" + summary_of(10, 20).lines("s", 'a="b"', [0.5, 0.999])
    (family,) = text_string_to_metric_families(page)
    assert family.type == "summary"
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("s_count", {"a": "b"}, 2),
        ("s_sum", {"a": "b"}, 30),
        ("s", {"a": "b", "quantile": "0.5"}, 10),
        ("s", {"a": "b", "quantile": "0.999"}, 20),
    ]


def test_latencies_turn_together():
    """All summaries of a model forget at the same time."""
    latencies = Latencies()
    latencies.observe(1_000, 2_000, 3_000, 4_000, 5_000)
    summaries = (latencies.request, latencies.queue, latencies.input, latencies.infer, latencies.output)
    assert [summary.quantiles([1]) for summary in summaries] == [[1], [2], [3], [4], [5]]
    for _ in range(SLICES):
        latencies.turn()
    assert all(math.isnan(summary.quantiles([1])[0]) for summary in summaries)
