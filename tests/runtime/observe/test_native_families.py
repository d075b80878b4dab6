# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of native backends on a page with others: every name is that of one family."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe.metrics import Metrics

COUNTER, GAUGE, HISTOGRAM = range(3)
LEFT_OUT = "# metric family '{}' of a native backend is left out: another has samples of its names\n"


@pytest.fixture
def page():
    """The page of native families and of metrics that models in Python have, as (name, kind, labels or None)."""

    def page(native, *others):
        metrics = Metrics(native=lambda: native)
        for name, kind, labels in others:
            family = metrics.family("owner", name, "Of a model.", kind)
            if labels is not None:
                metrics.metric("owner", family, labels, [1.0] if kind == "histogram" else None)
        text = metrics.render().decode()
        families = [family.name for family in text_string_to_metric_families(text)]
        assert len(set(families)) == len(families)
        return text

    return page


def test_alone(page):
    """Each kind, and labels that need quotes."""
    native = [
        ("a", COUNTER, "Of a\nbackend.", [({}, 1.5)]),
        ("b", GAUGE, "", [({"y": '"', "x": "1"}, float("inf"))]),
        ("c", HISTOGRAM, "", [({}, ([0.5, 2.0], [1, 3], 4.25, 4))]),
        ("none", GAUGE, "", []),
    ]
    assert page(native) == (
        "# HELP a Of a\\nbackend.\n# TYPE a counter\na 1.5\n"
        '# TYPE b gauge\nb{x="1",y="\\""} +Inf\n'
        '# TYPE c histogram\nc_bucket{le="0.5"} 1\nc_bucket{le="2"} 3\nc_bucket{le="+Inf"} 4\nc_sum 4.25\nc_count 4\n'
    )


def test_gauges():
    """The gauges of wanted families, with labels as on the page; those of models in Python come first."""
    native = [
        ("a", GAUGE, "", [({"y": "1", "x": '"'}, 2.5)]),
        ("b", COUNTER, "", [({}, 1.0)]),
        ("c", GAUGE, "", [({}, 3.0)]),
        ("wanted_d", HISTOGRAM, "", [({}, ([0.5], [1], 1.0, 1))]),
    ]
    metrics = Metrics(native=lambda: native)
    for name, kind in (("a", "gauge"), ("e", "counter"), ("f", "gauge")):
        family = metrics.family("owner", name, "", kind)
        metrics.metric("owner", family, {"m": "1"}, None)
    assert list(metrics.gauges(lambda name: name != "c")) == [
        ("a", 'm="1"', 0.0),
        ("f", 'm="1"', 0.0),
        ("a", 'x="\\"",y="1"', 2.5),
    ]


def test_the_same_family(page):
    """Metrics of one name and kind are one family's; those with the same labels are there once."""
    native = [("a", COUNTER, "Native.", [({"m": "1"}, 1.0), ({"m": "2"}, 2.0)]), ("b", GAUGE, "", [({}, 1.0)])]
    assert page(native, ("a", "counter", {"m": "1"})) == (
        '# HELP a Of a model.\n# TYPE a counter\na{m="1"} 0\na{m="2"} 2\n# TYPE b gauge\nb 1\n'
    )


def test_the_same_family_without_metrics(page):
    """A family that has no metric yet has no lines yet."""
    assert page([("a", GAUGE, "", [({}, 1.0)])], ("a", "gauge", None)) == "# TYPE a gauge\na 1\n"


@pytest.mark.parametrize(
    ("name", "kind", "other"),
    [
        ("a", GAUGE, ("a", "counter", {})),
        ("a_sum", GAUGE, ("a", "histogram", {})),
        ("a", HISTOGRAM, ("a_count", "counter", {})),
        ("nv_inference_count", COUNTER, ("a", "counter", {})),
    ],
)
def test_names_that_are_taken(page, name, kind, other):
    """Where a name would be that of two families, the page says why one of them is not there."""
    value = ([], [], 0.0, 0) if kind == HISTOGRAM else 1.0
    alone = page([], other)
    assert page([(name, kind, "", [({}, value)])], other) == alone + LEFT_OUT.format(name)
