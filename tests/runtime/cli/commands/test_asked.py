# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of `pyruntime infer`: versions, parameters, places in sequences, and how long repetitions took."""

import pytest

from pyruntime.runtime.cli.commands.asked import Asked, latency_rows, read_parameters
from pyruntime.runtime.cli.commands.client import WrongUsage


def test_path():
    """The newest version needs no number."""
    assert Asked("m").path == "/v2/models/m"
    assert Asked("a b", version="3").path == "/v2/models/a%20b/versions/3"


def test_sequence():
    """A sequence starts with the first request, and ends with the last; a number is one, and any other id a text."""
    requests = list(Asked("m", parameters={"p": 1}, sequence="7", starts=True, ends=True, repeat=3).each())
    assert [(each["sequence_start"], each["sequence_end"]) for each in requests] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert {(each["sequence_id"], each["p"]) for each in requests} == {(7, 1)}
    (only,) = Asked("m", sequence="a", starts=True).each()
    assert only == {"sequence_id": "a", "sequence_start": True, "sequence_end": False}


def test_no_sequence():
    """Requests of no sequence have the parameters alone."""
    assert list(Asked("m", repeat=2).each()) == [{}, {}]


def test_parameters():
    """Numbers, true and false are what they look like; all else is a text."""
    assert read_parameters(["a=1", "b=0.5", "c=true", "d=x=y", 'e="1"', "f=[1]", "g="]) == {
        "a": 1, "b": 0.5, "c": True, "d": "x=y", "e": "1", "f": "[1]", "g": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read_parameters(["a"]), "--parameter needs <name>=<value>, not 'a'"),
        (lambda: read_parameters(["a=1", "a=2"]), "--parameter a is there twice"),
        (lambda: Asked("m", version="new"), "--model-version must be a number, not 'new'"),
        (lambda: Asked("m", ends=True), "--start and --end are for requests of a sequence: --sequence names it"),
    ],
)
def test_wrong_usage(make, message):
    """Each mistake is one sentence that names the option."""
    with pytest.raises(WrongUsage) as caught:
        make()
    assert str(caught.value) == message


def test_latencies():
    """The mean, the middle, what one in a hundred exceeds, and the longest, in milliseconds."""
    headings, (row,) = latency_rows([0.004, 0.001, 0.001, 0.002], 0.016)
    assert dict(zip(headings, row, strict=True)) == {
        "Requests": "4", "Per second": "250.0", "Mean (ms)": "2.000", "p50 (ms)": "2.000", "p99 (ms)": "4.000",
        "Max (ms)": "4.000",
    }  # fmt: skip
