# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The metric settings of a configuration."""

import pytest

from pyruntime.runtime.config.metrics import BUCKETS_MAX, first_response_bounds_ms, ignored_metrics, metric_tags
from pyruntime.runtime.config.parse import parse_model_config

FAMILY = "metric_identifier { family: 'nv_inference_first_response_histogram_ms' }"


def config(text):
    return parse_model_config(f"name: 'm' {text}", "config.pbtxt")


def buckets(text):
    return config(f"model_metrics {{ metric_control {{ {FAMILY} histogram_options {{ buckets: {text} }} }} }}")


def test_nothing():
    """Most models say nothing."""
    assert metric_tags(config("")) == {}
    assert first_response_bounds_ms(config("")) is None
    assert ignored_metrics(config("")) == []


@pytest.mark.parametrize("key", ["team", "Team2", "2nd", "le", "model"])
def test_tags(key):
    """Every text that can follow the "_" of a label is a tag."""
    found = config(f"metric_tags {{ key: '{key}' value: 'a b' }}")
    assert metric_tags(found) == {key: "a b"}
    assert ignored_metrics(found) == []


@pytest.mark.parametrize("key", ["", "a-b", "a b", "_a", "ä"])
def test_tags_that_are_none(key):
    """A label that would make the page unreadable is left out, and reported."""
    found = config(f"metric_tags {{ key: '{key}' value: 'c' }}")
    assert metric_tags(found) == {}
    assert ignored_metrics(found) == [f"the metric tag {key!r}, which cannot be a label and is left out"]


def test_buckets():
    """A model may have its own."""
    assert first_response_bounds_ms(buckets("[0.5, 10, 100]")) == (0.5, 10, 100)
    assert ignored_metrics(buckets("[0.5, 10, 100]")) == []


@pytest.mark.parametrize("text", ["[2, 1]", "[1, 1]", "[]", "[inf]", "[nan]", str([*range(BUCKETS_MAX + 1)])])
def test_buckets_that_are_none(text):
    """Others cannot be buckets, and the usual ones take their place."""
    assert first_response_bounds_ms(buckets(text)) is None
    (ignored,) = ignored_metrics(buckets(text))
    assert ignored.startswith("buckets of nv_inference_first_response_histogram_ms that do not grow or are too many")


def test_other_families():
    """Only one family has settings."""
    found = config("model_metrics { metric_control { metric_identifier { family: 'other' } } }")
    assert first_response_bounds_ms(found) is None
    assert ignored_metrics(found) == [
        "settings of the metric family 'other', and only nv_inference_first_response_histogram_ms has any"
    ]
