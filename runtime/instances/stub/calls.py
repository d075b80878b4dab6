# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The calls that one stub makes to other models (BLS), from its first to its death.

A call becomes a request like any client's; but its tensors stay where they are. The callee's stub is given the region
that they lie in, and the caller's the region of the outputs. What is counted here is who still looks into which: the
caller's inputs until the callee is done with them, the callee's outputs until the caller drops them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pyruntime.runtime.instances.call_request import CallRequest
from pyruntime.runtime.instances.codec import error_wire, response_wire
from pyruntime.runtime.instances.deadlock import Waiting, explain_deadlock
from pyruntime.runtime.instances.model_server import Callee
from pyruntime.runtime.instances.native.memory import shared
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.regions import SharedRegion
from pyruntime.runtime.requests.types import InferResponse, Slot
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.channel import State
from pyruntime.utils.errors import Code, InferenceError, LocalError, PeerError
from pyruntime.utils.messages import (
    INLINE_BYTES_MAX,
    NO_SLOT,
    Answer,
    Call,
    CancelCall,
    Consumed,
    Message,
    ReleaseHold,
    Unread,
)

# Calls of one stub that are under way. A model that makes more of them does not wait for any.
CALLS_MAX = 10_000
_IS_DECOUPLED = (
    "Model {0} - Error when running inference: Model {0} is using the decoupled. The current BLS request call doesn't "
    "support models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
    "'async_exec' calls for decoupled models.'"
)


class _Inputs:
    """The memory that a call's inputs lie in, as a slot of the job that they belong to."""

    offset = 0
    view = memoryview(b"")

    def __init__(self, calls: Calls, number: int, regions: list[SharedRegion]) -> None:
        self._calls = calls
        self._number = number
        self._regions = regions

    def free(self) -> None:
        """See requests.types.Slot."""
        self._calls.unread(self._number, self._regions)
        for region in self._regions:
            region.close()


class _OpenCall:
    __slots__ = ("callee", "cancelled", "end_wait", "job", "slots", "takes", "waiting")

    def __init__(self, waiting: int, slots: list[Slot]) -> None:
        self.waiting = waiting
        # The inputs' memory, until there is a job that it belongs to.
        self.slots = slots
        self.callee: Callee | None = None
        self.job: Job | None = None
        self.cancelled = False
        # Ends the wait for a callee that is being loaded.
        self.end_wait: Callable[[], object] = _nothing
        # What to call when the model takes its next response, and the next.
        self.takes: list[Callable[[], None]] = []

    def free(self) -> None:
        """Nobody will read the inputs."""
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.free()


def _nothing() -> None:
    """There is no wait to end, and no response to take."""


