# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The intake of inference requests, from the bytes that arrive to the job that is queued, for all protocols.

A frontend converts bytes to requests and responses to bytes. The steps between them are the same for all protocols:
find the model, reserve memory for a body that is still to arrive, decode and check the request, begin its trace, and
queue it. Calls between models take the last two steps in calls/model_call.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pyruntime.runtime.config.inputs import check_strings, has_many_strings
from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.execution.signature import signature_of
from pyruntime.runtime.header_pattern import Forwarded
from pyruntime.runtime.inference.forwarding import forward
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.plain_requests import PlainRequest
from pyruntime.runtime.inference.threads import in_thread
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.requests.types import InferRequest, InferResponse, Slot
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions

if TYPE_CHECKING:
    from pyruntime.runtime.inference.gpu_use import GpuUse
    from pyruntime.runtime.memory.gpu_peers import GpuPeers

# Memory reserved for bodies of which only the beginning has arrived, of all requests together, in bytes. Beyond it a
# body gets memory as it arrives and is copied once more: a client must not get memory by announcing a body alone.
EXPECTED_BYTES_MAX = 1 << 30

# The longest id of a request, in characters. The server keeps it until the client has read the last response, and no
# budget counts it. Ids that clients generate have some dozens.
ID_LENGTH_MAX = 4096

O = TypeVar("O")  # noqa: E741 - the options of a frontend


class Activities(NamedTuple):
    """The names of a protocol's activities in traces.

    `sends_in_respond`: a response is sent when the request's `respond` returns. Otherwise the frontend notes when it
    sends one, and closes the trace.
    """

    receive_start: str
    receive_end: str
    send_start: str
    send_end: str
    sends_in_respond: bool


class RequestHead(Protocol):
    """The part of a request's head that the intake reads, in any protocol."""

    @property
    def forwarded(self) -> Forwarded: ...

    @property
    def traceparent(self) -> str: ...


class IncomingRequest(Protocol[O]):
    """One request of a client, in its frontend.

    `slot` is the memory that it arrived in, until a job owns the slot; `job` is set just before the job is queued.
    `options` is the form of the response, in the frontend's terms. `received_ns` is when it began to arrive, on the
    monotonic clock, 0 if that is unknown. `is_ordered`: later requests must not overtake it.
    """

    activities: Activities
    is_ordered: bool
    slot: RequestSlot | None
    job: Job | None
    options: O
    trace: Trace | None

    @property
    def head(self) -> RequestHead: ...

    @property
    def received_ns(self) -> int: ...

    @property
    def abandoned(self) -> bool:
        """Whether the client no longer waits for a response."""

    def hold_back(self) -> Callable[[], None]:
        """A thread takes a step. Hold later requests back that must not overtake it, until the result is called."""

    def decode(self, model: ModelVersion) -> tuple[InferRequest, O]:
        """The request and its options. Raises InferenceError."""

    def respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""

    def reject(self, failure: InferenceError) -> None:
        """Refuse the request, which is not `abandoned`, after `submit` has returned."""


class Reservation:
    """Memory for a body that is still to arrive. Until `end`, its model does not stop."""

    __slots__ = ("_intake", "_size", "model", "slot")

    def __init__(self, intake: Intake, model: ModelVersion, slot: RequestSlot, size: int) -> None:
        self._intake = intake
        self._size = size
        self.model = model
        self.slot = slot
        intake.expected_bytes += size
        model.expect()

    def end(self) -> RequestSlot:
        """The body has arrived, or never will. Returns the slot, which the caller owns from here on. Call it once."""
        self._intake.expected_bytes -= self._size
        self.model.arrived()
        return self.slot


