# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The text format: Prometheus' own parser reads back the written samples."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe.exposition import family_head, labels_text, number_text

# Names that begin with "__" are refused: Prometheus reserves them.
LABEL_NAMES = st.from_regex("([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]{0,20}|_", fullmatch=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (3.0, "3"),
        (-2.5, "-2.5"),
        (0.1, "0.1"),
        (2.0**53, "9007199254740992"),
        (2.0**54, "1.8014398509481984e+16"),
        (5e-324, "5e-324"),
        (sys.float_info.max, "1.7976931348623157e+308"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value, text):
    """Whole numbers have no fraction, and infinities and NaN have Prometheus' names."""
    assert number_text(value) == text


@given(st.floats(allow_nan=False))
def test_a_number_reads_back_as_it_was(value):
    """No digit is lost."""
    assert float(number_text(value)) == value


def test_labels_are_in_the_order_of_their_names():
    """As Triton's page has them."""
    assert labels_text({"version": "1", "model": "m", "reason": "OTHER"}) == 'model="m",reason="OTHER",version="1"'
    assert labels_text({}) == ""


def test_what_would_end_a_text_is_escaped():
    """Quotes, line ends and backslashes of a label; of a description quotes may stay."""
    assert labels_text({"a": 'x\\y"z\n'}) == r'a="x\\y\"z\n"'
    assert family_head("m", 'a\\b "c"\nd', "gauge") == '# HELP m a\\\\b "c"\\nd\n# TYPE m gauge\n'


def test_no_description():
    """A family that is not described has no line for it."""
    assert family_head("m", "", "counter") == "# TYPE m counter\n"


@given(st.dictionaries(LABEL_NAMES, st.text(), max_size=5), st.text())
def test_labels_and_descriptions_read_back(labels, description):
    """Arbitrary labels and descriptions are read back by Prometheus' parser."""
    page = f"{family_head('m', description, 'gauge')}m{{{labels_text(labels)}}} 1\n"
    (family,) = text_string_to_metric_families(page)
    (sample,) = family.samples
    assert sample.labels == labels
    # The parser takes spaces away at the ends of a line, which HELP leaves to it.
    assert family.documentation.strip() == description.strip()
