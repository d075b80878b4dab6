# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches of one stub, from its first to its death.

The stub may have several batches at a time, so that it does not wait for the host between them. It answers each batch
before it starts the next. So after a death the first unanswered batch was running, and fails, while those behind it had
not begun and go back to the scheduler: no request is lost, and none is executed twice. A stub that executes in several
threads gets no more batches than those can run.

A batch with inputs on a GPU that the stub does not read is given to it when these are copied: see arrival.py. No other
batch is taken meanwhile.

Requests that a sender answers outlive their batch: see streams.py. PythonInstance starts and restarts the stub.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from pyruntime.runtime.calls.guarded import start_guarded
from pyruntime.runtime.execution.deadlock import FREE, Waiting
from pyruntime.runtime.execution.executor import Batch, ExecutorOwner
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.gpus.tensor_places import reads_on_gpu
from pyruntime.runtime.instances.capacity import AdaptiveCapacity
from pyruntime.runtime.instances.codec import Outcome, ResponseReader, StateReader, as_outcome, not_reschedulable
from pyruntime.runtime.instances.inflight import InflightBatches
from pyruntime.runtime.instances.stub.arrival import Arrival
from pyruntime.runtime.instances.stub.cancel_flags import CancelFlags
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.execution_timer import PARAMETER as EXECUTION_TIMEOUT
from pyruntime.runtime.instances.stub.execution_timer import ExecutionTimer
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.instances.stub.retained import RetainedMemory
from pyruntime.runtime.instances.stub.streams import Streams
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.observe.statistics import reason_of
from pyruntime.runtime.regions import GpuRegion
from pyruntime.runtime.requests.types import InferResponse, Slot
from pyruntime.utils.errors import Code, InferenceError, LocalError, PeerError
from pyruntime.utils.messages import SLOT, Failed, Requeue, Respond, Result
from pyruntime.utils.request_codec import encode_requests

_LOG = logging.getLogger("pyruntime.instances")

CAPACITY_MAX = 8


class BatchCalls(Protocol):
    """The calls of the batches to other models. A batch is identified by its number."""

    def waiting(self, batch: int) -> Sequence[tuple[Sequence[Waiting], str]]:
        """See Waiting.waiting_calls."""

    def cancel_batch(self, number: int) -> None:
        """A batch is cancelled, and so are the calls that it waits for."""

    def free_unread(self, slots: list[Slot]) -> None:
        """Free request memory of the dead stub as soon as no called model reads it."""


# Every batch begins with it.
_NONE_FINISHED: frozenset[int] = frozenset()


class InflightBatch:
    """One batch. `sent_ns` is when it was sent, or later, when the batch before it ended.

    `start_ns` is when execute was called, 0 until it has returned.

    `finished` are the serials of requests that a sender has answered to the end while execute still runs. The batch is
    also a worker (see deadlock.py): the thread that executes it, or will execute it.
    """

    __slots__ = ("batch", "calls", "finished", "model_name", "number", "sent_ns", "start_ns")

    def __init__(self, number: int, batch: Batch, sent_ns: int, model_name: str, calls: BatchCalls) -> None:
        self.number = number
        self.batch = batch
        self.sent_ns = sent_ns
        self.start_ns = 0
        self.model_name = model_name
        self.calls = calls
        self.finished = _NONE_FINISHED

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """See Waiting."""
        return self.calls.waiting(self.number)


