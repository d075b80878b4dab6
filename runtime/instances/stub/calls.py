# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of one stub to other models (BLS), from its first message to its death.

Translates the stub's messages into calls (see calls/model_call.py), and their responses into messages. The stub is
granted the regions of responses, and notified when the inputs of its calls are no longer read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from pyruntime.runtime.calls.call_request import CallRequest, read_call
from pyruntime.runtime.calls.gpu_inputs import bring_inputs, lie_elsewhere
from pyruntime.runtime.calls.gpu_outputs import bring_outputs, is_elsewhere
from pyruntime.runtime.calls.guarded import start_guarded
from pyruntime.runtime.calls.model_call import (
    CALLS_MAX,
    Callee,
    ModelCall,
    call_failure,
    is_decoupled,
    not_ready,
    too_many_calls,
)
from pyruntime.runtime.calls.tensors import CallInputs, HeldResponse, LeftMemory
from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.job import Respond
from pyruntime.runtime.gpus.tensor_places import outputs_for, reads_of
from pyruntime.runtime.instances.codec import error_wire, response_wire, response_wire_on_gpus
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.memory.gpu_peers import GpuPeers, GpuSlot
from pyruntime.runtime.regions import GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, Slot, keep_open
from pyruntime.utils.errors import InferenceError, LocalError, PeerError
from pyruntime.utils.messages import (
    INLINE_BYTES_MAX,
    NO_SLOT,
    SLOT,
    Answer,
    Call,
    CancelCall,
    Consumed,
    Message,
    ReleaseHold,
    StatelessResponse,
    Unread,
)
from pyruntime.utils.request_codec import OutputPlaceRef

_Outcome = InferResponse | InferenceError | None


class _OpenCall(ModelCall):
    """A call without its last response. `waiting` is the number of the batch that waits for it, 0 for none.

    `coming` are responses of which outputs are being copied to the caller's GPU, and those behind them, each with
    whether it is the last one.
    """

    __slots__ = ("_is_copying", "_is_free", "coming", "end_wait", "request", "takes", "waiting")

    def __init__(
        self, plan: StubInstanceSpec, request: CallRequest, slots: list[Slot], respond: Respond, waiting: int
    ) -> None:
        super().__init__(plan.server, request, slots, respond)
        self.request = request
        self.waiting = waiting
        self.coming: deque[tuple[_Outcome, bool]] = deque()
        self._is_copying = self._is_free = False
        # Ends the wait for a callee that is being loaded.
        self.end_wait: Callable[[], object] = _nothing
        # The functions to call when the model takes its next responses, one each.
        self.takes: list[Callable[[], None]] = []

    def keep_on_gpu(self, places: dict[str, OutputPlaceRef]) -> None:
        """Let outputs stay on a GPU."""
        self._request = self.request = self.request._replace(places=places)

    async def bring(self, callee: Callee, peers: GpuPeers) -> None:
        """Copy inputs that the callee does not read on their GPU to where it does.

        Raises InferenceError; the caller frees the call then. The inputs stay until it is done.
        """
        reads, memory, request = reads_of(callee.on_gpus), callee.memory, self.request
        self._is_copying = True
        callee.expect()
        try:
            tensors, regions = await bring_inputs(request.tensors, request.regions, reads, memory, peers, self._slots)
            self._request = self.request = request._replace(tensors=tensors, regions=regions, on_gpu=False)
        finally:
            callee.arrived()
            self._is_copying = False
            if self._is_free:
                self.free()

    async def brought(
        self, response: InferResponse, gpu: int | None, peers: GpuPeers
    ) -> InferResponse | InferenceError:
        """The response, which is kept open, with all outputs on this GPU or in main memory."""
        assert self.callee is not None  # it has answered
        try:
            return await bring_outputs(response, gpu, peers, self.callee.memory)
        except InferenceError as exc:
            response.release()
            return exc
        except BaseException:
            response.release()
            raise

    def free(self) -> None:
        """See ModelCall."""
        if self._is_copying:
            self._is_free = True
        else:
            super().free()

    def cancel(self) -> None:
        """See ModelCall. Its remaining responses count as taken, so that their sender does not wait."""
        super().cancel()
        takes, self.takes = self.takes, []
        for take in takes:
            take()


def _nothing() -> None:
    """End no wait, and take no response."""


