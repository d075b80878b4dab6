# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which sequences there are, which slot of which instance each has, and which of their requests is next. (pure)

A sequence begins with a request that has the START flag and ends with one that has END. From its first request that
is executed to its last one it has a slot of an instance, so that its model may keep something for it. Its requests are
executed one after the other, in order of arrival.

*The backlog* are the sequences without a slot, in order of arrival. A free slot goes to the first of them, on the
instance that has most of them free. A sequence that begins again behind its own end goes to the end of the backlog.
START in the midst of a sequence begins it again, in the slot that it has.

*Idle* is a sequence with a slot and no request, neither waiting nor being executed. After `max_idle_us` it is over,
as if it had ended. In the backlog a client's timeout counts instead: of any request that waits there it is the end of
the sequence. Cancelling a request that waits is the end of its sequence too, and so is the death of its instance,
unless the request that is next begins it anyway.

This module decides, it does not run anything: see sequence_scheduler.py. Times are in seconds, on one clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from pyruntime.runtime.config.spec import SequenceBatchingSpec
from pyruntime.runtime.scheduling.batcher import QueueFull
from pyruntime.runtime.scheduling.job import Job
from pyruntime.runtime.scheduling.sequence_batches import Strategy, strategy_of
from pyruntime.runtime.scheduling.states import SequenceStates
from pyruntime.utils.errors import Code, InferenceError

# Sequences of one model, with a slot or without. All of them have slots or requests that wait, so that there are never
# many more than clients; beyond this somebody begins sequences and does not wait for any of them.
SEQUENCES_MAX = 1 << 16

# Deadlines of no meaning that are not looked for: as many are cheaper to keep.
DEADLINES_KEPT = 64


class JobSequence:
    """One sequence. `place` is where its slot is, None in the backlog; `running` is the request that an instance has.

    `is_ended`: its last request has come, and only START may follow. `is_single`: it is over with its first request,
    since no client knows its id. `is_over`: it is unknown already, and goes with what is running. `runs_start`: what is
    running, or was last, was given to its model as the start.
    """

    __slots__ = (
        "deadline_s",
        "id",
        "is_ended",
        "is_over",
        "is_single",
        "place",
        "running",
        "runs_start",
        "slot",
        "states",
        "waiting",
    )

    def __init__(self, id: int | str, is_single: bool) -> None:
        self.id = id
        self.is_single = is_single
        self.is_ended = self.is_over = self.runs_start = False
        self.waiting: deque[Job] = deque()
        self.running: Job | None = None
        self.place: InstanceSlots | None = None
        self.slot = 0
        self.deadline_s = inf
        self.states: SequenceStates | None = None

    def __repr__(self) -> str:
        return f"<JobSequence {self.id!r} [{len(self.waiting)} waiting, {int(self.running is not None)} running]>"


class InstanceSlots:
    """The slots of one instance, and the sequences that have them. Only one that is ready is given more."""

    __slots__ = ("free", "is_ready", "sequences", "strategy")

    def __init__(self, strategy: Strategy, slots: int, is_ready: bool) -> None:
        self.strategy = strategy
        self.is_ready = is_ready
        self.free = list(range(slots))
        self.sequences: dict[JobSequence, None] = {}