class Calls:
    """See the module."""

    def __init__(self, plan: StubInstanceSpec, connection: StubConnection) -> None:
        self._plan = plan
        self._connection = connection
        self._open: dict[int, _OpenCall] = {}
        self._holds: dict[int, InferResponse] = {}
        self._hold = 0
        self._unread: list[int] = []
        self._over = False
        # How many calls have inputs in a region that somebody may read, and what a dead stub leaves there until then.
        self._reading: Counter[SharedRegion] = Counter()
        self._left: list[tuple[SharedRegion, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._open)

    def waiting(self, batch: int) -> list[tuple[Sequence[Waiting], str]]:
        """See Waiting.waiting_calls, of a batch."""
        return [
            (
                call.callee.workers if call.job.instance is None else [call.job.instance.worker_of(call.job)],
                call.callee.spec.name,
            )
            for call in self._open.values()
            if call.waiting == batch and call.job is not None and call.callee is not None
        ]

    # What the stub says. All of these raise PeerError.

    def call(self, message: Call) -> None:
        """The model calls another one."""
        number = message.call
        if number in self._open:
            raise PeerError(f"call {number} is made twice")
        request = CallRequest(message, self._connection.region)
        slots: list[Slot] = []
        if request.regions:
            for region in request.regions:
                region.count_on()
            slots.append(_Inputs(self, number, request.regions))
            self._reading.update(request.regions)
        self._open[number] = call = _OpenCall(message.waiting, slots)
        server = self._plan.server
        if len(self._open) > CALLS_MAX:
            self._begin(message, request, InferenceError(f"more than {CALLS_MAX} calls are under way"))
            return
        if not self._connection.is_serving:  # its own initialize: the models that it needs may be loading, too
            call.end_wait = server.when_ready(
                message.model,
                message.version,
                self._plan.spec.name,
                lambda callee: self._begin(message, request, callee),
            )
            return
        try:
            callee: Callee | Exception = server.resolve(message.model, message.version)
        except InferenceError as exc:
            callee = exc
        self._begin(message, request, callee)

    def cancel(self, message: CancelCall) -> None:
        """The model does not wait for this call any longer."""
        self._cancel(self._open.get(message.call))

    def took(self, message: Consumed) -> None:
        """The model has taken so many responses of these calls."""
        for pair in message.calls:
            if type(pair) is not list or [type(each) for each in pair] != [int, int]:
                raise PeerError(f"{pair!r} is not a call and a number of responses")
            call = self._open.get(pair[0])
            if call is not None:
                for take in call.takes[: pair[1]]:
                    take()
                del call.takes[: pair[1]]

    def drop(self, message: ReleaseHold) -> None:
        """Nobody looks into these responses any longer."""
        for hold in message.holds:
            response = self._holds.pop(hold, None) if type(hold) is int else None
            if response is None:
                raise PeerError(f"hold {hold!r} is dropped and was not held")
            self._release(response)

    # What others tell.

    def cancel_batch(self, number: int) -> None:
        """Nobody waits for a batch any longer, so nobody waits for its calls."""
        for call in list(self._open.values()):
            if call.waiting == number:
                self._cancel(call)

    def unread(self, number: int, regions: Sequence[SharedRegion]) -> None:
        """Nobody reads the inputs of a call any longer, which lie in these regions."""
        self._reading.subtract(regions)
        if self._over:
            self._free_left()
            return
        self._unread.append(number)
        if number not in self._open:  # else the answer takes it along
            self._send_unread()

    def died(self) -> None:
        """The stub is gone: nobody waits for its calls, and nobody looks into what it held."""
        self._over = True
        for call in list(self._open.values()):
            call.end_wait()
            if call.job is None:
                call.free()
            self._cancel(call)
        holds, self._holds = self._holds, {}
        for response in holds.values():
            assert isinstance(response.region, SharedRegion)  # it would not be held otherwise
            self._left.append((response.region, partial(self._release, response)))
        self._free_left()

    def free_unread(self, slots: list[Slot]) -> None:
        """Free request memory that the dead stub leaves, as soon as no model that it called reads it."""
        for slot in slots:
            if isinstance(slot, _Inputs):  # of a call to the stub itself
                slot.free()
            else:
                self._left.append((self._plan.memory.region, slot.free))
        self._free_left()

    def _free_left(self) -> None:
        left, self._left = self._left, []
        for region, free in left:
            if self._reading[region]:
                self._left.append((region, free))
            else:
                free()

    # A call on its way.

    def _begin(self, message: Call, request: CallRequest, callee: Callee | Exception) -> None:
        number = message.call
        call = self._open[number]
        try:
            if isinstance(callee, Exception):
                raise InferenceError(f"Model {message.model} - Error when running inference: {callee}")
            if callee.spec.decoupled and not message.decoupled:
                raise InferenceError(_IS_DECOUPLED.format(message.model))
            if self._over or call.cancelled:
                raise InferenceError("", Code.CANCELLED)
            job = request.job(callee, call.slots, partial(self._respond, number))
            call.callee, call.job = callee, job
            if request.trace:
                self._plan.server.trace_call(callee, job, request.trace)
            callee.start(job)
        except InferenceError as exc:
            if call.job is None:  # a job that was refused has freed them
                call.free()
            self._respond(number, exc, True)
            return
        if message.waiting and job.instance is None and number in self._open:
            cycle = explain_deadlock(self._plan.spec.name, callee.spec.name, callee.workers)
            if cycle:
                self._refuse(number, callee, job, cycle)

    def _refuse(self, number: int, callee: Callee, job: Job, cycle: str) -> None:
        message = (
            f"Model {callee.spec.name} - Error when running inference: the call would wait for ever, because every "
            f"instance that could serve it waits for this one: {cycle}. Give one of these models more instances"
        )
        refusal = InferenceError(message, Code.UNAVAILABLE)
        job.respond = lambda outcome, final: self._respond(number, refusal, True)
        if job.trace is not None:
            job.respond = job.trace.answering(job.respond)
        callee.cancel(job)

    def _respond(self, number: int, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        call = self._open.get(number)
        if self._over or call is None or not self._listens():
            if isinstance(outcome, InferResponse):
                outcome.release()
            if final:
                self._open.pop(number, None)
            return
        if call.cancelled and not final:  # nobody takes it, and its sender must not wait for that
            if isinstance(outcome, InferResponse):
                outcome.release()
            return
        wire: list[object] | None = None
        take = _nothing
        if isinstance(outcome, InferResponse):
            assert call.callee is not None  # it has answered
            wire = self._keep(outcome, call.callee)
            take = outcome.take if wire[2] != NO_SLOT else outcome.release
        elif outcome is not None:
            wire = error_wire(outcome)
        told: list[Message] = []
        if final:
            if wire is not None and wire[2] == NO_SLOT:
                take()
            del self._open[number]
            if self._unread:
                told = [Unread(self._unread)]
                self._unread = []
        else:
            call.takes.append(take)
        try:
            self._connection.send(*told, Answer(number, wire, final))
        except LocalError as exc:  # more text than a frame holds
            if wire is not None and wire[2] in self._holds:
                self._release(self._holds.pop(wire[2]))
            failure = InferenceError(f"a response of the model that was called cannot be sent: {exc}")
            self._connection.send(*told, Answer(number, error_wire(failure), final))

    def _keep(self, response: InferResponse, callee: Callee) -> list[object]:
        """Hold a response for the model, and let it see where it lies.

        Or send a small one along: it has no hold, and is to be released when the model has taken it.
        """
        size = 0
        for output in response.outputs:
            size += len(output.data)
        if size <= INLINE_BYTES_MAX:
            return response_wire(response, NO_SLOT, inline=True)
        region = response.region
        try:
            if isinstance(region, SharedRegion):
                self._connection.grant(region)
            else:  # a native model's response, which lies in the host alone
                region = callee.memory.region
                self._connection.grant(region)
                response = shared(response, callee.memory)
        except (InferenceError, LocalError) as exc:
            return error_wire(InferenceError(str(exc)))
        region.count_on()
        self._hold = hold = self._hold + 1
        self._holds[hold] = response
        return response_wire(response, hold)

    def _release(self, response: InferResponse) -> None:
        response.release()
        assert isinstance(response.region, SharedRegion)  # it would not be held otherwise
        response.region.close()

    def _cancel(self, call: _OpenCall | None) -> None:
        if call is None or call.cancelled:
            return
        call.cancelled = True
        if call.callee is not None and call.job is not None:
            call.callee.cancel(call.job)
        takes, call.takes = call.takes, []
        for take in takes:
            take()

    def _listens(self) -> bool:
        """Whether the stub can be told anything: a dying one cannot."""
        return self._connection.state in (State.LOADING, State.SERVING, State.STOPPING)

    def _send_unread(self) -> None:
        if self._unread and self._listens():
            unread, self._unread = self._unread, []
            self._connection.send(Unread(unread))
