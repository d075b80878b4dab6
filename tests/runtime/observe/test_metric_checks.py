# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Valid families and metrics, and the messages for invalid ones."""

import math

import pytest

from pyruntime.runtime.observe.metric_checks import (
    BUCKETS_MAX,
    DESCRIPTION_CHARS_MAX,
    LABELS_BYTES_MAX,
    LABELS_MAX,
    NAME_CHARS_MAX,
    check_family,
    checked_buckets,
    checked_labels,
)

from .refusals import refusal_of

SORTED = "Bucket Boundaries must be strictly sorted"


@pytest.mark.parametrize("name", ["a", "vllm:num_requests", "_a", "Z9", "a" * NAME_CHARS_MAX])
def test_good_names(name):
    """Prometheus' names, colons included."""
    check_family(name, "About it.", "gauge")


@pytest.mark.parametrize("name", ["", "9a", "a b", "a-b", "a\n", "ä", "a{", "a" * (NAME_CHARS_MAX + 1), None, 3, b"a"])
def test_bad_names(name):
    """Anything else would make the page unreadable."""
    assert "the name of a metric family" in refusal_of(check_family, name, "About it.", "gauge")


@pytest.mark.parametrize("description", [None, 3, "a" * (DESCRIPTION_CHARS_MAX + 1), "\ud800"])
def test_bad_descriptions(description):
    """It is a text that can be encoded, of limited length."""
    assert "the description of metric family 'm'" in refusal_of(check_family, "m", description, "gauge")


@pytest.mark.parametrize("kind", ["summary", "", None, 0, ["gauge"]])
def test_bad_kinds(kind):
    """There are three."""
    message = f"the kind of metric family 'm' must be one of counter, gauge, histogram, not {kind!r}"
    assert refusal_of(check_family, "m", "", kind) == message


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "Labels must be a dictionary."),
        ([("a", "b")], "Labels must be a dictionary."),
        ({1: "b"}, "the name of a label must be a text, not int"),
        ({"a": 1}, "label 'a' must be a text, not int"),
        ({"a": "\udc80"}, "label 'a' has characters that cannot be encoded"),
        ({"a" * (NAME_CHARS_MAX + 1): ""}, "the name of a label has 256 characters at most, not 257"),
        ({f"a{n}": "" for n in range(LABELS_MAX + 1)}, "a metric has 64 labels at most, not 65"),
        ({"a": "b" * (LABELS_BYTES_MAX - 3)}, "the labels of a metric have 4096 bytes at most, not 4097"),
        ({"a": "ä" * LABELS_BYTES_MAX}, "the labels of a metric have 4096 bytes at most, not 8196"),
    ],
)
def test_bad_labels(labels, message):
    """They are a dictionary of names and texts, of limited length altogether."""
    assert refusal_of(checked_labels, labels) == message


@pytest.mark.parametrize("name", ["", "9a", "a:b", "a b", "__name__", "le", "a\n", "ä"])
def test_bad_label_names(name):
    """Prometheus keeps some for itself, and a bucket has one already."""
    assert refusal_of(checked_labels, {name: ""}).endswith(f"unlike {name!r}")


def test_labels_at_the_limit():
    """The limit itself is no error."""
    assert len(checked_labels({"a": "b" * (LABELS_BYTES_MAX - 4)})) == LABELS_BYTES_MAX
    assert checked_labels({f"a{n}": "" for n in range(LABELS_MAX)}).count(",") == LABELS_MAX - 1


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ((1.0, 2.0), "Buckets must be a list."),
        ("12", "Buckets must be a list."),
        (["1"], "the bounds of buckets must be numbers"),
        ([True], "the bounds of buckets must be numbers"),
        ([None], "the bounds of buckets must be numbers"),
        ([10**400], "a number is too large for a metric"),
        ([2.0, 1.0], SORTED),
        ([1.0, 1], SORTED),
        ([math.nan], SORTED),
        ([-math.inf, 1.0], SORTED),
        ([math.inf, math.inf], SORTED),
        ([float(n) for n in range(BUCKETS_MAX + 1)], "a histogram has 256 buckets at most, not 257"),
    ],
)
def test_bad_buckets(buckets, message):
    """They are numbers that grow, and not too many."""
    assert refusal_of(checked_buckets, buckets) == message


def test_good_buckets():
    """Whole numbers will do, and an infinite one at the end is there anyway."""
    assert checked_buckets([-1, 0.5, math.inf]) == [-1.0, 0.5]
    assert checked_buckets([]) == []
    assert checked_buckets(None) is None
