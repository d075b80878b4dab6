# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of one stub that a response sender answers, from their first response to their last.

Only decoupled models may send any number of responses. For other models, the one response is kept until the model says
that it is the last. If execute fails before that, a client gets the failure, but in a gRPC stream what was kept, as in
Triton.
"""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import dataclass

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.stub.returns import CREDIT_BYTES_WAITING_MAX, CREDITS_WAITING_MAX, Returns
from pyruntime.runtime.observe.statistics import ModelStatistics, reason_of
from pyruntime.runtime.requests.types import InferResponse, keep_open
from pyruntime.utils.errors import Code, InferenceError, PeerError
from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX

Outcome = InferResponse | InferenceError

# So many responses, or bytes, that its client has not taken may make a sender wait: the stub does not know yet of the
# last ones that were taken.
_AHEAD_MIN = RESPONSES_AHEAD_MAX - CREDITS_WAITING_MAX
_BYTES_AHEAD_MIN = BYTES_AHEAD_MAX - CREDIT_BYTES_WAITING_MAX


class TakenOnce:
    """The `take` and `release` of one of several responses: the first call credits the sender."""

    __slots__ = ("_returns", "_serial", "_size", "_slot", "_streams", "_taken")

    def __init__(self, streams: Streams, returns: Returns, serial: int, slot: int, size: int) -> None:
        self._streams = streams
        self._returns = returns
        self._serial = serial
        self._slot = slot
        self._size = size
        self._taken = False

    def take(self) -> None:
        """See InferResponse."""
        if not self._taken:
            self._taken = True
            self._streams.taken(self._serial, self._size)

    def release(self) -> None:
        """See InferResponse."""
        if self._slot >= 0:
            self._returns.release(self._slot, self._size)
        self.take()


@dataclass(slots=True, eq=False)
class _Stream:
    """One of them. `owns_memory`: execute has returned, and the last response frees the memory of the request.

    `sent_ns` is when the request was sent to the stub, and `start_ns` when execute was called, 0 until it has returned.
    `output_ns` is how long the responses before the last one took to be passed on. `number` is that of its execution.
    `ahead` and `bytes_ahead` are the responses that its client has not taken.
    """

    job: Job
    sent_ns: int
    number: int
    # When the latest response was passed on.
    last_ns: int
    start_ns: int = 0
    output_ns: int = 0
    count: int = 0
    failure: InferenceError | None = None
    kept: Outcome | None = None
    owns_memory: bool = False
    ahead: int = 0
    bytes_ahead: int = 0

    @property
    def waits(self) -> bool:
        """Whether its sender may have to wait for the client."""
        return self.ahead >= _AHEAD_MIN or self.bytes_ahead >= _BYTES_AHEAD_MIN


class Streams:
    """See the module. `by_serial` are the open streams, for the caller to read."""

    def __init__(self, returns: Returns, statistics: ModelStatistics, decoupled: bool) -> None:
        self._returns = returns
        self._statistics = statistics
        self._decoupled = decoupled
        self.by_serial: dict[int, _Stream] = {}
        # When a stream that waited for its client went on, or ended.
        self._waited_ns = 0

    def __len__(self) -> int:
        return len(self.by_serial)

    def __contains__(self, serial: int) -> bool:
        return serial in self.by_serial

    def jobs(self) -> list[Job]:
        """The jobs of all open streams."""
        return [stream.job for stream in self.by_serial.values()]

    def job(self, serial: int) -> Job:
        """The job of an open stream."""
        return self.by_serial[serial].job

    def executions(self) -> dict[int, int]:
        """The numbers of the executions that the open streams belong to, and when these began."""
        return {stream.number: stream.sent_ns for stream in self.by_serial.values()}

    def of(self, numbers: Container[int]) -> list[int]:
        """The serials of the open streams that belong to these executions."""
        return [serial for serial, stream in self.by_serial.items() if stream.number in numbers]

    def last_wait_ns(self, now_ns: int) -> int:
        """When a stream last waited for its client, 0 if none did."""
        return now_ns if any(stream.waits for stream in self.by_serial.values()) else self._waited_ns

    def open(self, serial: int, job: Job, sent_ns: int, number: int) -> None:
        """A sender will answer this job, of the batch `number`."""
        if serial not in self.by_serial:
            self.by_serial[serial] = _Stream(job, sent_ns, number, sent_ns)

    def leave_execute(self, serial: int, start_ns: int, owns_memory: bool) -> None:
        """Execute, which was called at `start_ns`, has returned.

        `owns_memory` says that the memory of the job is needed until the last response.
        """
        stream = self.by_serial[serial]
        stream.start_ns, stream.owns_memory = start_ns, owns_memory

    def keep_memory(self, serial: int) -> Job:
        """The last response of a stream does not free the memory of the job, which is returned: the caller will."""
        stream = self.by_serial[serial]
        stream.owns_memory = False
        return stream.job

    def once(self, serial: int, slot: int, size: int) -> TakenOnce:
        """The `take` and `release` of a response that others follow; `slot` may be NO_SLOT."""
        return TakenOnce(self, self._returns, serial, slot, size)

    def taken(self, serial: int, size: int) -> None:
        """The client has taken a response. The stub gets credit for it, unless the stream has ended."""
        stream = self.by_serial.get(serial)
        if stream is not None:
            self._returns.credit(serial, size)
            if stream.waits:
                self._waited_ns = time.monotonic_ns()
            stream.ahead -= 1
            stream.bytes_ahead -= size

    def respond(self, serial: int, outcome: Outcome | None, size: int, final: bool, start_ns: int = 0) -> None:
        """Handle a response of `size` bytes, or None for an end without one. Raises PeerError if it is not legal.

        `start_ns` is when the stub says that execute was called, 0 if it has returned.
        """
        came_ns = time.monotonic_ns()
        stream = self.by_serial.get(serial)
        if stream is None or (outcome is None and not final) or (stream.kept is not None and outcome is not None):
            raise PeerError(f"request {serial} is answered again, or with nothing")
        if isinstance(outcome, InferenceError):
            stream.failure = outcome
        if self._decoupled and not final:
            stream.ahead += 1
            stream.bytes_ahead += size
            if isinstance(outcome, InferenceError):
                self.taken(serial, size)
        if final:
            stream.start_ns = stream.start_ns or start_ns
            self._end(stream, serial, outcome if stream.kept is None else stream.kept, came_ns)
        elif self._decoupled:
            stream.job.respond(outcome, False)
        else:
            if isinstance(outcome, InferResponse):
                keep_open(outcome)  # the stub may die before its request ends
            stream.kept = outcome
        if self._decoupled:
            self._count(stream, outcome, came_ns)

    def leave(self, serial: int) -> None:
        """The job of an open stream is executed again, under another serial."""
        del self.by_serial[serial]
        self._returns.forget_credit(serial)

    def end(self, serial: int, failure: Outcome) -> None:
        """End an open stream with a failure, or a response, that its sender did not send."""
        came_ns = time.monotonic_ns()
        stream = self.by_serial[serial]
        outcome = failure
        if stream.kept is not None and stream.job.takes_first:
            outcome = stream.kept
            if isinstance(failure, InferenceError):
                stream.failure = failure  # for the statistics
            else:
                failure.release()
        self._end(stream, serial, outcome, came_ns)
        if self._decoupled:
            self._count(stream, failure, came_ns)

    def _end(self, stream: _Stream, serial: int, outcome: Outcome | None, came_ns: int) -> None:
        """End an open stream with its last response, which came at `came_ns`, or None for none."""
        del self.by_serial[serial]
        self._returns.forget_credit(serial)
        if stream.waits:
            self._waited_ns = came_ns
        if stream.kept is not None and stream.kept is not outcome and isinstance(stream.kept, InferResponse):
            stream.kept.release()
        job = stream.job
        now_ns = time.monotonic_ns()
        total_ns = now_ns - job.arrived_ns
        if job.trace is not None:
            job.trace.streamed(stream.sent_ns, now_ns)
        if outcome is None and not self._decoupled:
            outcome = InferenceError("the model ended the request without a response")
        failure = outcome if isinstance(outcome, InferenceError) else stream.failure
        if job.is_padding:
            pass  # padding is not counted
        elif failure is not None:
            self._statistics.failure(total_ns, reason_of(failure, job.cancelled))
        else:
            begin_ns = stream.sent_ns
            # A stub may send any time.
            start_ns = stream.start_ns if begin_ns <= stream.start_ns <= came_ns else begin_ns
            output_ns = stream.output_ns + now_ns - came_ns
            infer_ns = max(0, now_ns - start_ns - output_ns)
            waited_ns = max(0, begin_ns - job.arrived_ns)
            self._statistics.success(job.rows, waited_ns, start_ns - begin_ns, infer_ns, output_ns, total_ns)
        if stream.owns_memory:  # else the end of execute frees it: see StubBatches
            job.free()
        job.respond(outcome, True)

    def _count(self, stream: _Stream, outcome: Outcome | None, came_ns: int) -> None:
        """Record a response of a decoupled model, or the end without one, that arrived at `came_ns`."""
        index, last_ns, now_ns = stream.count, stream.last_ns, time.monotonic_ns()
        stream.count, stream.last_ns = index + 1, now_ns
        stream.output_ns += now_ns - came_ns
        responses = self._statistics.response(index)
        if responses is None or stream.job.is_padding:
            return
        infer_ns, output_ns = max(0, came_ns - last_ns), now_ns - came_ns
        if outcome is None:
            responses.empty(infer_ns)
        elif isinstance(outcome, InferResponse):
            responses.success(infer_ns, output_ns)
        elif outcome.code is Code.CANCELLED:
            responses.cancel(infer_ns)
        else:
            responses.fail(infer_ns, output_ns)
