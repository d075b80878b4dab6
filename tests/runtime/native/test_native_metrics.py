# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics that native code makes: the rules, in Triton's words, and what Python sees of them."""

import ctypes
import math
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int, c_void_p
from itertools import count

import pytest

_NUMBERS = count()


@pytest.fixture
def name():
    """A name that no other family has."""
    return f"native_{next(_NUMBERS)}".encode()


@pytest.fixture
def seen():
    """A function for a family as Python sees it, by its name; None if there is none."""
    from pyruntime.runtime.native import _triton

    return lambda name: next((family for family in _triton.metrics() if family[0] == name.decode()), None)


@pytest.fixture
def deleted(interface):
    """Deletes metrics, and then the families that they are of."""

    def delete(*metrics, families=()):
        for metric in metrics:
            assert interface.call("MetricDelete", metric) is None
        for family in families:
            assert interface.call("MetricFamilyDelete", family) is None

    return delete


def invalid(interface, message):
    return interface.INVALID_ARG, message


class TestFamilies:
    def test_shared_by_name(self, interface, name, seen, deleted):
        """A family with a name that exists is the existing one, with its description."""
        first = interface.family(interface.COUNTER, name, b"the first")
        second = interface.family(interface.COUNTER, name, b"another")
        one, two = interface.metric(first), interface.metric(second)
        assert interface.measure("Increment", one, 2) is None
        assert interface.value(two) == 2
        assert seen(name) == (name.decode(), interface.COUNTER, "the first", [({}, 2.0)])
        deleted(one, two, families=[first, second])

    def test_kinds_differ(self, interface, name, deleted):
        """A family is of one kind."""
        family = interface.family(interface.COUNTER, name)
        refused = invalid(interface, "Family name already exists with different type")
        assert interface.family(interface.GAUGE, name) == refused
        deleted(families=[family])
        again = interface.family(interface.GAUGE, name)
        kind = c_int()
        assert interface.call("GetMetricFamilyKind", again, byref(kind)) is None
        assert kind.value == interface.GAUGE
        deleted(families=[again])

    @pytest.mark.parametrize("bad", [b"", b"1a", b"a b", b"a-b", "é".encode(), b"a" * 257])
    def test_name(self, interface, bad):
        """A name is one that Prometheus takes."""
        assert interface.family(interface.COUNTER, bad) == invalid(interface, "Invalid metric name")

    @pytest.mark.parametrize("kind", [-1, 3])
    def test_kind(self, interface, name, kind):
        """There are three kinds."""
        refused = invalid(interface, "Unsupported kind passed to MetricFamily constructor.")
        assert interface.family(kind, name) == refused

    def test_description(self, interface, name, seen, deleted):
        """A description may be missing, and of some length."""
        family = interface.family(interface.COUNTER, name, None)
        assert seen(name)[2] == ""
        code, message = interface.family(interface.COUNTER, name + b"_", b"d" * 4097)
        assert code == interface.INVALID_ARG
        assert message.endswith("has 4096 bytes at most, not 4097")
        deleted(families=[family])

    def test_names_of_samples(self, interface, name, deleted):
        """A histogram has samples of more names than its own, which no other family may have."""
        histogram = interface.family(interface.HISTOGRAM, name)
        code, message = interface.family(interface.COUNTER, name + b"_count")
        assert code == interface.INVALID_ARG
        assert message.endswith(f"would have samples named '{name.decode()}_count', as another family has")
        counter = interface.family(interface.COUNTER, name + b"_counts")
        deleted(families=[histogram, counter])
        counter = interface.family(interface.COUNTER, name + b"_count")
        assert interface.family(interface.HISTOGRAM, name)[0] == interface.INVALID_ARG
        deleted(families=[counter])

    def test_deleted_too_early(self, interface, name, seen, deleted):
        """A family cannot be deleted while a metric of it is there, and goes on."""
        family = interface.family(interface.COUNTER, name)
        metric = interface.metric(family)
        message = "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete."
        assert interface.call("MetricFamilyDelete", family) == (interface.INTERNAL, message)
        assert interface.measure("Increment", metric, 1) is None
        deleted(metric, families=[family])
        assert seen(name) is None

    def test_too_many(self, interface, name, deleted):
        """There is an end to families, and room again when some are gone."""
        families = [interface.family(interface.COUNTER, b"%s_%d" % (name, number)) for number in range(1000)]
        made = [family for family in families if not isinstance(family, tuple)]
        code, message = interface.family(interface.COUNTER, name)
        assert code == interface.INVALID_ARG
        assert message == "there are 1000 metric families already, and no more can be had"
        deleted(families=made)
        deleted(families=[interface.family(interface.COUNTER, name)])


