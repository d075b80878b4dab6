# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Families and metrics: their counts, their text, and their refusals with Triton's messages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe.families import Family
from pyruntime.runtime.observe.metric_checks import KINDS, checked_labels

from .refusals import refusal_of

MONOTONIC = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def family_of(kind, bounds=None, labels=""):
    """A family with one metric, and that metric."""
    family = Family("m", "About it.", kind)
    metric = family.metrics[labels] = family.new_metric(labels, bounds)
    return family, metric


class TestCounter:
    def test_grows(self):
        """It begins at 0, and everything is added to it."""
        family, counter = family_of("counter", labels='a="b"')
        assert counter.value() == 0
        counter.increment(2.0)
        counter.increment(0.5)
        assert counter.value() == 2.5
        assert family.lines() == '# HELP m About it.\n# TYPE m counter\nm{a="b"} 2.5\n'

    def test_does_nothing_else(self):
        """It never goes down, is never set, and stays a number."""
        _, counter = family_of("counter")
        counter.increment(1.0)
        assert refusal_of(counter.increment, -1.0) == MONOTONIC
        assert refusal_of(counter.set, 1.0) == "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"
        assert refusal_of(counter.observe, 1.0) == "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"
        for amount, text in ((math.nan, "NaN"), (math.inf, "+Inf")):
            message = f"a counter can only be incremented by a finite number, not {text}"
            assert refusal_of(counter.increment, amount) == message
        assert counter.value() == 1


class TestGauge:
    def test_goes_up_and_down(self):
        """It can be added to and set."""
        family, gauge = family_of("gauge")
        gauge.set(2.0)
        gauge.increment(-3.5)
        assert gauge.value() == -1.5
        assert family.lines() == "# HELP m About it.\n# TYPE m gauge\nm -1.5\n"

    @pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")])
    def test_may_be_no_number(self, value, text):
        """A loss that is not a number is worth seeing, and the next one may be one."""
        family, gauge = family_of("gauge")
        gauge.set(value)
        assert family.lines().endswith(f"m {text}\n")
        gauge.set(1.0)
        assert gauge.value() == 1

    def test_does_not_observe(self):
        """That is for histograms."""
        _, gauge = family_of("gauge")
        assert refusal_of(gauge.observe, 1.0) == "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"


class TestHistogram:
    def test_counts_by_buckets(self):
        """A value on a bound is in its bucket, one above all bounds in the last one, which has none."""
        family, histogram = family_of("histogram", [0.1, 1.0, 5.0], labels='a="b"')
        for value in (0.1, 0.5, 1.0, 2.0, 100.0, -1.0):
            histogram.observe(value)
        assert family.lines() == (
            "# HELP m About it.\n"
            "# TYPE m histogram\n"
            'm_bucket{a="b",le="0.1"} 2\n'
            'm_bucket{a="b",le="1"} 4\n'
            'm_bucket{a="b",le="5"} 5\n'
            'm_bucket{a="b",le="+Inf"} 6\n'
            'm_sum{a="b"} 102.6\n'
            'm_count{a="b"} 6\n'
        )

    def test_without_labels_or_bounds(self):
        """Without bounds there is one bucket, for everything."""
        family, histogram = family_of("histogram", [])
        histogram.observe(2.0)
        assert family.lines().splitlines()[2:] == ['m_bucket{le="+Inf"} 1', "m_sum 2", "m_count 1"]

    def test_does_nothing_else(self):
        """It has no one value, and counts finite numbers only: of another one its sum would never recover."""
        _, histogram = family_of("histogram", [1.0])
        assert refusal_of(histogram.increment, 1.0) == "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"
        assert refusal_of(histogram.set, 1.0) == "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"
        assert refusal_of(histogram.value) == "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"
        assert refusal_of(histogram.observe, math.nan) == "a histogram can only observe a finite number, not NaN"

    def test_adds_what_others_observed(self):
        """Counts by bucket and their sum are added; another number of buckets, or a negative count, changes nothing."""
        family, histogram = family_of("histogram", [1.0])
        histogram.observe(0.5)
        histogram.add([2, 1], 7.5)
        for counts, total in (([1], 1.0), ([1, -1], 1.0), ([1, 1], math.inf)):
            assert refusal_of(histogram.add, counts, total) != ""
        assert family.lines().splitlines()[2:] == [
            'm_bucket{le="1"} 3',
            'm_bucket{le="+Inf"} 4',
            "m_sum 8",
            "m_count 4",
        ]

    @given(st.lists(FINITE, unique=True, max_size=8).map(sorted), st.lists(FINITE, max_size=20))
    def test_reads_back(self, bounds, values):
        """Prometheus' parser finds, for each bound, as many values as there are not above it."""
        family, histogram = family_of("histogram", bounds)
        for value in values:
            histogram.observe(value)
        (parsed,) = text_string_to_metric_families(family.lines())
        assert (parsed.name, parsed.type, parsed.documentation) == ("m", "histogram", "About it.")
        buckets = [(float(sample.labels["le"]), sample.value) for sample in parsed.samples if sample.name == "m_bucket"]
        assert buckets == [(bound, sum(value <= bound for value in values)) for bound in [*bounds, math.inf]]
        assert [sample.value for sample in parsed.samples if sample.name == "m_count"] == [len(values)]


class TestFamily:
    @pytest.mark.parametrize("kind", KINDS)
    def test_without_metrics_is_nothing(self, kind):
        """A family without metrics has no lines."""
        assert Family("m", "About it.", kind).lines() == ""

    def test_buckets_are_for_histograms(self):
        """Only histograms have buckets, and they need them."""
        assert refusal_of(family_of, "counter", [1.0]) == "Unexpected buckets found."
        assert refusal_of(family_of, "gauge", []) == "Unexpected buckets found."
        assert refusal_of(family_of, "histogram", None) == "Missing required buckets."

    @given(
        st.sampled_from(["counter", "gauge"]) | st.lists(FINITE, unique=True, max_size=8).map(sorted),
        st.dictionaries(st.from_regex("[a-z]{1,9}", fullmatch=True).filter(lambda name: name != "le"), st.text()),
        FINITE.filter(lambda value: value >= 0),
    )
    def test_size_is_an_upper_bound(self, kind, labels, value):
        """No page is longer than its families and metrics said they could become."""
        bounds = kind if isinstance(kind, list) else None
        family, metric = family_of("histogram" if bounds is not None else kind, bounds, checked_labels(labels))
        (metric.increment if bounds is None else metric.observe)(value)
        assert len(family.lines().encode()) <= family.size + metric.size
