# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches of one native instance.

Its thread executes them one after the other. A request ends when the backend has both sent its final response and
released it, in either order. Its memory is free from the release on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyruntime.runtime.execution.deadlock import FREE, Waiting
from pyruntime.runtime.execution.executor import Batch, ExecutorOwner
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.capacity import AdaptiveCapacity
from pyruntime.runtime.instances.inflight import InflightBatches
from pyruntime.runtime.instances.native.instance_spec import NativeExtension, NativeInstanceSpec, create_handle
from pyruntime.runtime.instances.native.memory import base_of, free_copies, resolved
from pyruntime.runtime.instances.native.outputs import NativeOutputs
from pyruntime.runtime.instances.native.responses import (
    NO_RESPONSE,
    NativeOutput,
    NativeResponses,
    Outcome,
    RescheduledResponses,
    take_with,
)
from pyruntime.runtime.instances.native.stacks import describe
from pyruntime.runtime.instances.native.times import Execution, NativeTimes, Reported, Times
from pyruntime.runtime.instances.native.worker import NativeWorker
from pyruntime.runtime.native.parameters import read_parameters
from pyruntime.runtime.observe.statistics import reason_of
from pyruntime.runtime.requests.types import Parameter
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import PLACES, encode_request, encode_requests

_LOG = logging.getLogger("pyruntime.native")

# More than a stub's, because batches of a thread cost far less.
CAPACITY_MAX = 64
# A backend may compute after it has released a request, but hardly for that long.
UNANSWERED_WARNING_S = 60

_UNANSWERED = (
    "%s: request '%s' was released %d s ago and has no response, so its client waits. A backend must send each "
    "response that it makes, or delete it"
)


