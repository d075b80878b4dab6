# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters of responses and calls, as stubs send them, and of requests."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.requests.parameters import parse_parameters, request_parameters
from pyruntime.utils.errors import PeerError

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4) | st.sampled_from(["FP32", "OUT"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=5),
    max_leaves=10,
)  # fmt: skip


class TestParameters:
    @pytest.mark.parametrize("text", ["", None])
    def test_none(self, text):
        """No text is no parameters."""
        assert parse_parameters(text) == {}

    def test_good(self):
        """Parameters are a JSON object."""
        assert parse_parameters('{"a": 1, "b": true, "c": "ü", "d": 1.5}') == {"a": 1, "b": True, "c": "ü", "d": 1.5}

    @pytest.mark.parametrize("text", ["{", "[]", "1", '"a"', "null", "nan", 5, [1], {"a": 1}, 1.5, True], ids=repr)
    def test_bad(self, text):
        """Anything else is the stub's fault."""
        with pytest.raises(PeerError):
            parse_parameters(text)

    def test_of_a_request(self):
        """What the server itself has encoded has null for a double that is not finite, of any kind."""
        parameters = request_parameters('{"a": 1, "b": null, "c": true}')
        assert math.isnan(parameters.pop("b"))
        assert parameters == {"a": 1, "c": True}

    @pytest.mark.parametrize("value", ["null", "[1]", "{}"])
    def test_values_of_another_type(self, value):
        """Parameters are flat: text, numbers and truth values."""
        with pytest.raises(PeerError):
            parse_parameters(f'{{"a": {value}}}')

    @given(JUNK)
    def test_junk(self, text):
        """Arbitrary text of a stub is parameters, or the stub's fault."""
        try:
            parameters = parse_parameters(text)
        except PeerError:
            return
        assert type(parameters) is dict
