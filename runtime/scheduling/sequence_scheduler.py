# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Drives the sequences of a model version: gives batches to instances, and arms one timer for all deadlines.

It adds to the requests what clients do not send: control inputs, and the implicit states of the sequence. It also
creates padding.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Protocol

from pyruntime.runtime.config.spec import ModelSpec, SequenceBatchingSpec, StateSpec
from pyruntime.runtime.execution.executor import Executor
from pyruntime.runtime.execution.job import Job, discard, tensor_refs
from pyruntime.runtime.execution.states import SequenceStates, StateMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.regions import SharedRegion
from pyruntime.runtime.requests.types import InferRequest, InputTensor, Slot
from pyruntime.runtime.scheduling.controls import Controls
from pyruntime.runtime.scheduling.response_order import ResponseOrder
from pyruntime.runtime.scheduling.scheduler import JobScheduler
from pyruntime.runtime.scheduling.sequences import Sequences, sequence_of
from pyruntime.utils.addresses import split
from pyruntime.utils.dtypes import BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions, TensorRef

_LOG = logging.getLogger("pyruntime.scheduling")

_EXPIRED = "timeout of the corresponding sequence has been expired"


class Memory(Protocol):
    """The request memory of the model."""

    region: SharedRegion

    def place(self, request: InferRequest) -> object:
        """See RequestMemory. Raises InferenceError."""

    def allocate(self, size: int, lead: int = 0, data: bytes | bytearray | memoryview | None = None) -> Slot:
        """See RequestMemory. Raises InferenceError."""


