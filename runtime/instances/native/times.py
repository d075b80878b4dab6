# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What native backends report of how long things took, on its way into the statistics. (pure)

A backend that reports nothing is taken at its word for nothing: what it took from execution to release counts as
computing. All times are on the monotonic clock, in nanoseconds.
"""

from __future__ import annotations

from pyruntime.runtime.observe.statistics import ModelStatistics, reason_of
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import InferenceError

# Success, and when execution began, computing began, computing ended and execution ended.
Times = tuple[bool, int, int, int, int]
# Rows, and the same times.
BatchTimes = tuple[int, int, int, int, int]
# The serial of a batch, when Execute was called and when it returned, and what its backend reports, if anything.
Execution = tuple[int, int, int, BatchTimes | None]

# Stands for a failure of which the backend has told only that there was one.
_FAILED = InferenceError("")


class NativeTimes:
    """Where an instance's times go. Those that cannot be, because one comes before the one it follows, are 0."""

    def __init__(self, statistics: ModelStatistics) -> None:
        self._statistics = statistics

    def request(self, job: Job, times: Times, failure: InferenceError | None, now_ns: int) -> None:
        """A backend is done with a job, which has failed for this reason, if any."""
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
        """A batch was executed; `now_ms` is the time of day, since the epoch."""
        rows, begin_ns, start_ns, end_ns, over_ns = times
        _, input_ns, infer_ns, output_ns = _spans(begin_ns, begin_ns, start_ns, end_ns, over_ns)
        self._statistics.execution(rows, input_ns, infer_ns, output_ns, now_ms)

    def response(self, index: int, kind: str, start_ns: int, output_ns: int, end_ns: int) -> None:
        """The response at a place in a backend's answers was made."""
        responses = self._statistics.response(index)
        if responses is None:
            return
        # An error may come before there is anything to put out.
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
    """How long a request queued, and how long its inputs, its computation and its outputs took."""
    if arrived_ns <= begin_ns <= start_ns <= end_ns <= over_ns:  # as nearly always
        return begin_ns - arrived_ns, start_ns - begin_ns, end_ns - start_ns, over_ns - end_ns
    return (
        max(0, begin_ns - arrived_ns),
        max(0, start_ns - begin_ns),
        max(0, end_ns - start_ns),
        max(0, over_ns - end_ns),
    )