class Sequences:
    """The sequences of one model version. Its length is how many requests wait."""

    def __init__(self, model_name: str, max_batch_size: int, batching: SequenceBatchingSpec) -> None:
        self._model_name = model_name
        self._max_batch_size = max_batch_size
        self._batching = batching
        self._max_idle_s = batching.max_idle_us / 1e6
        self._instances: list[InstanceSlots] = []
        self._known: dict[int | str, JobSequence] = {}
        self._backlog: OrderedDict[JobSequence, None] = OrderedDict()
        # Those that are idle, and since when; the longest first.
        self._idle: dict[JobSequence, float] = {}
        # When a sequence in the backlog is over, with a number since sequences have no order. A sequence may have got a
        # slot meanwhile, or an earlier deadline: what its `deadline_s` does not say any more is of no meaning.
        self._deadlines: list[tuple[float, int, JobSequence]] = []
        self._numbers = count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __repr__(self) -> str:
        return f"<Sequences [{len(self._known)} known, {len(self._backlog)} in the backlog | {self._waiting} queued]>"

    def serve(self, ready: Sequence[bool]) -> None:
        """There are so many instances, and these of them are ready."""
        batching = self._batching
        self._instances = [
            InstanceSlots(strategy_of(self._max_batch_size, batching), batching.slots, is_ready) for is_ready in ready
        ]
        self._fill()

    def check(self, job: Job) -> bool:
        """Whether the job begins a sequence anew that has not ended. Raises InferenceError, QueueFull if it is refused.

        A job that is not refused may be given to `submit`.
        """
        name, sequence_id = self._model_name, job.sequence_id
        if job.rows > 1:
            raise InferenceError(
                f"inference request to model '{name}' must specify batch-size 1 due to requirements of sequence "
                "batcher",
                Code.INVALID_ARG,
            )
        if not sequence_id:
            raise InferenceError(
                f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID",
                Code.INVALID_ARG,
            )
        sequence = self._known.get(sequence_id)
        goes_on = sequence is not None and not sequence.is_ended
        if not goes_on and not job.is_start:
            raise InferenceError(
                f"inference request for sequence {sequence_id} to model '{name}' must specify the START flag on the "
                "first request of the sequence",
                Code.INVALID_ARG,
            )
        if sequence is None and len(self._known) >= SEQUENCES_MAX:
            raise QueueFull
        return goes_on and job.is_start

    def submit(self, job: Job, is_single: bool = False) -> None:
        """Queue a job that `check` has let pass. `is_single` if no other one can belong to its sequence."""
        sequence = self._known.get(job.sequence_id)
        if sequence is None:
            sequence = self._known[job.sequence_id] = JobSequence(job.sequence_id, is_single)
            self._backlog[sequence] = None
        job.sequence = sequence
        sequence.is_ended = job.is_end
        sequence.waiting.append(job)
        self._waiting += 1
        self._idle.pop(sequence, None)
        if sequence.place is not None:
            if sequence.running is None and len(sequence.waiting) == 1:
                self._offer(sequence)
            return
        self._fill()
        if sequence.place is None:
            self._note_deadline(sequence, job)

    def take(self, instance: int, now: float) -> list[Job | None] | None:
        """The next batch for an instance, None in place of padding; None if there is nothing to execute yet."""
        batch = self._instances[instance].strategy.take(now)
        if batch is not None:
            for job in batch:
                if job is not None:
                    sequence = sequence_of(job)
                    sequence.waiting.popleft()
                    sequence.running = job
                    sequence.runs_start = job.is_start
                    self._waiting -= 1
        return batch

    def done(self, job: Job, now: float) -> None:
        """A job has been executed, or failed. Without effect for one that was not taken."""
        sequence = sequence_of(job)
        if sequence.running is not job:
            return
        sequence.running = None
        if sequence.is_over:
            self._vacate(sequence)
        elif (job.is_end or sequence.is_single) and not sequence.waiting:
            self._end(sequence)
        elif job.is_end:
            self._vacate(sequence)
            self._to_backlog(sequence)
        elif sequence.waiting:
            self._offer(sequence)
        else:
            self._idle[sequence] = now
        self._fill()

    def put_back(self, job: Job) -> bool:
        """Queue a job again, before the others of its sequence, that never started or is to be executed once more.

        False if its sequence is over: then the job has to fail.
        """
        sequence = sequence_of(job)
        if sequence.is_over or sequence.running is not job:
            self.done(job, job.arrived_s)
            return False
        sequence.running = None
        sequence.waiting.appendleft(job)
        self._waiting += 1
        self._offer(sequence)
        return True

    def cancel(self, job: Job) -> list[Job]:
        """End the sequence of a job that waits: the jobs that have to fail. None if it does not wait."""
        if job.sequence is None:
            return []
        sequence = sequence_of(job)
        if job not in sequence.waiting:
            return []
        failed = self._end(sequence)
        self._fill()
        return failed

    def drain(self) -> list[Job]:
        """End all sequences: the jobs that have to fail."""
        return [job for sequence in list(self._known.values()) for job in self._end(sequence)]

    def readiness(self, instance: int, is_ready: bool) -> list[Job]:
        """An instance is ready, or has died: the jobs that have to fail because their sequences died with it."""
        slots = self._instances[instance]
        slots.is_ready = is_ready
        failed = []
        if not is_ready:
            # The last one first: so they are in the backlog in the order in which they came.
            for sequence in reversed(list(slots.sequences)):
                sequence.running = None
                if sequence.is_over:
                    self._vacate(sequence)
                elif sequence.waiting and sequence.waiting[0].is_start:
                    slots.strategy.withdraw(sequence.waiting[0], sequence.slot)
                    self._vacate(sequence)
                    self._to_backlog(sequence)
                    self._backlog.move_to_end(sequence, last=False)
                else:
                    failed += self._end(sequence)
        self._fill()
        return failed

    def expire(self, now: float) -> list[Job]:
        """End what has been idle for too long, or waits in the backlog for too long: the jobs that have to fail."""
        failed = []
        for sequence, since in list(self._idle.items()):
            if since + self._max_idle_s > now:
                break
            self._end(sequence)
        while (deadline := self._next_deadline()) is not None and deadline <= now:
            failed += self._end(heappop(self._deadlines)[2])
        self._fill()
        return failed

    def expires_at(self) -> float | None:
        """When `expire` has something to do at the earliest; None if never."""
        times = [self._next_deadline(), *[since + self._max_idle_s for since in list(self._idle.values())[:1]]]
        return min((time for time in times if time is not None), default=None)

    def due_at(self, instance: int) -> float | None:
        """When `take` answers a batch for an instance at the latest; None if nothing is there for it."""
        return self._instances[instance].strategy.wake_at()

    # Slots.

    def _fill(self) -> None:
        """Give free slots to sequences of the backlog."""
        while self._backlog:
            place = max(
                (each for each in self._instances if each.is_ready and each.free),
                key=lambda each: len(each.free),
                default=None,
            )
            if place is None:
                return
            sequence, _ = self._backlog.popitem(last=False)
            sequence.place = place
            # The lowest one, so that batches by slot are short.
            sequence.slot = heappop(place.free)
            sequence.deadline_s = inf
            place.sequences[sequence] = None
            self._offer(sequence)

    def _vacate(self, sequence: JobSequence) -> None:
        place, sequence.place = sequence.place, None
        if place is not None:
            del place.sequences[sequence]
            heappush(place.free, sequence.slot)

    def _offer(self, sequence: JobSequence) -> None:
        if sequence.place is not None:
            sequence.place.strategy.offer(sequence.waiting[0], sequence.slot)

    def _to_backlog(self, sequence: JobSequence) -> None:
        self._backlog[sequence] = None
        for job in sequence.waiting:
            self._note_deadline(sequence, job)

    def _note_deadline(self, sequence: JobSequence, job: Job) -> None:
        deadline_s = job.arrived_s + (job.timeout_s or inf)
        if deadline_s < sequence.deadline_s:
            sequence.deadline_s = deadline_s
            heappush(self._deadlines, (deadline_s, next(self._numbers), sequence))
            if len(self._deadlines) > 2 * len(self._backlog) + DEADLINES_KEPT:
                self._deadlines = [each for each in self._deadlines if each[0] == each[2].deadline_s]
                heapify(self._deadlines)

    def _next_deadline(self) -> float | None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] != deadlines[0][2].deadline_s:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _end(self, sequence: JobSequence) -> list[Job]:
        """Forget a sequence: what it has that waits. Its slot is free at once, or when what is running is done."""
        waiting = list(sequence.waiting)
        sequence.waiting.clear()
        self._waiting -= len(waiting)
        sequence.is_over = True
        sequence.deadline_s = inf
        del self._known[sequence.id]
        self._idle.pop(sequence, None)
        self._backlog.pop(sequence, None)
        if sequence.running is None:
            if waiting and sequence.place is not None:
                sequence.place.strategy.withdraw(waiting[0], sequence.slot)
            self._vacate(sequence)
        return waiting


def sequence_of(job: Job) -> JobSequence:
    """The sequence of a job that was submitted to `Sequences`."""
    assert isinstance(job.sequence, JobSequence)
    return job.sequence