class TestMetrics:
    def test_shared_by_labels(self, interface, name, seen, deleted):
        """The labels of a family's metrics identify them, in any order; a metric lasts as long as it has a handle."""
        family = interface.family(interface.GAUGE, name)
        one = interface.metric(family, (b"a", b"1"), (b"b", b"2"))
        same = interface.metric(family, (b"b", b"2"), (b"a", b"1"))
        other = interface.metric(family, (b"a", b"1"))
        for metric, value in ((one, 1), (other, 2)):
            assert interface.measure("Set", metric, value) is None
        assert interface.value(same) == 1
        assert seen(name)[3] == [({"a": "1"}, 2.0), ({"a": "1", "b": "2"}, 1.0)]
        deleted(one)
        assert len(seen(name)[3]) == 2
        deleted(same)
        assert seen(name)[3] == [({"a": "1"}, 2.0)]
        deleted(interface.metric(family, (b"a", b"1")), other)
        again = interface.metric(family, (b"a", b"1"))
        assert interface.value(again) == 0
        deleted(again, families=[family])

    def test_kind(self, interface, name, deleted):
        """A metric is of its family's kind."""
        family = interface.family(interface.GAUGE, name)
        metric, kind = interface.metric(family), c_int()
        assert interface.call("GetMetricKind", metric, byref(kind)) is None
        assert kind.value == interface.GAUGE
        deleted(metric, families=[family])

    def test_label_that_is_no_text(self, interface, name, deleted):
        """Labels are texts."""
        family = interface.family(interface.COUNTER, name)
        message = "Parameter [a] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label."
        for label in ((1, interface.INT), (True, interface.BOOL), (0.5, interface.DOUBLE), (b"1", interface.BYTES)):
            assert interface.metric(family, (b"a", *label)) == invalid(interface, message)
        deleted(families=[family])

    @pytest.mark.parametrize("label", [b"", b"1a", b"a:b", b"__a", b"le", b"a" * 257])
    def test_name_of_label(self, interface, name, deleted, label):
        """A label's name is one that Prometheus takes and does not use itself."""
        family = interface.family(interface.COUNTER, name)
        assert interface.metric(family, (label, b"1")) == invalid(interface, "Invalid label name")
        deleted(families=[family])

    def test_too_much_of_labels(self, interface, name, deleted):
        """Labels are not too many and not too long."""
        family = interface.family(interface.COUNTER, name)
        code, message = interface.metric(family, *((b"l%d" % number, b"") for number in range(65)))
        assert (code, message) == invalid(interface, "a metric has 64 labels at most, not 65")
        code, message = interface.metric(family, (b"a", b"1" * 4096))
        assert (code, message) == invalid(interface, "the labels of a metric have 4096 bytes at most, not 4097")
        deleted(families=[family])

    def test_too_many(self, interface, name, deleted):
        """There is an end to the metrics of a family."""
        family = interface.family(interface.COUNTER, name)
        metrics = [interface.metric(family, (b"n", b"%d" % number)) for number in range(2000)]
        code, message = interface.metric(family, (b"n", b"2000"))
        assert code == interface.INVALID_ARG
        assert message.endswith("has 2000 metrics, and no more can be had")
        there = interface.metric(family, (b"n", b"0"))
        deleted(*metrics, there, families=[family])

    def test_new_without_arguments(self, interface, name, deleted):
        """Counters and gauges can be made by the function that has no arguments for a kind."""
        family = interface.family(interface.COUNTER, name)
        metric = interface.make("MetricNew", family, None, ctypes.c_uint64(0))
        assert interface.value(metric) == 0
        deleted(metric, families=[family])


class TestCounters:
    def test_increment(self, interface, name, deleted):
        """A counter grows, and that is all."""
        family = interface.family(interface.COUNTER, name)
        metric = interface.metric(family)
        for amount in (0, 1, 0.5):
            assert interface.measure("Increment", metric, amount) is None
        kind = "TRITONSERVER_METRIC_KIND_COUNTER"
        message = f"{kind} can only be incremented monotonically by non-negative values."
        assert interface.measure("Increment", metric, -1) == invalid(interface, message)
        assert interface.measure("Set", metric, 1) == (interface.UNSUPPORTED, f"{kind} does not support Set")
        assert interface.measure("Observe", metric, 1) == (interface.UNSUPPORTED, f"{kind} does not support Observe")
        for amount, text in ((math.nan, "NaN"), (math.inf, "+Inf")):
            message = f"a counter can only be incremented by a finite number, not {text}"
            assert interface.measure("Increment", metric, amount) == invalid(interface, message)
        assert interface.value(metric) == 1.5
        deleted(metric, families=[family])

    def test_arguments(self, interface, name, deleted):
        """A counter takes no buckets."""
        family = interface.family(interface.COUNTER, name)
        refused = invalid(interface, "Unexpected args found in counter Metric constructor.")
        assert interface.metric(family, bounds=[1]) == refused
        deleted(families=[family])


