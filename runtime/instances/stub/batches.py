# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches that are with one stub, from its first to its death.

Some batches may be with the stub at a time, so that it need not wait for the host between them. The stub answers one
before it starts the next; so after a death the first unanswered batch is what was running, and it fails, while those
behind it had not begun and go back to the scheduler. Nothing is lost and nothing runs twice. A stub that executes in
several threads is given no more than those can run.

Requests that are to be answered by a sender live on after their batch: see streams.py.

How the stub came to be, and what follows its death, is the instance's business: see python.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pyruntime.runtime.instances.codec import ResponseReader, as_outcome, not_reschedulable
from pyruntime.runtime.instances.deadlock import FREE, Waiting
from pyruntime.runtime.instances.instance_spec import Batch, Owner, StubInstanceSpec
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.inflight_batch import Calls as CallsOfBatch
from pyruntime.runtime.instances.stub.inflight_batch import InflightBatch
from pyruntime.runtime.instances.stub.streams import Streams
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.memory.requests import SharedSlot
from pyruntime.runtime.observe.statistics import reason_of
from pyruntime.runtime.requests.types import InferResponse, Slot, free_slots
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import InferenceError, LocalError, PeerError
from pyruntime.utils.messages import FLAGS, SEQUENCE_START, Failed, Requeue, Respond, Result, Retired
from pyruntime.utils.regions import FLAGS_BYTES

# One batch runs, one waits behind it: without the second, a third of the throughput is lost.
PLACES_MIN = 2
# Batches that run for microseconds are worth more: every wake-up of the host or the stub then serves several of them,
# which halves the CPU per request. But what is posted to one instance cannot move to another that becomes idle first,
# so no more is posted than the stub works off in AHEAD_NS_MAX.
PLACES_MAX = 8
AHEAD_NS_MAX = 500_000
# How much the latest batch counts in the average duration: an eighth.
_AVERAGE_SHIFT = 3