class Intake:
    """See the module. All methods belong to the event loop's thread.

    `resolve` finds the model version for a name and a version, and raises InferenceError if there is none. `tasks`
    returns the group of the tasks that the server waits for. `peers` copy between GPUs.
    """

    def __init__(
        self,
        resolve: Callable[[str, int], ModelVersion],
        tracer: Tracer,
        tasks: Callable[[], asyncio.TaskGroup],
        peers: GpuPeers,
    ) -> None:
        self.resolve = resolve
        self._peers = peers
        self._tracer = tracer
        self._tasks = tasks
        # Memory reserved for bodies that are still to arrive, in bytes.
        self.expected_bytes = 0

    def reserve(self, model: ModelVersion, size: int, slot_size: int, lead: int = 0) -> Reservation | None:
        """Memory for a body of which `size` bytes are still to arrive; None if too much is reserved already.

        A body that has arrived, of which 0 bytes are still to, always gets it: the thread that copies it there commits
        the memory first (see BareSlot). That of one which is still to arrive grows with it (see GrowingSlot).

        The slot has `slot_size` bytes, byte `lead` of which is aligned. Raises InferenceError if the model no longer
        serves, or has no memory left.
        """
        expected = self.expected_bytes
        if size and expected and expected + size > EXPECTED_BYTES_MAX:
            return None
        model.check_serving()
        allocate = model.memory.allocate_growing if size else model.memory.allocate_bare
        return Reservation(self, model, allocate(slot_size, lead), size)

    def submit(self, incoming: IncomingRequest[O], model: ModelVersion) -> None:
        """Queue a request that has arrived completely, after it is decoded and checked.

        Raises InferenceError if the request is refused; its memory is free then, unless it is still in `slot`. A thread
        first checks a request with many strings.
        """
        job = self._accept(incoming, model)
        if job is not None:
            self._start(incoming, model, job)

    def submit_plain(self, incoming: IncomingRequest[O], model: ModelVersion, plain: PlainRequest, options: O) -> None:
        """Queue a request that native code has read. Raises InferenceError as `submit` does."""
        slots: list[Slot] = [] if incoming.slot is None else [incoming.slot]
        if plain.slot is not None:
            slots.append(plain.slot)
        incoming.options = options
        incoming.slot = None
        id, fields, tensors, rows, priority, _, _ = plain
        signature = signature_of(model.spec, [(each[0], each[2]) for each in tensors]) if model.is_batched else None
        # As their constructor does, which costs a call.
        request_options = tuple.__new__(RequestOptions, fields)
        job = Job(id, request_options, tensors, rows, signature, slots, incoming.respond, time.monotonic_ns())
        job.priority = priority
        self._start(incoming, model, job)

    def _start(self, incoming: IncomingRequest[O], model: ModelVersion, job: Job) -> None:
        incoming.job = job
        job.takes_first = incoming.is_ordered
        if self._tracer.active:
            self._begin_trace(incoming, model, job)
        model.start(job)

    def _accept(self, incoming: IncomingRequest[O], model: ModelVersion) -> Job | None:
        """The job of a request; None if it is copied from a GPU, or a thread checks it first."""
        request, incoming.options = incoming.decode(model)
        if len(request.id) > ID_LENGTH_MAX:
            request.free()
            message = f"the id of the request has {len(request.id)} characters, the server accepts {ID_LENGTH_MAX}"
            raise InferenceError(message, Code.INVALID_ARG)
        forwarded = incoming.head.forwarded
        if forwarded:
            forward(request.parameters, forwarded)
        slot = incoming.slot
        if slot is not None:
            request.slots.append(slot)
            incoming.slot = None
        if request.uses_gpu:
            self._begin_fetch(incoming, model, request)
            return None
        if has_many_strings(request):
            queue = partial(self._queue_checked, incoming, model, request)
            then = partial(_strings_checked, queue, incoming.hold_back())
            in_thread(self._tasks(), partial(check_strings, request), then, "count strings")
            return None
        return model.accept(request, incoming.respond)

    def _begin_fetch(self, incoming: IncomingRequest[O], model: ModelVersion, request: InferRequest) -> None:
        """Copy the inputs of a request from GPUs, and then check and queue it."""
        from pyruntime.runtime.inference.gpu_use import GpuUse

        tasks, resume = self._tasks(), incoming.hold_back()
        use = GpuUse(request, incoming.respond, tasks, self._peers)
        queue = partial(self._queue_checked, incoming, model, request, use=use)

        async def fetch() -> None:
            try:
                await use.fetch(request, model)
            except InferenceError as exc:
                _strings_checked(queue, resume, exc)
                return
            if has_many_strings(request):
                then = partial(_strings_checked, queue, resume)
                in_thread(tasks, partial(check_strings, request), then, "count strings")
            else:
                _strings_checked(queue, resume, None)

        tasks.create_task(fetch(), name="copy inputs from a GPU")

    def _queue_checked(
        self,
        incoming: IncomingRequest[O],
        model: ModelVersion,
        request: InferRequest,
        failure: InferenceError | None,
        use: GpuUse | None = None,
    ) -> None:
        if failure is not None or incoming.abandoned:
            request.free()
            if use is not None:
                use.end()
            if failure is not None and not incoming.abandoned:
                incoming.reject(failure)
            return
        try:
            incoming.job = job = model.accept(request, incoming.respond if use is None else use.respond)
            job.takes_first = incoming.is_ordered
            if use is not None:
                use.refer(job)
                if job.client is None:
                    job.places = use.places_on_gpu(model)
            if self._tracer.active:
                self._begin_trace(incoming, model, job)
            model.start(job)
        except InferenceError as exc:
            if use is not None:
                use.end()
            incoming.reject(exc)

    def _begin_trace(self, incoming: IncomingRequest[O], model: ModelVersion, job: Job) -> None:
        """Trace a job that is about to start, if it is sampled."""
        trace = self._tracer.sample(model, job.id, incoming.head.traceparent)
        if trace is None:
            return
        activities = incoming.activities
        if activities.sends_in_respond:
            job.respond = _noting(trace, activities, job.respond)
        trace.note(activities.receive_start, incoming.received_ns or job.arrived_ns)
        trace.note(activities.receive_end, job.arrived_ns)
        trace.attach(job, model.memory.region)
        if activities.sends_in_respond:
            trace.close()
        else:
            incoming.trace = trace


def _strings_checked(
    queue: Callable[[InferenceError | None], None], resume: Callable[[], None], failure: InferenceError | None
) -> None:
    queue(failure)
    resume()


def _noting(trace: Trace, activities: Activities, respond: Respond) -> Respond:
    """`respond` with notes in a trace, for a protocol whose `respond` sends the response."""

    def send(outcome: InferResponse | InferenceError | None, final: bool) -> None:
        trace.note(activities.send_start, time.monotonic_ns())
        respond(outcome, final)
        trace.note(activities.send_end, time.monotonic_ns())

    return send
