# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The times of the steps of one request: for the statistics of the ensemble, and for a client that asks. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from pyruntime.runtime.execution.job import Respond
from pyruntime.runtime.tracing.trace import JobTrace
from pyruntime.utils.errors import InferenceError

# The parameter with which a client asks for the time of each step, and that of the response which has them.
STEP_TIMES = "pyruntime_step_times"


class StepTimes:
    """The times of one step, in nanoseconds of the monotonic clock, all of them 0 until they are known.

    `input_ns`, `infer_ns` and `output_ns` are durations. It takes the place of the trace of the step's job, and passes
    on what the trace is told.
    """

    __slots__ = ("arrived_ns", "begin_ns", "end_ns", "infer_ns", "input_ns", "output_ns", "trace")

    def __init__(self, arrived_ns: int) -> None:
        self.arrived_ns = arrived_ns
        self.trace: JobTrace | None = None
        self.begin_ns = self.end_ns = self.input_ns = self.infer_ns = self.output_ns = 0

    def note(self, activity: str, ns: int) -> None:
        """See Trace."""
        if self.trace is not None:
            self.trace.note(activity, ns)

    def executed(self, begin_ns: int, start_ns: int, end_ns: int) -> None:
        """See Trace."""
        self.begin_ns, self.input_ns, self.infer_ns = begin_ns, start_ns - begin_ns, end_ns - start_ns
        if self.trace is not None:
            self.trace.executed(begin_ns, start_ns, end_ns)

    def streamed(self, begin_ns: int, end_ns: int) -> None:
        """See Trace."""
        self.begin_ns, self.input_ns, self.infer_ns = begin_ns, 0, end_ns - begin_ns
        if self.trace is not None:
            self.trace.streamed(begin_ns, end_ns)

    def composed(self, begin_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """See Trace."""
        self.begin_ns, self.input_ns, self.infer_ns, self.output_ns = begin_ns, input_ns, infer_ns, output_ns

    def answering(self, respond: Respond) -> Respond:
        """See Trace."""
        return respond if self.trace is None else self.trace.answering(respond)

    def refused(self, failure: InferenceError) -> None:
        """See Trace."""
        if self.trace is not None:
            self.trace.refused(failure)

    def ended(self, now_ns: int) -> None:
        """The step has ended."""
        self.end_ns = now_ns
        if self.begin_ns and not self.output_ns:
            self.output_ns = max(0, now_ns - self.begin_ns - self.input_ns - self.infer_ns)


@dataclass(slots=True)
class StepTime:
    """The time of one step, as a client reads it: offsets from the arrival of the request, in microseconds.

    The step was started at `start_us`, its model began to execute it at `execute_us`, and it ended at `end_us`.
    """

    step: int
    model: str
    version: int
    start_us: int
    execute_us: int
    end_us: int

    @staticmethod
    def of(step: int, model: str, version: int, times: StepTimes, arrived_ns: int) -> StepTime:
        """The time of a step that has ended, for a request that arrived at `arrived_ns`."""
        start, begin, end = (
            max(0, ns - arrived_ns) // 1000 for ns in (times.arrived_ns, times.begin_ns or times.end_ns, times.end_ns)
        )
        return StepTime(step, model, version, start, begin, end)


def encode_step_times(times: Iterable[StepTime]) -> str:
    """The value of the parameter of the response: JSON."""
    return orjson.dumps(list(times)).decode()


def decode_step_times(text: str) -> list[StepTime]:
    """The times in a parameter of a response. Raises ValueError."""
    try:
        return [StepTime(**each) for each in orjson.loads(text)]
    except TypeError as exc:
        raise ValueError("these are no times of steps") from exc