class InflightBatches:
    """See the module. `places` is how many more batches the stub takes now."""

    def __init__(self, plan: StubInstanceSpec, connection: StubConnection, owner: Owner) -> None:
        self.places = 0
        # Who makes calls waits for other models, and what waits behind it had better wait elsewhere.
        self.makes_calls = False
        # Called when all jobs of a running batch are cancelled.
        self.on_cancelled: Callable[[int], None] = lambda number: None
        # The calls that a batch waits for: see posted.py.
        self.waiting_calls: Callable[[int], CallsOfBatch] = lambda number: ()
        # Frees request memory that a dead stub leaves, as soon as nobody reads it.
        self.free: Callable[[list[Slot]], None] = free_slots
        self._plan = plan
        self._connection = connection
        self._owner = owner
        self._reader = ResponseReader(plan.spec, plan.version, connection.responses, connection.release)
        self._posted: dict[int, InflightBatch] = {}
        self._streams = Streams(connection, plan.statistics, plan.spec.decoupled)
        self._retained: dict[int, list[Slot]] = {}
        # Serials of requests whose flags are set.
        self._flagged: set[int] = set()
        self._open = False
        self._serial = 1
        self._last_end_ns = 0
        self._average_ns = AHEAD_NS_MAX
        self._when_idle: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._posted) + len(self._streams)

    def workers(self) -> Sequence[Waiting]:
        """Who executes its batches: see deadlock.py. Where a thread is idle, that one stands for all."""
        posted = list(self._posted.values())[: self._plan.concurrency]
        return posted if len(posted) == self._plan.concurrency else (FREE,)

    def worker_of(self, job: Job) -> Waiting:
        """See scheduling.job.Running. What waits behind a batch waits for that."""
        posted = self._posted_with(job.serial)
        if posted is None:
            return FREE
        return posted[1] if self._plan.concurrency > 1 else next(iter(self._posted.values()))

    @property
    def running(self) -> bool:
        """Whether there are batches whose execute has not returned."""
        return bool(self._posted)

    @property
    def waiting(self) -> int:
        """How many requests are with the stub, behind those that it executes."""
        behind = list(self._posted.values())[self._plan.concurrency :]
        return sum(len(posted.batch) for posted in behind)

    def open(self) -> None:
        """The stub serves: it takes batches from now on."""
        self._open = True
        self.places = self._places()

    def close(self, when_idle: Callable[[], None] | None = None) -> None:
        """The stub takes no more batches: it is to stop, or has hung up. `when_idle`: every request is answered."""
        self._open = False
        self.places = 0
        self._when_idle = when_idle or self._when_idle  # a stub that hangs up may have been told to stop before
        self._check_idle()

    def execute(self, batch: Batch) -> None:
        """Post a batch. The instance must have a place. Every job's `respond` will be called, whatever happens."""
        serial = self._serial
        sent_ns = time.monotonic_ns()
        try:
            for job in batch:
                for region in job.regions:
                    self._connection.grant(region)
            self._connection.infer(serial, [job.wire for job in batch])
        except LocalError as exc:
            failure = InferenceError(f"the request cannot be sent to {self._plan.name}: {exc}")
            for job in batch:
                self._fail(job, failure, sent_ns)
            return
        self._posted[serial] = InflightBatch(serial, batch, sent_ns, self._plan.spec.name, self.waiting_calls)
        for job in batch:
            job.instance = self
            job.serial = serial
            serial += 1
        if self._flagged:  # one of these may have the flag of an older one that is cancelled
            for job in batch:
                self._clear_flag(job.serial)
        self._serial = serial
        self.places -= 1

    def cancel(self, job: Job) -> None:
        """See scheduling.job.Running. The model may look, or not; it goes on either way."""
        serial = job.serial
        posted = self._posted_with(serial)
        is_over = serial not in self._streams and (posted is None or serial in posted[1].finished)
        if job.cancelled or is_over:
            return
        job.cancelled = True
        if not self._shares_flag(job):
            self._flagged.add(serial)
            self._connection.set_flag(serial, 1)
        if posted is not None and all(each.cancelled for each in posted[1].batch):
            self.on_cancelled(posted[0])

    def _shares_flag(self, job: Job) -> bool:
        """Whether another request is with the stub whose flag is the same: that one is not cancelled."""
        others = [each for posted in self._posted.values() for each in posted.batch] + self._streams.jobs()
        return any(each is not job and (each.serial - job.serial) % FLAGS_BYTES == 0 for each in others)

    # What the stub says while it serves. All of these raise PeerError.

    def answered(self, message: Result | Failed) -> None:
        """Execute has returned."""
        number = message.batch
        posted = self._posted.get(number)
        if posted is None or not self._is_running(number):
            raise PeerError(f"batch {number} is answered and is not the one that is due")
        batch = posted.batch
        # Reading the answer may still find it to be nonsense, so the batch counts as running until that is done.
        outcomes: list[Any] = (
            [InferenceError(message.message)] * len(batch)
            if isinstance(message, Failed)
            else self._reader.responses(batch, message.responses)
        )
        if message.retained:
            self._retain(number, batch, message.retained)
        del self._posted[number]
        now_ns = time.monotonic_ns()
        begin_ns, start_ns, end_ns = posted.sent_ns, message.start_ns, message.end_ns
        if begin_ns < self._last_end_ns and self._plan.concurrency == 1:  # it waited behind another
            begin_ns = posted.sent_ns = self._last_end_ns
        if not begin_ns <= start_ns <= end_ns <= now_ns:  # a stub may say anything
            start_ns = end_ns = now_ns
        self._last_end_ns = end_ns
        input_ns, infer_ns, output_ns = start_ns - begin_ns, end_ns - start_ns, now_ns - end_ns
        self._average_ns += (infer_ns - self._average_ns) >> _AVERAGE_SHIFT
        if self._open:
            self.places = self._places() - len(self._posted)
        statistics = self._plan.statistics
        rows = 0
        plain = not posted.finished and not len(self._streams)
        for job, outcome in zip(batch, outcomes, strict=True):
            rows += job.rows
            if job.trace is not None:
                job.trace.executed(begin_ns, start_ns, end_ns)
            if (type(outcome) is not InferResponse or not plain) and self._settle(job, outcome, posted, now_ns):
                continue
            if job.cancelled:
                self._clear_flag(job.serial)
            arrived_ns = job.arrived_ns
            if not job.is_padding:
                statistics.success(
                    job.rows, begin_ns - arrived_ns, input_ns, infer_ns, output_ns, now_ns - arrived_ns
                )  # fmt: skip
            job.free()
            job.respond(outcome, True)
        statistics.execution(rows, input_ns, infer_ns, output_ns, time.time_ns() // 1_000_000)
        self._owner.place_freed()
        if self._when_idle is not None:
            self._check_idle()

    def responded(self, message: Respond) -> None:
        """A sender has sent a response, during execute or after it."""
        serial = message.serial
        posted = None
        if serial not in self._streams:
            posted = self._posted_with(serial)
            if posted is None or serial in posted[1].finished or not self._is_running(posted[0]):
                raise PeerError(f"request {serial} is answered and is not open")
            number, record = posted
            if self._plan.concurrency == 1:
                record.sent_ns = max(record.sent_ns, self._last_end_ns)
            self._streams.open(serial, record.batch[serial - number], record.sent_ns)
        job = self._streams.job(serial)
        outcome, size = None if message.response is None else self._reader.response(job, message.response), 0
        if type(outcome) is InferResponse:
            size = sum(output.byte_size for output in outcome.outputs)
        if message.final:
            posted = posted or self._posted_with(serial)
            if posted is not None:
                posted[1].finished.add(serial)
            self._clear_flag(serial)
        elif type(outcome) is InferResponse and self._plan.spec.decoupled:
            assert message.response is not None  # the outcome was read from it
            once = self._streams.once(serial, message.response[2], size)
            outcome.take, outcome.release = once.take, once.release
        self._streams.respond(serial, outcome, size, message.final)
        if self._when_idle is not None:
            self._check_idle()

    def put_back(self, message: Requeue) -> None:
        """Batches that have not begun, and will not."""
        self.makes_calls = True
        for number in reversed(message.batches):
            posted = self._posted.get(number) if type(number) is int else None
            if posted is None or posted.finished or any(job.serial in self._streams for job in posted.batch):
                raise PeerError(f"batch {number!r} is put back and is not there, or has begun")
            del self._posted[number]
            self._recall(posted.batch)
            self._owner.put_back(posted.batch)
        if self._open:
            self.places = self._places() - len(self._posted)
            self._owner.place_freed()  # the batch that waited may have ended meanwhile
        self._check_idle()

    def retired(self, message: Retired) -> None:
        """Requests that the model kept and has let go of."""
        for serial in message.requests:
            slots = self._retained.pop(serial, None) if type(serial) is int else None
            if slots is None:
                raise PeerError(f"request {serial!r} is retired and was not retained")
            free_slots(slots)

    def expects_calls(self) -> None:
        """The model has called another one."""
        if not self.makes_calls:
            self.makes_calls = True
            if self._open:
                self.places = self._places() - len(self._posted)

    def _places(self) -> int:
        """How many batches may be with the stub at a time."""
        if self._plan.concurrency > 1:
            return self._plan.concurrency
        # Where requests are batched, what waits had better wait in the queue: there it can still join a larger batch.
        if self.makes_calls or self._plan.spec.is_batched:
            return 1
        average_ns = self._average_ns
        if average_ns * PLACES_MAX <= AHEAD_NS_MAX:
            return PLACES_MAX
        return max(PLACES_MIN, AHEAD_NS_MAX // average_ns)

    # Settling answers.

    def _settle(self, job: Job, outcome: Any, posted: InflightBatch, now_ns: int) -> bool:
        """See to everything but a response that execute returned; False if it is that."""
        serial = job.serial
        if serial in posted.finished:
            if type(outcome) is InferResponse:
                outcome.release()
            job.free()
        elif serial in self._streams and type(outcome) is int and self._plan.spec.decoupled:
            self._streams.leave(serial)
            self._reschedule(job, now_ns)
        elif serial in self._streams:
            job.free()
            if outcome is not None:  # execute failed after a sender had begun
                self._clear_flag(serial)
                self._streams.end(serial, as_outcome(outcome))
        elif outcome is None:
            job.free()
            self._streams.open(serial, job, posted.sent_ns)
        elif type(outcome) is int:
            self._reschedule(job, now_ns)
        elif isinstance(outcome, InferenceError):
            self._fail(job, outcome, now_ns)
        else:
            return False
        return True

    def _fail(self, job: Job, failure: InferenceError, now_ns: int) -> None:
        if not job.is_padding:
            self._plan.statistics.failure(now_ns - job.arrived_ns, reason_of(failure, job.cancelled))
        self._clear_flag(job.serial)
        job.free()
        job.respond(failure, True)

    def _reschedule(self, job: Job, now_ns: int) -> None:
        if not self._plan.spec.iterative_sequence:
            self._fail(job, not_reschedulable(), now_ns)
            return
        job.wire[FLAGS] &= ~SEQUENCE_START
        self._recall([job])
        self._owner.reschedule(job)

    def _recall(self, batch: Batch) -> None:
        """These jobs are not with the stub any more, and have not begun."""
        for job in batch:
            self._clear_flag(job.serial)
            job.instance = None

    def _clear_flag(self, serial: int) -> None:
        """Nobody is to see a request as cancelled, though it may share its flag with one that is."""
        for flagged in [each for each in self._flagged if (each - serial) % FLAGS_BYTES == 0]:
            self._flagged.discard(flagged)
            self._connection.set_flag(serial, 0)

    def _is_running(self, number: int) -> bool:
        """Whether execute may have begun with this batch."""
        return self._plan.concurrency > 1 or number == next(iter(self._posted))

    def _posted_with(self, serial: int) -> tuple[int, InflightBatch] | None:
        for number, posted in self._posted.items():
            if number <= serial < number + len(posted.batch):
                return number, posted
        return None

    def _check_idle(self) -> None:
        if self._when_idle is not None and not self:
            when_idle, self._when_idle = self._when_idle, None
            when_idle()

    # Memory that a model holds on to, and death.

    def _retain(self, number: int, batch: Batch, indexes: list[Any]) -> None:
        """Move the slots of requests whose inputs the model kept out of reach, so that nothing overwrites them."""
        for index in indexes:
            if type(index) is not int or not 0 <= index < len(batch) or number + index in self._retained:
                raise PeerError(f"request {index!r} is retained and does not exist, or is retained twice")
            job = batch[index]
            if self._plan.spec.iterative_sequence:  # the job may need its memory again
                job.slots = [SharedSlot(slot) for slot in job.slots]
                self._retained[number + index] = list(job.slots)
            else:
                self._retained[number + index], job.slots = job.slots, []

    def died(self, exit: ProcessExit, restarts: bool) -> None:
        """The stub is gone: fail what it was running, and what it had not begun too unless the instance restarts."""
        self.close()
        for slots in self._retained.values():
            self.free(slots)
        self._retained.clear()
        failure = InferenceError(
            f"Stub process '{self._plan.name}' is not healthy. It was lost while it ran this request: {exit.describe()}"
        )
        now_ns = time.monotonic_ns()
        waiting = list(self._posted.items())
        self._posted.clear()
        running = waiting[: self._plan.concurrency]
        for number, posted in running:
            for serial, job in enumerate(posted.batch, number):
                slots, job.slots = job.slots, []
                self.free(slots)
                if serial not in posted.finished and serial not in self._streams:
                    self._fail(job, failure, now_ns)
        for serial in [job.serial for job in self._streams.jobs()]:
            self._streams.end(serial, failure)
        for _, posted in reversed(waiting[self._plan.concurrency :]):
            if restarts:
                self._recall(posted.batch)
                self._owner.put_back(posted.batch)
            else:
                for job in posted.batch:
                    self._fail(job, failure, now_ns)
        self._check_idle()
