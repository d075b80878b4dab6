# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Records the times of one step of a request: for the statistics of the ensemble, and for a client that asks. (pure)"""

from __future__ import annotations

from pyruntime.runtime.ensembles.step_times import StepTime
from pyruntime.runtime.execution.job import Respond
from pyruntime.runtime.tracing.trace import JobTrace
from pyruntime.utils.errors import InferenceError


class StepTimes:
    """The times of one step, in nanoseconds of the monotonic clock, all of them 0 until they are known.

    `input_ns`, `infer_ns` and `output_ns` are durations. It takes the place of the trace of the step's job, and passes
    on what the trace is told.
    """

    # Attributes of the class, because every step has times: no function is called to make them.
    trace: JobTrace | None = None
    begin_ns = end_ns = input_ns = infer_ns = output_ns = 0

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

    def shown(self, step: int, model: str, version: int, arrived_ns: int, request_ns: int) -> StepTime:
        """The times of a step that arrived at `arrived_ns`, for a client whose request arrived at `request_ns`.

        To be called after the end of the step.
        """
        start, begin, end = (
            max(0, ns - request_ns) // 1000 for ns in (arrived_ns, self.begin_ns or self.end_ns, self.end_ns)
        )
        return StepTime(step, model, version, start, begin, end)