class StubBatches(InflightBatches[InflightBatch]):
    """See the module. `retained` is the request memory that the model keeps."""

    def __init__(
        self, instance_spec: StubInstanceSpec, connection: StubConnection, owner: ExecutorOwner, calls: BatchCalls
    ) -> None:
        spec = instance_spec.spec
        none_ahead = spec.is_batched or instance_spec.is_limited
        limit = AdaptiveCapacity(CAPACITY_MAX, instance_spec.concurrency, none_ahead)
        super().__init__(instance_spec.statistics, owner, limit)
        self._name = instance_spec.name
        self._spec = spec
        self._concurrency = instance_spec.concurrency
        self._connection = connection
        self._calls = calls
        self._gpu = instance_spec.gpu
        self._memory = instance_spec.memory
        self._server = instance_spec.server
        # The batch whose inputs are being copied.
        self._arrival: Arrival | None = None
        reading = (
            spec,
            instance_spec.version,
            connection.responses,
            connection.returns.release,
            connection.regions.leased,
            instance_spec.findings.check,
        )
        self._reader = ResponseReader(*reading)
        if spec.sequence_batching is not None and spec.sequence_batching.states:
            self._reader = StateReader(*reading, instance_spec.gpu if reads_on_gpu(spec) else None)
        self._streams = Streams(connection.returns, instance_spec.statistics, spec.decoupled)
        self.retained = RetainedMemory(is_shared=spec.iterative_sequence)
        self._flags = CancelFlags(connection.set_flag)
        self._last_end_ns = 0
        # Looks after executions that may take too long, if they may not.
        self.timer: ExecutionTimer | None = None
        # Whether one did, and the jobs of it, by serial: answered, but their memory stays until the stub has ended.
        self.has_expired = False
        self._overdue: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._inflight) + len(self._streams) + (self._arrival is not None)

    @property
    def is_idle(self) -> bool:
        """See ExecutorBatches."""
        return not self._inflight and self._arrival is None

    @property
    def running(self) -> Sequence[Waiting]:
        """See ExecutorBatches."""
        running: list[Waiting] = [*self._inflight.values()]
        del running[self._concurrency :]
        if self._arrival is not None and len(running) < self._concurrency:  # it holds what it was granted
            running.append(FREE)
        return running

    def workers(self) -> Sequence[Waiting]:
        """The workers that execute its batches: see deadlock.py. An idle thread stands for all of them."""
        running = self.running
        return running if len(running) == self._concurrency else (FREE,)

    def worker_of(self, job: Job) -> Waiting:
        """See execution.job.Running. A batch that waits behind another one has the worker of that."""
        inflight = self._batch_with(job.serial)
        if inflight is None:
            return FREE
        return inflight if self._concurrency > 1 else next(iter(self._inflight.values()))

    @property
    def waiting(self) -> int:
        """See InflightBatches."""
        arriving = 0 if self._arrival is None else len(self._arrival.batch)
        return arriving + sum(len(inflight.batch) for inflight in list(self._inflight.values())[self._concurrency :])

    def execute(self, batch: Batch) -> None:
        """See InflightBatches."""
        serial = number = self._serial
        sent_ns = time.monotonic_ns()
        connection = self._connection
        try:
            for job in batch:
                for region in job.regions:
                    if type(region) is GpuRegion and region.gpu.ordinal != self._gpu:
                        self._bring(batch)
                        return
                    connection.regions.grant(region)
            connection.infer(number, encode_requests(batch), len(self._inflight) < self._concurrency)
        except LocalError as exc:
            self._not_sent(batch, exc, sent_ns)
            return
        self._inflight[number] = InflightBatch(number, batch, sent_ns, self._spec.name, self._calls)
        for job in batch:
            job.instance = self
            job.serial = serial
            serial += 1
        self._serial = serial
        if self._flags.raised:  # a new request may share the flag of a cancelled one
            for job in batch:
                self._flags.lower(job.serial)
        self.capacity -= 1
        if self.timer is not None and not self._is_warming:
            self.timer.begin()

    def _not_sent(self, batch: Batch, cause: LocalError, sent_ns: int) -> None:
        """A batch cannot be sent. If inputs of some jobs were lost with their broker, the others are executed."""
        reason = f"the request cannot be sent to {self._name}: {cause}"
        failure = InferenceError(reason)
        failed = [job for job in batch if any(isinstance(each, GpuRegion) and each.loss for each in job.regions)]
        if failed:
            failure = InferenceError(reason, Code.UNAVAILABLE)
            others = [job for job in batch if job not in failed]
            if others:  # before anything fails: see _go_on
                self.execute(others)
        for job in failed or batch:
            super()._fail(job, failure, sent_ns)  # it has no flag

    def warm_up(self, batch: Batch) -> None:
        """See InflightBatches."""
        if self._connection.link.is_serving:
            super().warm_up(batch)
            return
        failure = InferenceError(f"Stub process '{self._name}' is not healthy.")
        for job in batch:
            self._fail(job, failure, time.monotonic_ns())

    def cancel(self, job: Job) -> None:
        """See InflightBatches."""
        if self._arrival is not None and job in self._arrival.batch:
            job.cancelled = True
            return
        serial = job.serial
        inflight = self._batch_with(serial)
        is_over = serial not in self._streams and (inflight is None or serial in inflight.finished)
        if job.cancelled or is_over:
            return
        job.cancelled = True
        others = [each for inflight in self._inflight.values() for each in inflight.batch]
        self._flags.raise_for(job, others + self._streams.jobs())
        if inflight is not None and all(each.cancelled for each in inflight.batch):
            self._calls.cancel_batch(inflight.number)

    # Inputs on another GPU.

    def _bring(self, batch: Batch) -> None:
        """Copy inputs that the stub does not read, and execute the batch then."""
        for job in batch:
            job.instance, job.serial = self, 0
        self._arrival = arrival = Arrival(batch, self._gpu)
        self._limit.pause()
        self._update_capacity()
        work, fail = partial(self._execute_brought, arrival), partial(self._not_brought, arrival)
        start_guarded(self._server.peers.tasks, work, fail, "copy inputs of a request")

    async def _execute_brought(self, arrival: Arrival) -> None:
        is_wanted = False
        try:
            await arrival.copy(self._memory, self._server.peers)
            # The jobs of a stub that has hung up are put back when it has ended.
            is_wanted = self._arrival is arrival and self._connection.link.is_serving
        finally:
            failures = arrival.end(is_wanted)
        if is_wanted:
            for job in arrival.batch:
                if job.cancelled:
                    failures[job] = InferenceError("", Code.CANCELLED)
            self._go_on(arrival.batch, failures)

    def _not_brought(self, arrival: Arrival, failure: InferenceError) -> None:
        """A bug has ended the copies."""
        if self._arrival is arrival:
            self._go_on(arrival.batch, dict.fromkeys(arrival.batch, failure))

    def _go_on(self, batch: Batch, failures: dict[Job, InferenceError]) -> None:
        """Execute a batch but for jobs that fail, and take batches again."""
        self._arrival = None
        self._limit.resume()
        for job in batch:
            job.instance = None
        others = [job for job in batch if job not in failures]
        if others:  # before anything fails: what follows from a failure may cancel one of these
            self.execute(others)
        for job, failure in failures.items():
            super()._fail(job, failure, time.monotonic_ns())
        if self._is_open:
            self._update_capacity()
        else:
            self.capacity = 0
        self._owner.capacity_freed()
        self._notify_if_idle()

    # Messages from the serving stub. The handlers raise PeerError.

    def answered(self, message: Result | Failed) -> None:
        """Execute has returned."""
        number, answers, retained, start_ns, end_ns = message
        inflight = self._inflight.get(number)
        if inflight is None or (number != next(iter(self._inflight)) and self._concurrency == 1):
            raise PeerError(f"batch {number} is answered and is not the one that is due")
        batch = inflight.batch
        # The answer may still turn out to be invalid, so the batch counts as running until it is decoded. Any: of the
        # outcomes that `_settle` leaves, each is an InferResponse.
        outcomes: list[Any] = (
            self._reader.responses(batch, answers)
            if type(answers) is not str
            else [InferenceError(answers)] * len(batch)  # of a Failed, in the place of the responses
        )
        if retained:
            self.retained.retain(number, batch, retained)
        del self._inflight[number]
        now_ns = time.monotonic_ns()
        begin_ns = inflight.sent_ns
        if begin_ns < self._last_end_ns and self._concurrency == 1:  # it waited behind another batch
            begin_ns = inflight.sent_ns = self._last_end_ns
        if not begin_ns <= start_ns <= end_ns <= now_ns:  # a stub may send any times
            start_ns = end_ns = now_ns
        inflight.start_ns = start_ns
        self._last_end_ns = end_ns
        input_ns, infer_ns, output_ns = start_ns - begin_ns, end_ns - start_ns, now_ns - end_ns
        if self._is_open:
            self.capacity = self._limit.total - len(self._inflight)
        statistics = self._statistics
        latencies = statistics.latencies
        rows = count = counted_rows = queue_ns = total_ns = 0
        plain = not inflight.finished and not self._streams.by_serial
        for job, outcome in zip(batch, outcomes):  # noqa: B905 - the reader has compared them, and strict costs time
            rows += job.rows
            if job.trace is not None:
                job.trace.executed(begin_ns, start_ns, end_ns)
            if (type(outcome) is not InferResponse or not plain) and self._settle(job, outcome, inflight, now_ns):
                continue
            if job.cancelled:
                self._flags.lower(job.serial)
            if job.regions:  # a caller gets one message with the response and that its inputs have been read
                job.free()
            # Somebody waits for the response: a client, or the next step of an ensemble. All else comes after it.
            job.respond(outcome, True)
            job.free()
            if not job.is_padding:
                arrived_ns = job.arrived_ns
                count += 1
                counted_rows += job.rows
                queue_ns += begin_ns - arrived_ns
                total_ns += now_ns - arrived_ns
                if latencies is not None:
                    latencies.observe(now_ns - arrived_ns, begin_ns - arrived_ns, input_ns, infer_ns, output_ns)
        self._limit.observe(infer_ns)
        if self._is_open:
            self.capacity = self._limit.total - len(self._inflight)
        statistics.executed(
            count, counted_rows, queue_ns, total_ns, rows, input_ns, infer_ns, output_ns, time.time_ns() // 1_000_000
        )
        self._owner.capacity_freed()
        if self._when_idle is not None:
            self._notify_if_idle()

    def responded(self, message: Respond) -> None:
        """A sender has sent a response, during execute or after it."""
        serial = message.serial
        inflight = None
        if serial in self._overdue:
            return  # the stub does not know it yet
        if serial not in self._streams:
            inflight = self._batch_with(serial)
            if inflight is None or serial in inflight.finished or not self._has_begun(inflight):
                raise PeerError(f"request {serial} is answered and is not open")
            if self._concurrency == 1:
                inflight.sent_ns = max(inflight.sent_ns, self._last_end_ns)
            number = inflight.number
            self._streams.open(serial, inflight.batch[serial - number], inflight.sent_ns, number)
        job = self._streams.job(serial)
        outcome, size = None if message.response is None else self._reader.response(job, message.response), 0
        if type(outcome) is InferResponse:
            for output in outcome.outputs:
                size += output.byte_size
        if message.final:
            inflight = inflight or self._batch_with(serial)
            if inflight is not None:
                inflight.finished |= {serial}
            self._flags.lower(serial)
        elif type(outcome) is InferResponse and self._spec.decoupled:
            assert message.response is not None  # the outcome was read from it
            once = self._streams.once(serial, message.response[SLOT], size)
            outcome.take, outcome.release = once.take, once.release
        self._streams.respond(serial, outcome, size, message.final, message.start_ns)
        if self._when_idle is not None:
            self._notify_if_idle()

    def put_back(self, message: Requeue) -> None:
        """The stub returns batches that have not begun, because the running one waits for something else."""
        self.expect_calls()
        for number in reversed(message.batches):
            inflight = self._inflight.get(number) if type(number) is int else None
            if inflight is None or inflight.finished or any(job.serial in self._streams for job in inflight.batch):
                raise PeerError(f"batch {number!r} is put back and is not there, or has begun")
            del self._inflight[number]
            self._recall(inflight.batch)
        if self._is_open:
            self._update_capacity()
            self._owner.capacity_freed()  # the waiting batch may have ended meanwhile
        self._notify_if_idle()

    # Settling answers.

    def _settle(self, job: Job, outcome: Outcome, inflight: InflightBatch, now_ns: int) -> bool:
        """Handle any outcome except a response that execute returned; False if it is one."""
        serial = job.serial
        if serial in self._overdue:
            pass  # the stub is being killed, and takes nothing back
        elif serial in inflight.finished:
            if type(outcome) is InferResponse:
                outcome.release()
            job.free()
        elif serial in self._streams and type(outcome) is int and self._spec.decoupled:
            self._streams.leave(serial)
            self._reschedule_or_fail(job, now_ns)
        elif serial in self._streams:
            self._leave_execute(job, inflight)
            if outcome is not None:  # execute failed after a sender had begun
                self._flags.lower(serial)
                self._streams.end(serial, as_outcome(outcome))
        elif outcome is None:
            self._streams.open(serial, job, inflight.sent_ns, inflight.number)
            self._leave_execute(job, inflight)
        elif type(outcome) is int:
            self._reschedule_or_fail(job, now_ns)
        elif isinstance(outcome, InferenceError):
            self._fail(job, outcome, now_ns)
        else:
            return False
        return True

    def _leave_execute(self, job: Job, inflight: InflightBatch) -> None:
        """Execute has returned, and a sender answers the job.

        The next request of a sequence may then begin, except where it reads the states that the last response brings.
        """
        has_states = job.states is not None
        self._streams.leave_execute(job.serial, inflight.start_ns, owns_memory=has_states)
        if not has_states:
            job.free()

    def _fail(self, job: Job, failure: InferenceError, now_ns: int) -> None:
        """See InflightBatches."""
        self._flags.lower(job.serial)
        super()._fail(job, failure, now_ns)

    def _reschedule_or_fail(self, job: Job, now_ns: int) -> None:
        if self._spec.iterative_sequence:
            self._flags.lower(job.serial)
            self._reschedule(job)
        else:
            self._fail(job, not_reschedulable(), now_ns)

    def _recall(self, batch: Batch) -> None:
        """Put back a batch that the stub has not begun, to execute it later."""
        for job in batch:
            self._flags.lower(job.serial)
            job.instance = None
        self._owner.put_back(batch)

    def _has_begun(self, inflight: InflightBatch) -> bool:
        """Whether execute may have begun with this batch."""
        return self._concurrency > 1 or inflight.number == next(iter(self._inflight))

    def _batch_with(self, serial: int) -> InflightBatch | None:
        for number, inflight in self._inflight.items():
            if number <= serial < number + len(inflight.batch):
                return inflight
        return None

    # Executions that take too long: see ExecutionTimer.

    def executions(self) -> Iterable[tuple[int, int]]:
        """See Watched."""
        for number, inflight in self._inflight.items():
            yield number, max(inflight.sent_ns, self._last_end_ns)
            break  # the stub executes one batch at a time
        yield from self._streams.executions().items()

    def last_wait_ns(self, now_ns: int) -> int:
        """See Watched."""
        return self._streams.last_wait_ns(now_ns)

    def expire(self, numbers: frozenset[int], limit_ms: int) -> None:
        """See Watched: answer the requests of these executions, and kill the stub."""
        self.has_expired = True
        self.close()
        took = f"took longer than {limit_ms} ms, its {EXECUTION_TIMEOUT}"
        _LOG.error("%s: an execution of model '%s' %s; the instance is restarted", self._name, self._spec.name, took)
        self._connection.kill(f"an execution {took}")
        failure = InferenceError(f"the execution by model '{self._spec.name}' {took}", Code.DEADLINE_EXCEEDED)
        now_ns = time.monotonic_ns()
        streams = self._streams.of(numbers)
        waiting: list[Job] = []
        for number, inflight in self._inflight.items():
            if number in numbers:
                for job in inflight.batch:
                    if job.serial not in inflight.finished:
                        self._overdue[job.serial] = job
                        if job.serial not in streams:
                            waiting.append(job)
                inflight.finished |= {job.serial for job in inflight.batch}
        for serial in streams:
            self._overdue[serial] = self._streams.keep_memory(serial)
        # No job may be answered before all are marked: what follows from an answer may cancel another one.
        for job in waiting:
            if not job.is_padding:
                self._statistics.failure(now_ns - job.arrived_ns, reason_of(failure, job.cancelled))
            job.respond(failure, True)
        for serial in streams:
            if serial in self._streams:
                self._streams.end(serial, failure)

    # The death of the stub.

    def died(self, exit: ProcessExit, restarts: bool) -> None:
        """The stub has ended: fail the batches that it ran, and also the others unless the instance restarts."""
        self.close()
        if self.timer is not None:
            self.timer.stop()
        for slots in self.retained.take_all():
            self._calls.free_unread(slots)
        self._reader.forget()
        failure = InferenceError(
            f"Stub process '{self._name}' is not healthy. It was lost while it ran this request: {exit.describe()}"
        )
        now_ns = time.monotonic_ns()
        batches = list(self._inflight.values())
        self._inflight.clear()
        running, behind = batches[: self._concurrency], [each.batch for each in batches[self._concurrency :]]
        if self._arrival is not None:
            behind.append(self._arrival.batch)
            self._arrival = None
        if restarts:  # before anything fails: what follows from a failure may cancel one of these
            for batch in reversed(behind):
                self._recall(batch)
        for inflight in running:
            for job in inflight.batch:
                slots, job.slots = job.slots, []
                self._calls.free_unread(slots)
                if job.serial in inflight.finished or job.serial in self._streams:
                    job.free()  # its execution has ended, although it is answered otherwise
                else:
                    self._fail(job, failure, now_ns)
        for job in self._overdue.values():
            slots, job.slots = job.slots, []
            self._calls.free_unread(slots)
            job.free()
        for serial, job in zip(list(self._streams.by_serial), self._streams.jobs(), strict=True):
            slots, job.slots = job.slots, []
            self._calls.free_unread(slots)
            self._streams.end(serial, failure)
        if not restarts:
            for batch in reversed(behind):
                for job in batch:
                    self._fail(job, failure, now_ns)
        self._notify_if_idle()
