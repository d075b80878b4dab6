# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which requests are the same to a cache."""

import pytest

from pyruntime.runtime.caching.key import request_key

INPUTS = [("A", "INT8", [1, 2], b"\1\2"), ("B", "INT8", [1], b"\3")]
ARGUMENTS = {"model": "m", "version": 1, "outputs": ["X", "Y"], "inputs": INPUTS}


def key(**changes):
    return request_key(**{**ARGUMENTS, **changes})


def test_the_same():
    """The key depends neither on the order of inputs and outputs nor on the memory they are in."""
    assert key() == key(inputs=INPUTS[::-1]) == key(outputs=["Y", "X", "Y"])
    assert key() == key(inputs=[(*INPUTS[0][:3], memoryview(b"\1\2")), INPUTS[1]])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "n"},
        {"version": 2},
        {"outputs": ["X"]},
        {"inputs": INPUTS[:1]},
        {"inputs": [("C", *INPUTS[0][1:]), INPUTS[1]]},
        {"inputs": [("A", "UINT8", [1, 2], b"\1\2"), INPUTS[1]]},
        {"inputs": [("A", "INT8", [2, 1], b"\1\2"), INPUTS[1]]},
        {"inputs": [("A", "INT8", [1, 2], b"\2\1"), INPUTS[1]]},
        {"inputs": [("A", "INT8", [1, 2], b"\1"), ("B", "INT8", [1], b"\2\3")]},
    ],
)
def test_others(changes):
    """Every other difference gives another key."""
    assert key(**changes) != key()
