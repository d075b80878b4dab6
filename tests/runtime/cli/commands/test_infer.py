# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The table of the steps of an ensemble, as `pyruntime infer --timing` shows it."""

import pytest

from pyruntime.runtime.cli.commands.client import Refused
from pyruntime.runtime.cli.commands.infer import BAR_WIDTH, timing_rows
from pyruntime.runtime.cli.commands.inference import Response
from pyruntime.runtime.ensembles.step_times import STEP_TIMES, StepTime, encode_step_times


def response(**parameters):
    return Response("e", "1", [], parameters)


def test_rows():
    """One for each step, in order of time, with a bar from its start to its end: dots while it waits."""
    times = [StepTime(1, "b", 1, 2000, 3000, 4000), StepTime(0, "a", 1, 0, 0, 1000)]
    found = timing_rows(response(**{STEP_TIMES: encode_step_times(times)}))
    quarter = BAR_WIDTH // 4
    assert found == [
        ("0", "a", "0.000", "0.000", "1.000", "#" * quarter),
        ("1", "b", "2.000", "1.000", "1.000", " " * 2 * quarter + "." * quarter + "#" * quarter),
    ]


def test_no_steps():
    """A request that no step had to run for."""
    assert timing_rows(response(**{STEP_TIMES: "[]"})) == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "the response has no times of steps: a response cache answers without them"),
        ({STEP_TIMES: True}, "the response has no times of steps"),
        ({STEP_TIMES: '[{"step": 0}]'}, "these are no times of steps"),
        ({STEP_TIMES: "nonsense"}, "line 1 column"),
    ],
)
def test_none(parameters, message):
    """A response without them, or with anything else."""
    with pytest.raises(Refused, match=message):
        timing_rows(response(**parameters))