class SequenceScheduler(JobScheduler):
    """See the module. `batching` is the spec's own."""

    def __init__(
        self,
        spec: ModelSpec,
        batching: SequenceBatchingSpec,
        on_change: Callable[[], None],
        statistics: ModelStatistics,
        memory: Memory,
    ) -> None:
        super().__init__(spec, on_change, statistics)
        self._sequences: Sequences[Executor] = Sequences(spec.name, spec.max_batch_size, batching)
        self._controls = Controls(spec)
        self._states = batching.states
        self._memory = memory
        # All instances with slots: those that serve, and those that leave, with what tells that one has left.
        self._seated: Sequence[Executor] = ()
        self._leaving: dict[Executor, asyncio.Event] = {}
        # The order of each instance's responses, if it is to be kept.
        self._preserves_ordering = batching.preserve_ordering
        self._orders: dict[Executor, ResponseOrder] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._soon: asyncio.Handle | None = None

    def __len__(self) -> int:
        """See JobScheduler."""
        return len(self._sequences)

    def serve(self, instances: Sequence[Executor]) -> None:
        """See JobScheduler."""
        super().serve(instances)
        self._sequences.serve({instance: instance.is_ready for instance in instances})
        leaving = [instance for instance in self._seated if instance not in instances]
        self._seated = [*instances, *leaving]
        for instance in leaving:
            self._leaving.setdefault(instance, asyncio.Event())
        self._dispatch()

    @property
    def executors(self) -> Sequence[Executor]:
        """See JobScheduler."""
        return self._seated

    @property
    def has_full_order(self) -> bool:
        """Whether an instance begins no further request because too many of its responses are held."""
        return any(order.is_full for order in self._orders.values())

    async def wait_left(self, instance: Executor) -> None:
        """See JobScheduler. Its sequences end, expire, begin again elsewhere, or are lost with it."""
        if (left := self._leaving.get(instance)) is not None:
            await left.wait()

    def has_left(self, instance: Executor) -> bool:
        """See JobScheduler."""
        left = self._leaving.get(instance)
        return left is None or left.is_set()

    def hurry(self) -> None:
        """See JobScheduler."""
        for left in self._leaving.values():
            left.set()

    def submit(self, job: Job) -> None:
        """See JobScheduler. Raises InferenceError for a request without a sequence, or of one that has not begun."""
        is_single = self._spec.iterative_sequence and not job.sequence_id
        if is_single:
            job.begin_sequence(self._controls.own_id())
        if self._controls.names:
            self._controls.check(job.id, job.sequence_id)
        if self._sequences.check(job):
            _LOG.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                job.sequence_id,
                self._spec.name,
            )
        if self._controls.names:
            self._control(job)
        job.on_free = self._freed
        self._sequences.submit(job, is_single)
        if self._may_begin() or sequence_of(job).place is None:  # one in the backlog has a deadline
            self._dispatch()

    def take_turn(self, job: Job) -> None:
        """See JobScheduler. A model with sequences has no response cache, and executes all of its jobs."""

    def cancel(self, job: Job) -> None:
        """See JobScheduler. Cancels all waiting requests of the sequence."""
        for each in self._sequences.cancel(job):
            self._drop(each)
        self._tell_abandoned()
        self._dispatch()

    def fail_all(self, failure: InferenceError) -> None:
        """See JobScheduler."""
        for job in self._sequences.drain():
            self._fail(job, failure, FailureReason.OTHER)
        self._note_progress()

    def capacity_freed(self) -> None:
        """See JobScheduler."""
        self._dispatch()

    def put_back(self, batch: list[Job]) -> None:
        """See JobScheduler."""
        for job in batch:
            if job.is_padding:
                job.free()
            else:
                self._put_back(job)
        self._dispatch()

    def reschedule(self, job: Job) -> None:
        """See JobScheduler. The job goes before the other requests of its sequence."""
        if job.is_padding:
            job.free()
            return
        try:
            if job.sequence is not None and sequence_of(job).runs_start and not job.cancelled:
                self._control(job)  # without START now
        except InferenceError as failure:
            self._fail(job, failure, FailureReason.OTHER)
        else:
            if job.cancelled and job.sequence is not None:
                self._sequences.give_up(job)
                self._tell_abandoned()
            self._put_back(job, has_run=True)
        self._dispatch()

    def executor_changed(self) -> None:
        """See JobScheduler. The sequences of a dead instance end, because their state is lost."""
        for instance in self._seated:
            for job in self._sequences.readiness(instance, instance.is_ready):
                self._fail(job, self._lost(job), FailureReason.OTHER)
        self._note_progress()
        super().executor_changed()

    def _tell_abandoned(self) -> None:
        """Tell the models which sequences are abandoned, before they get requests of new ones with the same ids."""
        for instance, ids in self._sequences.take_abandoned():
            instance.drop_sequences(ids)

    def _put_back(self, job: Job, has_run: bool = False) -> None:
        self._queues_again(job)
        if job.cancelled:
            self._drop(job)
        elif not self._sequences.put_back(job, has_run):
            self._fail(job, self._lost(job), FailureReason.OTHER)

    def _lost(self, job: Job) -> InferenceError:
        return InferenceError(
            f"sequence {job.sequence_id} of model '{self._spec.name}' is lost with the instance that had it; it must "
            "be started again",
            Code.UNAVAILABLE,
        )

    # Batches.

    def _dispatch(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if len(self._sequences):  # mostly none waits when a batch has ended
            now = time.monotonic()
            for instance in self._seated:
                while self._begin(instance, now):
                    pass
        self._note_progress()
        self._arm()

    def _may_begin(self) -> bool:
        """Whether an instance may have to be told of a request. One without capacity asks for more when it has some."""
        for instance in self._seated:  # noqa: SIM110 - every request calls this, and a generator costs more
            if instance.inflight.capacity > 0:
                return True
        return False

    def _begin(self, instance: Executor, now: float) -> bool:
        """Give an instance the next batch of its sequences. Returns whether there was one that it could take."""
        order = self._orders.get(instance)
        if instance.inflight.capacity <= 0 or (order is not None and order.is_full):
            return False
        taken = self._sequences.take(instance, now)
        if taken is None:
            return False
        batch = self._completed(taken)
        if self._preserves_ordering:
            order = self._orders.setdefault(instance, ResponseOrder(self._dispatch))
            for job in batch:
                order.begin(job)
        if batch:
            instance.inflight.execute(batch)
        return True

    def _note_progress(self) -> None:
        """Tell those who wait until no request waits, or until an instance has left."""
        self._note_if_empty()
        if self._leaving:
            for instance in self._sequences.take_left():
                self._seated = [each for each in self._seated if each is not instance]
                self._leaving.pop(instance).set()
                self._orders.pop(instance, None)

    def _completed(self, taken: list[Job | None]) -> list[Job]:
        """The batch to execute, with states and padding. Empty if there is no memory for them."""
        jobs = [job for job in taken if job is not None]
        if len(jobs) == len(taken) and not self._states:
            return jobs
        batch: list[Job] = []
        try:
            if self._states:
                for job in jobs:
                    self._give_states(job)
            for each in taken:
                batch.append(each if each is not None else self._padding(jobs[0]))
        except InferenceError as failure:
            for padding in batch:
                if padding.is_padding:
                    padding.free()
            for job in jobs:
                self._fail(job, failure, FailureReason.OTHER)
            return []
        return batch

    def _give_states(self, job: Job) -> None:
        """Add the current states of its sequence to the inputs of a job; they replace earlier ones.

        Raises InferenceError.
        """
        sequence = sequence_of(job)
        if job.is_start or sequence.states is None:
            sequence.drop_states()
            sequence.states = SequenceStates(self._states, self._spec.name, self._copied)
        job.give_states(sequence.states)

    def _copied(self, state: StateSpec) -> tuple[int, StateMemory]:
        """A copy of the first value of a state, which the model changes in place. Raises InferenceError."""
        memory, region = self._memory, self._memory.region
        assert isinstance(state.initial, int)  # it is in the request region: see loaders/python.py
        at = split(state.initial)[1]
        slot = memory.allocate(state.size, data=region.view[at : at + state.size])
        return slot.offset, StateMemory(region, slot.free)

    def _control(self, job: Job) -> None:
        """Add the control inputs of a job, if there are any; they replace earlier ones. Raises InferenceError."""
        if names := self._controls.names:
            tensors = self._controls.tensors(job.sequence_id, job.is_start, job.is_end)
            others = [tensor for tensor in job.tensors if tensor[0] not in names]
            job.tensors = [*others, *self._place(tensors, job)]

    def _padding(self, model: Job) -> Job:
        """A job with inputs like those of `model`, all zeros. Raises InferenceError."""
        names = self._controls.names
        tensors = [
            InputTensor(name, datatype, list(shape), bytes(_size_of_zeros(datatype, shape, size)))
            for name, datatype, shape, _, size, _, _ in model.tensors
            if name not in names
        ]
        tensors += self._controls.tensors(0, False, False, ready=False)
        options = RequestOptions(requested_outputs=model.options.requested_outputs)
        padding = Job("", options, [], 1, model.signature, [], discard, time.monotonic_ns())
        padding.is_padding = True
        padding.tensors = self._place(tensors, padding)
        return padding

    def _place(self, tensors: list[InputTensor], job: Job) -> list[TensorRef]:
        """Copy inputs into request memory, and return references to them. Raises InferenceError."""
        request = InferRequest(self._spec.name, inputs=tensors)
        self._memory.place(request)
        job.slots = [*job.slots, *request.slots]
        return tensor_refs(tensors)

    # Time.

    def _freed(self, job: Job) -> None:
        """A model has finished a request. Look for the next batch in the next iteration of the loop, or when the batch
        has ended, so that the other sequences of this batch can be in it.
        """
        self._sequences.done(job, time.monotonic())
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._dispatch)

    def _arm(self) -> None:
        """Set the timer for the next deadline. It may go off too early."""
        sequences = self._sequences
        expires_s = sequences.expires_at()
        due_s = inf if expires_s is None else expires_s
        if len(sequences):
            for instance in self._seated:
                if self._waits_for_time(instance) and (batch_s := sequences.due_at(instance)) is not None:
                    due_s = min(due_s, batch_s)
        if due_s == inf or (self._timer is not None and self._timer_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - time.monotonic()), self._on_timer)

    def _waits_for_time(self, instance: Executor) -> bool:
        """Whether an instance begins its next batch as soon as that is due."""
        order = self._orders.get(instance)  # which says itself when there is room
        return instance.inflight.capacity > 0 and (order is None or not order.is_full)

    def _on_timer(self) -> None:
        self._timer = None
        for job in self._sequences.expire(time.monotonic()):
            self._fail(job, InferenceError(_EXPIRED, Code.UNAVAILABLE), FailureReason.REJECTED)
        self._tell_abandoned()
        self._dispatch()


def _size_of_zeros(datatype: str, shape: Sequence[int], size: int) -> int:
    """The bytes of an input of zeros. An element of BYTES is then only its length prefix."""
    if datatype != "BYTES":
        return size
    return prod(shape) * BYTES_PREFIX_SIZE