class NativeBatches(InflightBatches[int]):
    """See the module. The inflight value of a batch is its number of rows. `handle` is the extension's instance."""

    def __init__(
        self,
        instance_spec: NativeInstanceSpec,
        owner: ExecutorOwner,
        native: NativeExtension,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`call_soon` schedules a function for when all that has arrived is handled: see the event loop's method."""
        spec = instance_spec.spec
        none_ahead = spec.is_batched or instance_spec.is_limited
        super().__init__(instance_spec.statistics, owner, AdaptiveCapacity(CAPACITY_MAX, 1, none_ahead))
        self._spec = instance_spec
        self._call_soon = call_soon
        self._wakes = False
        self.times = NativeTimes(instance_spec.statistics)
        self.worker = NativeWorker(spec.name, self.expect_calls)
        self._base = base_of(instance_spec.memory.region)
        self.outputs = NativeOutputs(native, instance_spec.instance.name)
        self._responses = NativeResponses(spec, instance_spec.version, self.outputs, instance_spec.findings.check)
        # The jobs of the backend, with the time when it was given each; those of them that have their final response;
        # and those that are released, with the time of that. A job with both is removed.
        self._jobs: dict[Job, int] = {}
        self._answered: set[Job] = set()
        self._released: dict[Job, int] = {}
        self._has_told = False
        # For models that are not decoupled: the response, until the backend says that it is the last.
        self._kept: dict[Job, Outcome | None] = {}
        # The last responses to jobs that are traced, until their times are known.
        self._held: dict[Job, Outcome | None] = {}
        self._failures: dict[Job, InferenceError] = {}
        self.handle = create_handle(native, instance_spec, self)

    def __len__(self) -> int:
        return len(self._inflight) + len(self._jobs)

    @property
    def waiting(self) -> int:
        """See InflightBatches."""
        return sum(list(self._inflight.values())[1:])

    @property
    def running(self) -> Sequence[Waiting]:
        """See ExecutorBatches."""
        return [self.worker] if self._inflight else ()

    def doing(self, now_ns: int) -> str:
        """The activity of the instance, in words; `now_ns` is the time on the monotonic clock."""
        return describe(self._inflight, self._jobs, now_ns)

    def worker_of(self, job: Job) -> Waiting:
        """See execution.job.Running."""
        return self.worker if self._is_unanswered(job) else FREE

    def execute(self, batch: Batch) -> None:
        """See InflightBatches."""
        now_ns = time.monotonic_ns()
        serial = self._serial
        wires = encode_requests(batch)
        for index, job in enumerate(batch, serial):
            job.instance = self
            job.serial = index
            if job.regions or job.options.parameters or job.states is not None or job.is_call:
                batch, wires = self._prepared(batch, now_ns)
                break
        if not batch:
            return  # the scheduler continues, because the capacity is unchanged
        self._serial = serial + len(batch)
        try:
            self.handle.execute(batch, wires, serial, self._base, False)
        except Exception:  # the clients must be answered after any failure
            _LOG.exception("%s: a batch could not be given to the backend", self._spec.instance.name)
            for job in batch:
                self._fail(job, InferenceError("the request could not be given to the backend"), now_ns)
            return
        # No event of this batch is handled before this method returns.
        rows = 0
        for job in batch:
            self._jobs[job] = now_ns
            rows += job.rows
        self._inflight[serial] = rows
        self.capacity -= 1
        self._wake_soon()

    def _prepared(self, batch: Batch, now_ns: int) -> tuple[Batch, list[list[object]]]:
        """The jobs of a batch that can be executed, and their requests in the form that the extension reads."""
        ready: Batch = []
        wires: list[list[object]] = []
        for job in batch:
            try:
                tensors = resolved(job, self._spec.memory, self._base)
            except InferenceError as exc:
                self._fail(job, exc, now_ns)
                continue
            wire = encode_request(job.id, job.options, tensors, job.trace_context)
            read_parameters(wire)
            if job.is_call:
                wire[PLACES] = self.outputs.allocating()
            job.instance, job.serial = self, self._serial + len(ready)
            ready.append(job)
            wires.append(wire)
        return ready, wires

    def _wake_soon(self) -> None:
        """Wake the instance once for all batches that it gets until the event loop has handled what has arrived."""
        if not self._wakes:
            self._wakes = True
            self._call_soon(self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self.handle.wake()

    def cancel(self, job: Job) -> None:
        """See InflightBatches."""
        if not job.cancelled and self._is_unanswered(job):
            job.cancelled = True
            self.handle.cancel(job.serial)

    # Events of the backend: see events.py.

    def answered(
        self,
        job: Job,
        failure: tuple[int, str] | None,
        outputs: list[NativeOutput] | None,
        parameters: dict[str, Parameter] | None,
        times: Times | None,
        execution: Execution | None = None,
    ) -> None:
        """The backend has sent the final response and released the request; with `execution`, Execute has ended."""
        plain = failure is None and outputs is not None and job.trace is None and times is not None and times[0]
        if not plain or job in self._answered or job in self._kept:
            self.responded(job, True, failure, outputs, parameters)
            self.released(job, False, times)
        else:
            assert outputs is not None
            assert times is not None
            del self._jobs[job]
            outcome = self._responses.make(job, outputs, parameters)
            if isinstance(outcome, InferenceError):
                self._failures[job] = outcome
            self._count(job, times)
            job.free()
            job.respond(outcome, True)
        self._has_ended(execution)

    def _has_ended(self, execution: Execution | None) -> None:
        """A request has ended, and its batch if `execution` is given."""
        if execution is not None:
            self.executed(*execution)
        elif self._when_idle is not None:
            self._notify_if_idle()

    def responded(
        self,
        job: Job,
        final: bool,
        failure: tuple[int, str] | None,
        outputs: list[NativeOutput] | None,
        parameters: dict[str, Parameter] | None,
    ) -> None:
        """The backend has sent a response, or has said that no further response follows."""
        if not self._is_unanswered(job):
            return  # answered by `give_up`
        outcome = self._responses.outcome(job, failure, outputs, parameters)
        if isinstance(outcome, InferenceError):
            self._failures[job] = outcome
        if not self._spec.spec.decoupled and not final:
            self._kept[job] = outcome
            return
        if final:
            if outcome is None and not self._spec.spec.decoupled:
                outcome = self._kept.pop(job, None) or self._kept_earlier(job) or self._ended_without(job)
            if job.trace is not None and job not in self._released:
                self._held[job] = outcome
                return
            self._answer(job)
        else:
            take_with(self.handle, job.serial, outcome)
        job.respond(outcome, final)
        if self._when_idle is not None:
            self._notify_if_idle()

    def released(self, job: Job, reschedule: bool, times: Times | None) -> None:
        """The backend has released a request; `times` are those that it reports."""
        sent_ns = self._jobs.get(job)
        if sent_ns is None or job in self._released:
            return
        if reschedule and job not in self._answered:
            del self._jobs[job]
            if not isinstance(job.respond, RescheduledResponses):
                job.respond = RescheduledResponses(job.respond, self._responses, self._spec.spec.decoupled)
            job.respond.kept = self._kept.pop(job, None) or job.respond.kept
            free_copies(job)
            self._reschedule(job)
            return
        if job in self._answered:
            self._answered.discard(job)
            del self._jobs[job]
        else:
            self._released[job] = time.monotonic_ns()
        if times is None:
            now_ns = time.monotonic_ns()
            times = job not in self._failures, sent_ns, sent_ns, now_ns, now_ns
        self._count(job, times)
        job.free()
        if job in self._held:
            self._answer(job)
            job.respond(self._held.pop(job), True)
        if self._when_idle is not None:
            self._notify_if_idle()

    def executed(self, serial: int, start_ns: int, end_ns: int, reported: Reported = None) -> None:
        """Execute has returned. A batch that failed without a report does not count as executed, as in Triton."""
        rows = self._inflight.pop(serial, None)
        if rows is None:
            return
        self.worker.returned()
        if self._released:
            self._tell_of_unanswered(end_ns)
        self._limit.observe(end_ns - start_ns)
        if reported is not False:
            self.times.batch(reported or (rows, start_ns, start_ns, end_ns, end_ns), time.time_ns() // 1_000_000)
        if self._is_open:
            self.capacity = self._limit.total - len(self._inflight)
        self._owner.capacity_freed()
        if self._when_idle is not None:
            self._notify_if_idle()

    # Any: a Buffer, which is no `memoryview` to type checkers.
    def state_updated(self, job: Job, name: str, datatype: str, shape: list[int], contents: Any) -> None:
        """The backend has updated a state of the job's sequence."""
        if job.states is not None:
            job.states.update(name, datatype, shape, contents)

    def noted(self, job: Job, ns: int, activity: str) -> None:
        """The backend reports an activity of a request that is traced."""
        if job.trace is not None:
            job.trace.note(activity, ns)

    def give_up(self, failure: InferenceError) -> None:
        """Fail all jobs of a backend that does not finish. Their memory stays: its threads may still read it."""
        for job in [job for job in self._jobs if job not in self._answered]:
            if not self.handle.claim(job.serial):
                continue  # a native thread answers its client
            self._answer(job)
            self.handle.cancel(job.serial)  # a thread of the backend may wait for the client
            self._statistics.failure(time.monotonic_ns() - job.arrived_ns, reason_of(failure, job.cancelled))
            job.respond(failure, True)

    def _tell_of_unanswered(self, now_ns: int) -> None:
        """Warn once of a request that was released long ago and has no response, which its backend may have lost.

        The models of such requests must not be decoupled: those may respond for hours.
        """
        job, released_ns = next(iter(self._released.items()))
        since_s = (now_ns - released_ns) // 1_000_000_000
        if since_s >= UNANSWERED_WARNING_S and not self._has_told and not self._spec.spec.decoupled:
            self._has_told = True
            _LOG.warning(_UNANSWERED, self._spec.instance.name, job.id or "<id_unknown>", since_s)

    def _is_unanswered(self, job: Job) -> bool:
        return job in self._jobs and job not in self._answered

    def _answer(self, job: Job) -> None:
        """Note that a job has its final response."""
        if job in self._released:
            del self._released[job]
            del self._jobs[job]
        else:
            self._answered.add(job)

    def _kept_earlier(self, job: Job) -> Outcome | None:
        """The response that was sent in an earlier execution of the job, if there is one."""
        return job.respond.kept if isinstance(job.respond, RescheduledResponses) else None

    def _ended_without(self, job: Job) -> InferenceError:
        failure = self._failures[job] = InferenceError(NO_RESPONSE)
        return failure

    def _count(self, job: Job, times: Times) -> None:
        """Record the times of a job that the backend has released."""
        self.times.request(job, times, self._failures.pop(job, None), time.monotonic_ns())
