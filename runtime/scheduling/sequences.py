# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Assigns sequences to slots of instances, and orders their requests. (pure)

A sequence begins with a request that has the START flag and ends with one that has END. From its first executed request
to its last one it has a slot of an instance, so that its model can keep state for it. Its requests are executed one
after the other, in order of arrival.

*The backlog* contains the sequences without a slot, in order of arrival. The model's configuration may limit how many
these are. A free slot goes to the first of them, on the
instance with the most free slots. A sequence that begins again after its own end goes to the end of the backlog. START
in the middle of a sequence begins it again, in its slot.

An instance that *leaves* gets no more sequences. It keeps those that have begun until they end or begin again.

A sequence is *idle* if it has a slot and no request, neither waiting nor running. After `max_idle_us` it ends. In the
backlog timeouts apply instead, those of clients and that of the configuration: the first one of any waiting request
ends the sequence. A sequence also ends
if a waiting request is cancelled, or if its instance dies, unless its next request has START anyway, or the model is
told nothing of it: a request of an iterative model without controls and states is executed again by another instance.

A sequence is *abandoned* if it ends without END while its instance goes on: it was idle for too long, or a waiting
request was cancelled. `take_abandoned` says so, for the model.

This module only decides; sequence_scheduler.py runs it. Times are in seconds, on one clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeVar

from pyruntime.runtime.config.spec import SequenceBatchingSpec
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.execution.states import SequenceStates
from pyruntime.runtime.scheduling.policy_queue import QueueFull
from pyruntime.runtime.scheduling.sequence_batches import Strategy, strategy_of
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START

# The most sequences of one model, with and without slots. Each has a slot or a waiting request, so there are not many
# more than clients. Only a client that begins sequences and never waits for responses reaches this limit.
SEQUENCES_MAX = 1 << 16

# The number of obsolete deadlines that may stay in the heap, because removing so few costs more than keeping them.
DEADLINES_KEPT = 64


# An instance: any key.
K = TypeVar("K")


