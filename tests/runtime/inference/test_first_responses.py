# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which outcome of a job is its first response."""

import time
from types import SimpleNamespace

import pytest

from pyruntime.runtime.inference.first_responses import FirstResponse
from pyruntime.runtime.observe.families import Histogram
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError

RESPONSE = InferResponse("m", 1, "", [])
ERROR = InferenceError("no")


@pytest.mark.parametrize(
    ("outcomes", "counted"),
    [
        ([RESPONSE], 1),
        ([RESPONSE, RESPONSE, None], 1),
        ([ERROR], 1),
        ([ERROR, RESPONSE, None], 1),
        ([None], 0),
    ],
)
def test_the_first_response_or_error_counts_and_an_end_alone_does_not(outcomes, counted):
    statistics = ModelStatistics(first_responses=Histogram("h", "", []))
    seen = []
    job = SimpleNamespace(arrived_ns=time.monotonic_ns(), respond=lambda *each: seen.append(each))
    job.respond = FirstResponse(job, statistics)
    expected = [(outcome, index == len(outcomes) - 1) for index, outcome in enumerate(outcomes)]
    for each in expected:
        job.respond(*each)
    assert seen == expected
    assert f"h_count {counted}\n" in statistics.first_responses.lines("h")