class TestGauges:
    def test_values(self, interface, name, deleted):
        """A gauge rises and falls, and is set to anything."""
        family = interface.family(interface.GAUGE, name)
        metric = interface.metric(family)
        assert interface.measure("Increment", metric, -2.5) is None
        assert interface.value(metric) == -2.5
        for value in (7, math.inf, -math.inf):
            assert interface.measure("Set", metric, value) is None
            assert interface.value(metric) == value
        assert interface.measure("Set", metric, math.nan) is None
        assert math.isnan(interface.value(metric))
        message = "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"
        assert interface.measure("Observe", metric, 1) == (interface.UNSUPPORTED, message)
        deleted(metric, families=[family])

    def test_arguments(self, interface, name, deleted):
        """A gauge takes no buckets."""
        family = interface.family(interface.GAUGE, name)
        refused = invalid(interface, "Unexpected args found in gauge Metric constructor.")
        assert interface.metric(family, bounds=[1]) == refused
        deleted(families=[family])


class TestHistograms:
    def test_observe(self, interface, name, seen, deleted):
        """A histogram counts in buckets, up to and with their bounds; Python sees cumulative counts."""
        family = interface.family(interface.HISTOGRAM, name)
        metric = interface.metric(family, bounds=[0.5, 1, 2.5])
        for value in (0.1, 0.5, 0.6, 2.5, 2.6):
            assert interface.measure("Observe", metric, value) is None
        assert seen(name)[3] == [({}, ([0.5, 1.0, 2.5], [2, 3, 4, 5], pytest.approx(6.3), 5))]
        deleted(metric, families=[family])

    def test_other_operations(self, interface, name, deleted):
        """A histogram can only observe, and finite numbers."""
        family = interface.family(interface.HISTOGRAM, name)
        metric = interface.metric(family, bounds=[1])
        does_not = "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support"
        assert interface.measure("Increment", metric, 1) == (interface.UNSUPPORTED, f"{does_not} Increment")
        assert interface.measure("Set", metric, 1) == (interface.UNSUPPORTED, f"{does_not} Set")
        assert interface.value(metric) == (interface.UNSUPPORTED, f"{does_not} Value")
        for value, text in ((math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")):
            message = f"a histogram can only observe a finite number, not {text}"
            assert interface.measure("Observe", metric, value) == invalid(interface, message)
        deleted(metric, families=[family])

    def test_buckets_are_missing(self, interface, name, deleted):
        """A histogram has buckets."""
        family = interface.family(interface.HISTOGRAM, name)
        assert interface.metric(family) == invalid(interface, "Bucket boundaries not found in Metric args.")
        args, metric = interface.make("MetricArgsNew"), c_void_p()
        refused = interface.call("MetricNewWithArgs", byref(metric), family, None, ctypes.c_uint64(0), args)
        assert refused == invalid(interface, "Metric args not set to histogram kind.")
        assert interface.call("MetricArgsDelete", args) is None
        deleted(families=[family])

    @pytest.mark.parametrize("bounds", [[1, 1], [2, 1], [math.nan], [-math.inf, 1], [math.inf, 1]])
    def test_bounds(self, interface, name, deleted, bounds):
        """Bounds rise."""
        family = interface.family(interface.HISTOGRAM, name)
        refused = invalid(interface, "Bucket Boundaries must be strictly sorted")
        assert interface.metric(family, bounds=bounds) == refused
        deleted(families=[family])

    def test_bounds_at_the_ends(self, interface, name, seen, deleted):
        """The bucket without a bound may be named, and may be the only one; a histogram that is there keeps its own."""
        family = interface.family(interface.HISTOGRAM, name)
        metrics = [interface.metric(family, bounds=bounds) for bounds in ([1, math.inf], [], [5, 6])]
        empty = interface.metric(family, (b"a", b"1"), bounds=[])
        assert interface.measure("Observe", metrics[2], 5.5) is None
        assert seen(name)[3] == [({}, ([1.0], [0, 1], 5.5, 1)), ({"a": "1"}, ([], [0], 0.0, 0))]
        deleted(*metrics, empty, families=[family])

    def test_too_many_buckets(self, interface, name, deleted):
        """There is an end to buckets."""
        family = interface.family(interface.HISTOGRAM, name)
        refused = invalid(interface, "a histogram has 256 buckets at most, not 257")
        assert interface.metric(family, bounds=list(range(257))) == refused
        deleted(families=[family])


def test_texts_that_are_no_utf8(interface, name, seen, deleted):
    """Bytes that are not UTF-8 become a text in Python."""
    family = interface.family(interface.COUNTER, name, b"\xff")
    metric = interface.metric(family, (b"a", b"\xfe"))
    assert seen(name)[2:] == ("�", [({"a": "�"}, 0.0)])
    deleted(metric, families=[family])


def test_many_threads(interface, name, deleted):
    """Concurrent increments are all counted."""
    family = interface.family(interface.COUNTER, name)

    def count_up(_):
        metric = interface.metric(family, (b"a", b"1"))
        for _ in range(500):
            assert interface.measure("Increment", metric, 1) is None
        return metric

    with ThreadPoolExecutor(8) as threads:
        metrics = list(threads.map(count_up, range(8)))
    assert interface.value(metrics[0]) == 4000
    deleted(*metrics, families=[family])