class JobSequence:
    """One sequence. `place` is the instance of its slot, None in the backlog; `running` is the request in execution.

    `is_ended`: its last request has arrived, and only START may follow. `is_single`: it ends with its first request,
    because no client knows its id. `is_over`: it is removed, and exists only until its running request ends.
    `runs_start`: the running request, or the last one that ran, had START. `has_run`: its model has executed a request.
    """

    __slots__ = (
        "deadline_s",
        "has_run",
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
        self.is_ended = self.is_over = self.runs_start = self.has_run = False
        self.waiting: deque[Job] = deque()
        self.running: Job | None = None
        self.place: InstanceSlots | None = None
        self.slot = 0
        self.deadline_s = inf
        self.states: SequenceStates | None = None

    def __repr__(self) -> str:
        return f"<JobSequence {self.id!r} [{len(self.waiting)} waiting, {int(self.running is not None)} running]>"

    def drop_states(self) -> None:
        """Forget the implicit states, and free their memory."""
        states, self.states = self.states, None
        if states is not None:
            states.drop()


class InstanceSlots:
    """The slots of one instance and their sequences. Only a ready instance that stays gets more sequences.

    `abandoned` are the ids of abandoned sequences, until they are taken.
    """

    __slots__ = ("abandoned", "free", "is_leaving", "is_ready", "sequences", "strategy")

    def __init__(self, strategy: Strategy, slots: int, is_ready: bool) -> None:
        self.strategy = strategy
        self.is_ready = is_ready
        self.is_leaving = False
        # A model has no more sequences than that.
        self.free = list(range(min(slots, SEQUENCES_MAX)))
        self.abandoned: list[int | str] = []
        self.sequences: dict[JobSequence, None] = {}


class Sequences(Generic[K]):
    """The sequences of one model version. Its length is the number of waiting requests."""

    def __init__(self, model_name: str, max_batch_size: int, batching: SequenceBatchingSpec) -> None:
        self._model_name = model_name
        self._max_batch_size = max_batch_size
        self._batching = batching
        self._max_idle_s = batching.max_idle_us / 1e6
        self._backlog_max = batching.backlog.max_queue_size or SEQUENCES_MAX
        self._backlog_s = batching.backlog.default_timeout_us / 1e6 or inf
        # Whether a model may keep something of a sequence that no client knows: otherwise it is not told of it.
        self._tells_of_single = bool(batching.controls or batching.states)
        self._instances: dict[K, InstanceSlots] = {}
        self._known: dict[int | str, JobSequence] = {}
        self._backlog: OrderedDict[JobSequence, None] = OrderedDict()
        # The idle sequences with the times since when; the longest first.
        self._idle: dict[JobSequence, float] = {}
        # A heap of the deadlines of sequences in the backlog; the number breaks ties, because sequences have no order.
        # An entry that differs from its sequence's `deadline_s` is obsolete.
        self._deadlines: list[tuple[float, int, JobSequence]] = []
        self._numbers = count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __repr__(self) -> str:
        return f"<Sequences [{len(self._known)} known, {len(self._backlog)} in the backlog | {self._waiting} queued]>"

    def serve(self, ready: Mapping[K, bool]) -> None:
        """Set the instances that get sequences, each with whether it is ready. All others leave: see `take_left`."""
        for instance, slots in self._instances.items():
            if instance not in ready:
                slots.is_leaving = True
                # The last one first, because each goes to the front: the backlog then has the original order.
                for sequence in reversed(list(slots.sequences)):
                    if sequence.running is None and sequence.waiting and sequence.waiting[0].is_start:
                        self._unseat(sequence)
        batching = self._batching
        for instance, is_ready in ready.items():
            if instance not in self._instances:
                strategy = strategy_of(self._max_batch_size, batching)
                self._instances[instance] = InstanceSlots(strategy, batching.slots, is_ready)
        self._fill()

    def take_left(self) -> list[K]:
        """Remove and return the instances that leave and have no sequences any more."""
        left = [each for each, slots in self._instances.items() if slots.is_leaving and not slots.sequences]
        for instance in left:
            del self._instances[instance]
        return left

    def check(self, job: Job) -> bool:
        """Validate a job before `submit`. Returns whether it begins again a sequence that has not ended.

        Raises InferenceError or QueueFull if it is refused.
        """
        name, options = self._model_name, job.options
        sequence_id, is_start = options.correlation_id, options.flags & SEQUENCE_START
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
        if not goes_on and not is_start:
            raise InferenceError(
                f"inference request for sequence {sequence_id} to model '{name}' must specify the START flag on the "
                "first request of the sequence",
                Code.INVALID_ARG,
            )
        if sequence is None and (len(self._known) >= SEQUENCES_MAX or len(self._backlog) >= self._backlog_max):
            raise QueueFull
        return goes_on and bool(is_start)

    def submit(self, job: Job, is_single: bool = False) -> None:
        """Queue a job that `check` has accepted. `is_single` if no other job can belong to its sequence."""
        sequence_id, flags = job.options[:2]
        sequence = self._known.get(sequence_id)
        if sequence is None:
            sequence = self._known[sequence_id] = JobSequence(sequence_id, is_single)
            self._backlog[sequence] = None
        job.sequence = sequence
        sequence.is_ended = bool(flags & SEQUENCE_END)
        sequence.waiting.append(job)
        self._waiting += 1
        self._idle.pop(sequence, None)
        if sequence.place is not None:
            if sequence.running is None and len(sequence.waiting) == 1:
                self._go_on(sequence)
            return
        self._fill()
        if sequence.place is None:
            self._note_deadline(sequence, job)

    def take(self, instance: K, now: float) -> list[Job | None] | None:
        """Remove and return the next batch for an instance, with None for padding; None if none is due yet."""
        batch = self._instances[instance].strategy.take(now)
        if batch is not None:
            for job in batch:
                if job is not None:
                    sequence = sequence_of(job)
                    sequence.waiting.popleft()
                    sequence.running = job
                    sequence.runs_start = bool(job.options.flags & SEQUENCE_START)
                    self._waiting -= 1
        return batch

    def done(self, job: Job, now: float) -> None:
        """A job has been executed, or failed. No effect for a job that was not taken."""
        sequence = sequence_of(job)
        if sequence.running is not job:
            return
        sequence.running = None
        sequence.has_run = True
        is_end = job.options.flags & SEQUENCE_END
        if sequence.is_over:
            self._vacate(sequence)
        elif (is_end or sequence.is_single) and not sequence.waiting:
            self._end(sequence)
        elif is_end:
            self._vacate(sequence)
            self._to_backlog(sequence)
        elif sequence.waiting:
            self._go_on(sequence)
        else:
            self._idle[sequence] = now
        if self._backlog:  # mostly empty, and every request calls this
            self._fill()

    def put_back(self, job: Job, has_run: bool = False) -> bool:
        """Queue a job again that never started or is rescheduled (`has_run`), before the other jobs of its sequence.

        False if its sequence has ended: the caller must then fail the job.
        """
        sequence = sequence_of(job)
        if sequence.is_over or sequence.running is not job:
            self.done(job, job.arrived_s)
            return False
        sequence.running = None
        sequence.has_run = sequence.has_run or has_run
        sequence.waiting.appendleft(job)
        self._waiting += 1
        self._go_on(sequence)
        return True

    def give_up(self, job: Job) -> None:
        """A job is cancelled, although its model wants to execute it again. Call `done` as well.

        No other request can follow if the sequence is its own, so that is abandoned.
        """
        sequence = sequence_of(job)
        if sequence.running is job and sequence.is_single and sequence.place is not None:
            sequence.place.abandoned.append(sequence.id)

    def cancel(self, job: Job) -> list[Job]:
        """End the sequence of a waiting job. Returns the jobs to fail; empty if the job does not wait."""
        if job.sequence is None:
            return []
        sequence = sequence_of(job)
        if job not in sequence.waiting:
            return []
        self._abandon(sequence)
        failed = self._end(sequence)
        self._fill()
        return failed

    def take_abandoned(self) -> list[tuple[K, list[int | str]]]:
        """Remove and return the ids of abandoned sequences, of each instance that has any. See the module."""
        taken = []
        for instance, slots in self._instances.items():
            if slots.abandoned:
                taken.append((instance, slots.abandoned))
                slots.abandoned = []
        return taken

    def drain(self) -> list[Job]:
        """End all sequences, and return the jobs to fail."""
        return [job for sequence in list(self._known.values()) for job in self._end(sequence)]

    def readiness(self, instance: K, is_ready: bool) -> list[Job]:
        """An instance became ready, or has died. Returns the jobs to fail because their sequences died with it."""
        slots = self._instances[instance]
        slots.is_ready = is_ready
        failed = []
        if not is_ready:
            # The last one first, because each goes to the front: the backlog then has the original order.
            for sequence in reversed(list(slots.sequences)):
                sequence.running = None
                if sequence.is_over:
                    self._vacate(sequence)
                elif sequence.waiting and (sequence.waiting[0].is_start or self._is_unknown(sequence)):
                    self._unseat(sequence)
                else:
                    failed += self._end(sequence)
        self._fill()
        return failed

    def expire(self, now: float) -> list[Job]:
        """End sequences that were idle or in the backlog for too long, and return the jobs to fail."""
        failed = []
        for sequence, since in list(self._idle.items()):
            if since + self._max_idle_s > now:
                break
            self._abandon(sequence)
            self._end(sequence)
        while (deadline := self._next_deadline()) is not None and deadline <= now:
            failed += self._end(heappop(self._deadlines)[2])
        self._fill()
        return failed

    def expires_at(self) -> float | None:
        """The earliest time at which `expire` may end a sequence; None if there is none."""
        deadline_s = self._next_deadline() if self._deadlines else None
        for since in self._idle.values():  # only the longest
            idle_s = since + self._max_idle_s
            return idle_s if deadline_s is None or idle_s < deadline_s else deadline_s
        return deadline_s

    def due_at(self, instance: K) -> float | None:
        """The latest time at which `take` returns a batch for an instance; None if it has no requests."""
        return self._instances[instance].strategy.wake_at()

    # Slots.

    def _fill(self) -> None:
        """Give free slots to sequences of the backlog."""
        while self._backlog:
            place = max(
                (each for each in self._instances.values() if each.is_ready and each.free and not each.is_leaving),
                key=lambda each: len(each.free),
                default=None,
            )
            if place is None:
                return
            sequence, _ = self._backlog.popitem(last=False)
            sequence.place = place
            # The lowest slot, because a direct batch has a row for every slot up to the last request.
            sequence.slot = heappop(place.free)
            sequence.deadline_s = inf
            place.sequences[sequence] = None
            self._offer(sequence)

    def _is_unknown(self, sequence: JobSequence) -> bool:
        """Whether the instance of a sequence cannot know of it, so that another one may go on."""
        return sequence.is_single and not self._tells_of_single

    def _vacate(self, sequence: JobSequence) -> None:
        place, sequence.place = sequence.place, None
        if place is not None:
            sequence.drop_states()
            del place.sequences[sequence]
            heappush(place.free, sequence.slot)

    def _unseat(self, sequence: JobSequence) -> None:
        """Return a sequence, which begins with its next request, to the front of the backlog."""
        assert sequence.place is not None  # the callers found it in a slot
        sequence.place.strategy.withdraw(sequence.waiting[0], sequence.slot)
        self._vacate(sequence)
        self._to_backlog(sequence)
        self._backlog.move_to_end(sequence, last=False)

    def _go_on(self, sequence: JobSequence) -> None:
        """Offer the next request of a sequence. One that begins again does not stay with an instance that leaves."""
        place = sequence.place
        if place is not None and place.is_leaving and sequence.waiting[0].is_start:
            self._vacate(sequence)
            self._to_backlog(sequence)
            self._fill()
        else:
            self._offer(sequence)

    def _offer(self, sequence: JobSequence) -> None:
        if sequence.place is not None:
            sequence.place.strategy.offer(sequence.waiting[0], sequence.slot)

    def _to_backlog(self, sequence: JobSequence) -> None:
        self._backlog[sequence] = None
        sequence.has_run = False
        for job in sequence.waiting:
            self._note_deadline(sequence, job)

    def _note_deadline(self, sequence: JobSequence, job: Job) -> None:
        deadline_s = job.arrived_s + min(job.timeout_s or inf, self._backlog_s)
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

    def _abandon(self, sequence: JobSequence) -> None:
        """Note that a sequence, which is to be ended, has begun in its slot and will have no END."""
        running = sequence.running
        has_begun = sequence.has_run if running is None else not running.is_end
        if sequence.place is not None and has_begun:
            sequence.place.abandoned.append(sequence.id)

    def _end(self, sequence: JobSequence) -> list[Job]:
        """Remove a sequence, and return its waiting jobs. Its slot becomes free at once, or after the running job."""
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
