# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The conversion of parameters to native code and back."""

import math

import orjson
import pytest

from pyruntime.runtime.native.parameters import as_json, as_native


@pytest.mark.parametrize("value", ["", "text", True, False, 0, 2**63 - 1, -(2**63), 0.5])
def test_what_native_code_has_stays(value):
    """Values keep their types, also a boolean, which Python treats as a number."""
    (native,) = as_native({"a": value}).values()
    assert native == value
    assert type(native) is type(value)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63) - 1])
def test_an_integer_that_is_too_large(value):
    """It is a double, as one that comes by HTTP."""
    (native,) = as_native({"a": value}).values()
    assert native == float(value)
    assert type(native) is float


def test_a_double_that_json_has_no_number_for():
    """Clients of gRPC, and models, may give one."""
    assert math.isnan(as_native({"a": None})["a"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [("\u00e4", "\u00e4"), (True, True), (-1, -1), (0.5, 0.5), (math.nan, "nan"), (-math.inf, "-inf")],
)
def test_what_native_code_gives(value, expected):
    """Every value becomes JSON: the server ends processes that send anything else."""
    assert orjson.loads(as_json({"a": value})) == {"a": expected}


def test_none_are_no_text():
    """As everywhere in messages."""
    assert as_json({}) == ""
