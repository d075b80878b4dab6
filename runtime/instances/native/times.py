# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Records the times that native backends report in the statistics. (pure)

Where a backend reports no times, the whole time from the execution of a request to its release counts as computing. All
times are on the monotonic clock, in nanoseconds.
"""

from __future__ import annotations

from typing import Literal

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.statistics import ModelStatistics, reason_of
from pyruntime.utils.errors import InferenceError

# Whether the request succeeded; the start of execution, the start and end of computing, and the end of execution.
Times = tuple[bool, int, int, int, int]
# The number of rows, and the same times.
BatchTimes = tuple[int, int, int, int, int]
# The times that the backend reports for a batch, if any. False: Execute failed without a report, which is no execution.
Reported = BatchTimes | Literal[False] | None
# The serial of a batch, the times when Execute was called and returned, and the times that the backend reports.
Execution = tuple[int, int, int, Reported]

# Stands for a failure that the backend reports without a reason.
_FAILED = InferenceError("")


class NativeTimes:
    """Records the times of one instance. A span whose end is before its start counts as 0."""

    def __init__(self, statistics: ModelStatistics) -> None:
        self._statistics = statistics

    def request(self, job: Job, times: Times, failure: InferenceError | None, now_ns: int) -> None:
        """Record that a backend has finished a job; `failure` is why the job failed, if it did."""
        success, begin_ns, start_ns, end_ns, over_ns = times
        total_ns = now_ns - job.arrived_ns
        if job.is_padding:
            return
        if success:
            self._statistics.success(job.rows, *_spans(job.arrived_ns, begin_ns, start_ns, end_ns, over_ns), total_ns)
        else:
            self._statistics.failure(total_ns, reason_of(failure or _FAILED, job.cancelled))
        if job.trace is not None:
            job.trace.executed(begin_ns, start_ns, end_ns)

    def batch(self, times: BatchTimes, now_ms: int) -> None:
        """Record that a batch was executed; `now_ms` is the time since the epoch, in milliseconds."""
        rows, begin_ns, start_ns, end_ns, over_ns = times
        _, input_ns, infer_ns, output_ns = _spans(begin_ns, begin_ns, start_ns, end_ns, over_ns)
        self._statistics.execution(rows, input_ns, infer_ns, output_ns, now_ms)

    def response(self, index: int, kind: str, start_ns: int, output_ns: int, end_ns: int) -> None:
        """Record a response; `index` is its place among the responses to its request."""
        responses = self._statistics.response(index)
        if responses is None:
            return
        # After an error there may be no time of the output.
        put_out_ns = output_ns or end_ns
        infer_ns, output_ns = max(0, put_out_ns - start_ns), max(0, end_ns - put_out_ns)
        if kind == "success":
            responses.success(infer_ns, output_ns)
        elif kind == "fail":
            responses.fail(infer_ns, output_ns)
        elif kind == "empty":
            responses.empty(infer_ns)
        else:
            responses.cancel(infer_ns + output_ns)


def _spans(arrived_ns: int, begin_ns: int, start_ns: int, end_ns: int, over_ns: int) -> tuple[int, int, int, int]:
    """The durations of the queueing, the inputs, the computation and the outputs of a request."""
    if arrived_ns <= begin_ns <= start_ns <= end_ns <= over_ns:  # nearly always
        return begin_ns - arrived_ns, start_ns - begin_ns, end_ns - start_ns, over_ns - end_ns
    return (
        max(0, begin_ns - arrived_ns),
        max(0, start_ns - begin_ns),
        max(0, end_ns - start_ns),
        max(0, over_ns - end_ns),
    )