class Calls:
    """See the module."""

    def __init__(self, plan: StubInstanceSpec, connection: StubConnection, tasks: asyncio.TaskGroup) -> None:
        """`tasks` run what calls wait for."""
        self._plan = plan
        self._link = connection.link
        self._regions = connection.regions
        self._tasks = tasks
        self._open: dict[int, _OpenCall] = {}
        self._holds: dict[int, HeldResponse] = {}
        self._last_hold = 0
        # Calls whose inputs are no longer read, which the stub does not know of yet.
        self._unread: list[int] = []
        self._left = LeftMemory()
        self._over = False

    def __len__(self) -> int:
        return len(self._open)

    def waiting(self, batch: int) -> list[tuple[Sequence[Waiting], str]]:
        """See Waiting.waiting_calls, of a batch."""
        return [call.servers() for call in self._open.values() if call.waiting == batch and call.job is not None]

    # Messages from the stub. The handlers raise PeerError.

    def call(self, message: Call) -> None:
        """The model calls another model."""
        number = message.call
        if number in self._open:
            raise PeerError(f"call {number} is made twice")
        request = read_call(message, self._regions.find)
        slots: list[Slot] = []
        if request.regions:
            self._left.begin_reading(request.regions)
            slots.append(CallInputs(request.regions, partial(self._end_reading, number, request.regions)))
        is_one_too_many = len(self._open) >= CALLS_MAX
        call = _OpenCall(self._plan, request, slots, partial(self._respond, number), message.waiting)
        self._open[number] = call
        if is_one_too_many:
            self._refuse(call, message, call_failure(message.model, too_many_calls()))
        elif self._link.is_serving:
            try:
                callee = self._plan.server.find(message.model, message.version)
            except InferenceError:
                self._refuse(call, message, not_ready(message.model))
            else:
                self._start(call, message, callee)
        else:  # in the model's `initialize`: the models that it needs may be loading, too
            call.end_wait = self._plan.server.when_ready(
                message.model, message.version, self._plan.spec.name, partial(self._found, call, message)
            )

    def cancel(self, message: CancelCall) -> None:
        """The model no longer waits for this call."""
        call = self._open.get(message.call)
        if call is not None:
            call.cancel()

    def took(self, message: Consumed) -> None:
        """The model has taken these numbers of responses of these calls."""
        for pair in message.calls:
            if type(pair) is not list or [type(each) for each in pair] != [int, int]:
                raise PeerError(f"{pair!r} is not a call and a number of responses")
            call = self._open.get(pair[0])
            if call is not None:
                for take in call.takes[: pair[1]]:
                    take()
                del call.takes[: pair[1]]

    def drop(self, message: ReleaseHold) -> None:
        """The model no longer reads these responses."""
        for hold in message.holds:
            held = self._holds.pop(hold, None) if type(hold) is int else None
            if held is None:
                raise PeerError(f"hold {hold!r} is dropped and was not held")
            held.release()

    # Events of the batches, and the stub's death.

    def cancel_batch(self, number: int) -> None:
        """A batch is cancelled, and so are the calls that it waits for."""
        for call in list(self._open.values()):
            if call.waiting == number:
                call.cancel()

    def died(self) -> None:
        """The stub has ended: cancel its calls, and release the responses that it held."""
        self._over = True
        for call in list(self._open.values()):
            call.end_wait()
            if call.job is None:
                call.free()
            call.cancel()
        holds, self._holds = self._holds, {}
        for held in holds.values():
            self._left.leave(held.regions, held.release)
        self._left.free_unread()

    def free_unread(self, slots: list[Slot]) -> None:
        """Free request memory of the dead stub as soon as no called model reads it."""
        for slot in slots:
            if isinstance(slot, CallInputs):  # of a call to the stub itself
                slot.free()
            elif isinstance(slot, GpuSlot):
                self._left.leave((slot.region,), slot.free)
            else:
                self._left.leave((self._plan.memory.region,), slot.free)
        self._left.free_unread()

    # One call.

    def _found(self, call: _OpenCall, message: Call, callee: Callee | Exception) -> None:
        """The wait for a callee that was being loaded is over."""
        if isinstance(callee, Exception):
            self._refuse(call, message, call_failure(message.model, callee))
        else:
            self._start(call, message, callee)

    def _start(self, call: _OpenCall, message: Call, callee: Callee) -> None:
        if callee.spec.decoupled and not message.decoupled:
            self._refuse(call, message, is_decoupled(message.model))
            return
        gpu = self._plan.gpu
        if gpu is not None and callee.on_gpus is not None and call.request.places is None:
            call.keep_on_gpu(outputs_for(callee.on_gpus, gpu, self._plan.server.peers.reaches))
        if call.request.on_gpu and lie_elsewhere(call.request, reads_of(callee.on_gpus)):
            start = partial(self._start_brought, call, message, callee)
            start_guarded(self._tasks, start, partial(self._not_started, call, message), "copy inputs of a call")
        else:
            self._start_here(call, message, callee)

    async def _start_brought(self, call: _OpenCall, message: Call, callee: Callee) -> None:
        try:
            await call.bring(callee, self._plan.server.peers)
        except InferenceError as exc:
            self._refuse(call, message, call_failure(message.model, exc.message))
            return
        self._start_here(call, message, callee)

    def _not_started(self, call: _OpenCall, message: Call, failure: InferenceError) -> None:
        """A bug has ended the start of a call."""
        if call.job is None:
            call.free()
        self._respond(message.call, failure, True)

    def _start_here(self, call: _OpenCall, message: Call, callee: Callee) -> None:
        """Start a call whose inputs lie where the callee reads them."""
        try:
            call.start(callee)
        except InferenceError as exc:
            self._respond(message.call, exc, True)
            return
        if message.waiting and call.job is not None and call.job.instance is None and message.call in self._open:
            subject = f"Model {callee.spec.name} - Error when running inference: the call"
            call.refuse_deadlock(self._plan.spec.name, subject)

    def _refuse(self, call: _OpenCall, message: Call, failure: InferenceError) -> None:
        """Answer a call that does not start."""
        call.free()
        self._respond(message.call, failure, True)

    def _respond(self, number: int, outcome: _Outcome, final: bool) -> None:
        """See execution.job.Respond. What lies on another GPU is copied before the caller has the response."""
        call = self._open.get(number)
        if call is None or not call.request.places or not (call.coming or self._lies_elsewhere(outcome)):
            self._answer(number, outcome, final)
            return
        if isinstance(outcome, InferResponse):
            keep_open(outcome)  # the process that made it may end before the caller has it
        call.coming.append((outcome, final))
        if len(call.coming) == 1:
            assert call.callee is not None  # it has answered
            call.callee.expect()  # before its instances can end, and its memory with them
            answer = partial(self._answer_brought, number, call)
            start_guarded(self._tasks, answer, partial(self._not_answered, number, call), "copy outputs of a call")

    def _lies_elsewhere(self, outcome: _Outcome) -> bool:
        outputs = outcome.outputs if isinstance(outcome, InferResponse) else ()
        return any(is_elsewhere(output, self._plan.gpu) for output in outputs)

    async def _answer_brought(self, number: int, call: _OpenCall) -> None:
        """Answer with what is to be copied before, and all that comes meanwhile, in order."""
        assert call.callee is not None  # it has answered
        try:
            while call.coming:
                outcome, final = call.coming[0]
                if isinstance(outcome, InferResponse) and self._lies_elsewhere(outcome):
                    call.coming[0] = None, final  # a copy that fails has released it
                    outcome = await call.brought(outcome, self._plan.gpu, self._plan.server.peers)
                call.coming.popleft()
                self._answer(number, outcome, final)
        finally:
            call.callee.arrived()

    def _not_answered(self, number: int, call: _OpenCall, failure: InferenceError) -> None:
        """A bug has ended the answers of a call."""
        for outcome, _ in call.coming:
            if isinstance(outcome, InferResponse):
                outcome.release()
        call.coming.clear()
        self._answer(number, failure, True)
        call.cancel()

    def _answer(self, number: int, outcome: _Outcome, final: bool) -> None:
        call = self._open.get(number)
        if self._over or call is None or not self._link.is_listening:
            if isinstance(outcome, InferResponse):
                outcome.release()
            if final:
                self._open.pop(number, None)
            return
        if (
            call.is_cancelled and not final
        ):  # the model takes no more responses, and their sender must not wait for that
            if isinstance(outcome, InferResponse):
                outcome.release()
            return
        response: StatelessResponse | None = None
        take = _nothing
        if isinstance(outcome, InferResponse):
            assert call.callee is not None  # it has answered
            size = 0
            for output in outcome.outputs:
                size += len(output.data)
            on_gpus = bool(call.request.places) and any(output.place is not None for output in outcome.outputs)
            if size <= INLINE_BYTES_MAX and not on_gpus:
                response, take = response_wire(outcome, NO_SLOT, inline=True), outcome.release
            else:
                response, take = self._hold(outcome, call.callee, on_gpus)
        elif outcome is not None:
            response = error_wire(outcome)
        told: list[Message] = []
        if final:
            if response is not None and response[SLOT] == NO_SLOT:
                take()
            del self._open[number]
            if self._unread:
                told = [Unread(self._unread)]
                self._unread = []
        else:
            call.takes.append(take)
        try:
            self._link.send(*told, Answer(number, response, final))
        except LocalError as exc:  # more text than a frame holds
            if response is not None and response[SLOT] in self._holds:
                self._holds.pop(response[SLOT]).release()
            failure = InferenceError(f"a response of the model that was called cannot be sent: {exc}")
            self._link.send(*told, Answer(number, error_wire(failure), final))

    def _hold(
        self, response: InferResponse, callee: Callee, on_gpus: bool
    ) -> tuple[StatelessResponse, Callable[[], None]]:
        """A large response as the stub reads it, and the function to call when the model takes it.

        It is held until the stub drops it. The message of a small one has its contents instead. With `on_gpus` outputs
        may lie there.
        """
        try:
            held = HeldResponse(response, callee.memory)
        except InferenceError as exc:
            return error_wire(InferenceError(exc.message)), response.release
        try:
            for region in held.regions:
                self._regions.grant(region)
        except LocalError as exc:
            held.release()
            return error_wire(InferenceError(str(exc))), _nothing
        self._last_hold = hold = self._last_hold + 1
        self._holds[hold] = held
        wire = response_wire_on_gpus if on_gpus else response_wire
        return wire(held.response, hold), held.response.take

    def _end_reading(self, number: int, regions: Sequence[GrantedRegion]) -> None:
        """The inputs of a call, which lie in these regions, are no longer read."""
        self._left.end_reading(regions)
        if self._over:
            return
        self._unread.append(number)
        if number not in self._open and self._link.is_listening:  # otherwise the answer brings it
            unread, self._unread = self._unread, []
            self._link.send(Unread(unread))
