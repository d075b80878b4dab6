# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Times of steps, on their way to a client."""

import pytest

from pyruntime.runtime.ensembles.step_times import StepTime, decode_step_times, encode_step_times
from pyruntime.runtime.ensembles.times import StepTimes
from pyruntime.utils.errors import InferenceError


def test_there_and_back():
    """What is encoded can be decoded."""
    times = [StepTime(0, "m", 1, 2, 3, 4), StepTime(1, "n", 2, 5, 6, 7)]
    assert decode_step_times(encode_step_times(times)) == times


@pytest.mark.parametrize("text", ["{", "[1]", '[{"step": 1}]', '[{"nobody": 1}]'])
def test_other_texts(text):
    """Anything else is refused."""
    with pytest.raises(ValueError, match=r"\w"):
        decode_step_times(text)


class Trace:
    """Notes what it is told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *arguments: self.told.append((name, *arguments)) or name


def test_executed():
    """Durations for statistics, and moments for clients."""
    times = StepTimes()
    times.executed(3_000_000, 4_000_000, 6_000_000)
    times.ended(7_000_000)
    assert (times.input_ns, times.infer_ns, times.output_ns) == (1_000_000, 2_000_000, 1_000_000)
    assert times.shown(0, "m", 1, 1_000_000, 500_000) == StepTime(0, "m", 1, 500, 2500, 6500)


def test_streamed():
    """The time of a sender counts as computing."""
    times = StepTimes()
    times.streamed(10, 30)
    times.ended(35)
    assert (times.input_ns, times.infer_ns, times.output_ns) == (0, 20, 5)


def test_of_an_ensemble():
    """A step that is an ensemble has the sums of its own steps."""
    times = StepTimes()
    times.composed(5, 10, 20, 30)
    times.ended(100)
    assert (times.begin_ns, times.input_ns, times.infer_ns, times.output_ns) == (5, 10, 20, 30)


def test_refused():
    """A step that never ran has no times."""
    times = StepTimes()
    times.ended(9000)
    assert (times.input_ns, times.infer_ns, times.output_ns) == (0, 0, 0)
    assert times.shown(0, "m", 1, 1000, 0) == StepTime(0, "m", 1, 1, 9, 9)


def test_trace():
    """A trace is told the same, if there is one."""
    times = StepTimes()
    assert times.answering(print) is print
    for trace in (None, Trace()):
        times.trace = trace
        times.note("A", 1)
        times.executed(1, 2, 3)
        times.streamed(4, 5)
        times.refused(InferenceError("no"))
    assert times.answering(print) == "answering"
    assert [each[0] for each in times.trace.told] == ["note", "executed", "streamed", "refused", "answering"]
