# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls whose messages are inference requests. They copy tensors once at most.

The contents of a small message are copied to the model's request region once the message is complete. Raw contents of a
large message go there as they arrive. Large messages with typed contents and compressed ones are unpacked in threads:
see unpacking.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

from pyruntime.runtime.caching.answers import PreparedAnswers
from pyruntime.runtime.config.inputs import check_names
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.frontends.common.restrictions import opens_call
from pyruntime.runtime.frontends.grpc.call import BYTES_PER_S_MIN, MESSAGE_S_MAX, UNKNOWN_ENCODING, Call, Place, Raws
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.infer_request import (
    PLAIN,
    InferOptions,
    Target,
    Typed,
    TypedContents,
    decode_infer,
    describe_typed,
    read_target,
)
from pyruntime.runtime.frontends.grpc.status import OK_TRAILERS, Status, ok_trailers
from pyruntime.runtime.frontends.grpc.unpacking import Count, LongRequest, Unpacking
from pyruntime.runtime.inference.intake import Activities, Reservation
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.pending_bytes import PendingBytesError
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.runtime.memory.requests import GrowingSlot, RequestSlot
from pyruntime.runtime.native._http2 import pack, scatter, split
from pyruntime.runtime.requests.types import InferRequest, InferResponse
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import Code, InferenceError

_UNREADABLE = "the message is no ModelInferRequest: it cannot be parsed"
_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"

_NO_CONTENTS: Mapping[int, TypedContents] = {}


def nothing_to_resume() -> None:
    """Ends what holds nothing back."""


Places = Sequence[tuple[int, int]]
Outcome = InferResponse | InferenceError | None


class CallRequest:
    """One request of a call: see IncomingRequest.

    `lengths` are those of the raw contents that were copied to the slot; `places` are those of contents that arrived
    there. `typed` are the typed contents, packed into the slot.

    A stream answers requests to models that are not decoupled `in_order`, and keeps an early `outcome` until its turn.
    """

    # Defaults are class attributes: every attribute set in __init__ costs time.
    activities = Activities("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END", True)
    received_ns = 0
    trace: Trace | None = None
    id = ""
    target: Target | None = None
    model: ModelVersion | None = None
    slot: RequestSlot | None = None
    job: Job | None = None
    options: InferOptions = PLAIN
    lengths: tuple[int, ...] = ()
    places: Places = ()
    typed: Mapping[int, TypedContents] = _NO_CONTENTS
    in_order = False
    outcome: Outcome = None

    def __init__(self, call: InferringCall, head: CallHead) -> None:
        self._call = call
        self.head = head
        self.is_ordered = call.is_stream

    @property
    def abandoned(self) -> bool:
        """See IncomingRequest."""
        return self._call.is_over

    @property
    def model_name(self) -> tuple[str, str]:
        """The name and the version of the model, or those in the request before the model is found."""
        if self.model is not None:
            return self.model.spec.name, str(self.model.version)
        return (self.target.model, self.target.message.model_version) if self.target is not None else ("", "")

    def hold_back(self) -> Callable[[], None]:
        """See IncomingRequest."""
        return self._call.hold_back()

    def decode(self, model: ModelVersion) -> tuple[InferRequest, InferOptions]:
        """See IncomingRequest."""
        slot, target = self.slot, self.target
        assert target is not None  # it named the model
        view, base = (slot.view, slot.offset) if slot is not None else (memoryview(b""), 0)
        places = self.places or _places(self.lengths)
        return decode_infer(target, self.id, places, self.typed, view, base, self._call.client_memory)

    def respond(self, outcome: Outcome, final: bool) -> None:
        """See execution.job.Respond."""
        self._call.respond(self, outcome, final)

    def reject(self, failure: InferenceError) -> None:
        """See IncomingRequest."""
        self._call.reject(self, failure)

    def free(self) -> None:
        """Free the memory of a request that no job owns."""
        slot, self.slot = self.slot, None
        if slot is not None:
            slot.free()


class InferringCall(Call):
    """See the module."""

    # The messages that are unpacked in threads, None if there are none.
    _unpacking: Unpacking | None = None

    # Whether the call takes any number of requests, and requests to decoupled models.
    is_stream = False
    # For an arriving large message: its memory, and the model's name and version from its beginning.
    _reservation: Reservation | None = None
    _named: tuple[str, int] = ("", 0)

    @property
    def client_memory(self) -> ClientMemory:
        """The shared memory of clients."""
        return self._state.client_memory

    @property
    def waits_for_client(self) -> bool:
        """See Call."""
        return self._reservation is not None

    def place(self, meta: bytes, left: int) -> Place:
        """See Call. The fields before the tensors suffice to refuse a message."""
        request = CallRequest(self, self._head)
        try:
            parts = split(meta, ALIGNMENT)
        except ValueError as exc:
            self.reject(request, InferenceError(str(exc), Code.INVALID_ARG))
            return False
        if parts is None or self._unpacking is not None:
            return None  # `message` reports it, and waits for its turn
        key, id, *_ = parts
        request.id = id.decode(errors="replace")
        try:
            request.target = target = read_target(key)
            model = self.find_model(target, request.id)
            # Each of the raw contents is aligned.
            size = left + ALIGNMENT * (len(target.message.inputs) + 1)
            reservation = self._state.intake.reserve(model, left, size)
            if reservation is None:
                return None
        except InferenceError as exc:
            self.reject(request, exc)
            return False
        self._reservation = reservation
        self._named = target.model, target.version
        self._waiting_since = None
        self._message_s_max = MESSAGE_S_MAX + left / BYTES_PER_S_MIN
        slot = reservation.slot
        return (slot.view, 0, partial(self._grow, request)) if isinstance(slot, GrowingSlot) else slot.view

    def _grow(self, request: CallRequest, nbytes: int) -> int:
        """See Growing in native/_http2.pyi. Refuses the request if there is no memory for the rest of it."""
        assert self._reservation is not None  # it gave the place
        try:
            return self._reservation.slot.grow(nbytes)
        except InferenceError as exc:
            self._drop_reservation()
            self.reject(request, exc)
            return 0

    def compressed(self, message: bytes, ended: bool) -> None:
        """See Call."""
        encoding = self._head.encoding
        if encoding == "identity":
            self.fail(Status.INTERNAL, UNKNOWN_ENCODING)
        else:
            self._arrived(message, encoding, ended)

    @abstractmethod
    def _arrived(self, message: bytes, encoding: str, ended: bool) -> None:
        """A message has arrived. `encoding` is "" for one that is not compressed."""

    def _unpack(self, message: bytes, encoding: str) -> None:
        """Unpack a message in its turn."""
        try:
            self._begin_unpacking().add(message, encoding)
        except PendingBytesError as exc:
            self.refuse_message(exc)

    def _begin_unpacking(self) -> Unpacking:
        unpacking = self._unpacking
        if unpacking is None:
            state = self._state
            self._unpacking = unpacking = Unpacking(self, state.tasks, self._connection.share, state.turns, state.soon)
            self._state.in_flight += 1
        return unpacking

    def hold_back(self) -> Callable[[], None]:
        """See IncomingRequest. A call of one request has no later one."""
        return nothing_to_resume

    def all_unpacked(self) -> None:
        """See UnpackingCall."""
        if self._unpacking is not None:
            self._unpacking = None
            self._state.end_request()

    def refuse_message(self, failure: InferenceError) -> None:
        """See UnpackingCall."""
        self.fail(Status.RESOURCE_EXHAUSTED, failure.message)

    def long_request(self, message: bytes | bytearray) -> LongRequest:
        """See UnpackingCall."""
        return _LongRequest(self, CallRequest(self, self._head), message)

    def receive(self, message: bytes, count: Count | None = None) -> None:
        """Submit the request of a complete message that is not long. `count`: see LongRequest.submit."""
        request = CallRequest(self, self._head)
        try:
            parts = split(message, ALIGNMENT)
        except ValueError as exc:
            self.reject(request, InferenceError(str(exc), Code.INVALID_ARG))
            return
        if parts is None:
            self.fail(Status.INTERNAL, _UNREADABLE)
            return
        key, id, raws, size, typed = parts
        try:
            if id:
                request.id = id.decode()
            request.target = target = read_target(key)
            model = self.find_model(target, request.id)
            if model.answers is not None and not typed:
                contents = tuple([message[at : at + length] for at, length in raws])
                if self._is_answered(model.answers, (key, contents), request.id, len(message)):
                    return
            slot = None
            if size:
                slot = request.slot = model.memory.allocate(size)
                if count is not None:
                    slot = request.slot = count(slot)
                if not typed:
                    scatter(message, raws, slot.view, ALIGNMENT)
            if typed:
                request.typed = pack_typed(message, raws, typed, slot)
            request.lengths = lengths = tuple([length for _, length in raws])
            request.model = model
            self._begin_request(request)
            # Whether typed contents are valid does not depend on their sizes alone.
            self._state.intake.submit(request, model, None if typed else (key, lengths), request.id)
        except PendingBytesError as exc:
            request.free()
            self.refuse_message(exc)
        except InferenceError as exc:
            self.reject(request, exc)
        except UnicodeDecodeError:
            self.fail(Status.INTERNAL, _UNREADABLE)

    def _is_answered(self, answers: PreparedAnswers, key: Hashable, id: str, size: int) -> bool:
        """Answer a request with what was prepared for it. Returns False if that is nothing, as in a stream.

        `key` is the message of `size` bytes without the id.
        """
        return False

    def _receive_placed(self, meta: bytes, raws: Raws) -> None:
        """Submit the request of a message whose raw contents are in the reserved memory."""
        reservation = self._reservation
        assert reservation is not None  # it gave the place
        self._reservation = None
        request = CallRequest(self, self._head)
        request.slot = reservation.end()
        request.places = raws
        try:
            parts = split(meta, ALIGNMENT)
        except ValueError as exc:
            self.reject(request, InferenceError(str(exc), Code.INVALID_ARG))
            return
        if parts is None:
            request.free()
            self.fail(Status.INTERNAL, _UNREADABLE)
            return
        key, id, _, _, typed = parts
        request.typed = describe_typed(typed, [True] * len(typed))  # they are refused, as there are raw contents
        try:
            request.id = id.decode()
            request.target = target = read_target(key)
            # The contents lie in the memory of the model that was named at the beginning.
            if (target.model, target.version) != self._named:
                message = "'model_name' and 'model_version' must come before 'raw_input_contents'"
                raise InferenceError(message, Code.INVALID_ARG)
            request.model = model = reservation.model
            self._begin_request(request)
            self._state.intake.submit(request, model)
        except InferenceError as exc:
            self.reject(request, exc)
        except UnicodeDecodeError:
            request.free()
            self.fail(Status.INTERNAL, _UNREADABLE)

    def find_model(self, target: Target, id: str) -> ModelVersion:
        """The model that serves a request now. Raises InferenceError, also if it has fewer inputs than the request.

        So nothing is done for each of thousands of inputs that no model has.
        """
        model = self._state.resolve(target.model, target.version)
        if model.spec.decoupled and not self.is_stream:
            raise InferenceError(_DECOUPLED, Code.UNSUPPORTED)
        if target.inputs > len(model.spec.inputs):
            request = InferRequest(target.model, target.version, id)
            check_names(model.spec, request, (entry.name for entry in target.message.inputs))
        return model

    def submit_unpacked(self, request: CallRequest, model: ModelVersion) -> None:
        """Submit a request whose memory is filled."""
        request.model = model
        try:
            self._begin_request(request)
            self._state.intake.submit(request, model)
        except InferenceError as exc:
            self.reject(request, exc)

    def reserve(self, model: ModelVersion, size: int) -> Reservation:
        """Memory of `size` bytes for a request that is being unpacked. Raises InferenceError."""
        reservation = self._state.intake.reserve(model, 0, size)
        assert reservation is not None  # no bytes are still to arrive
        return reservation

    def _free(self) -> None:
        """Free the memory of arriving messages."""
        unpacking, self._unpacking = self._unpacking, None
        if unpacking is not None:
            unpacking.end()
            self._state.end_request()
        self._drop_reservation()

    def _drop_reservation(self) -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.end().free()

    def _ok_trailers(self, model: ModelVersion | None) -> bytes:
        """The trailers of a successful call, with a load report of the model if the client asks for one and may see it.

        `model` is None for a stream without a request.
        """
        form = self._head.load_format
        if not form or model is None:
            return OK_TRAILERS
        restriction = self._state.settings.grpc_restricted_protocols.get("statistics")
        if restriction is not None and not opens_call(restriction, self._head.metadata):
            return OK_TRAILERS
        return ok_trailers(self._state.load_reports.report(model, form))

    @abstractmethod
    def _begin_request(self, request: CallRequest) -> None:
        """A request is about to be submitted."""

    @abstractmethod
    def respond(self, request: CallRequest, outcome: Outcome, final: bool) -> None:
        """Handle a response to a request, or None for none. `final`: it is the last one."""

    @abstractmethod
    def reject(self, request: CallRequest, failure: InferenceError) -> None:
        """Handle the refusal of a request."""


def _places(lengths: tuple[int, ...]) -> Places:
    """Where `scatter` puts raw contents of these lengths."""
    places = []
    at = 0
    for length in lengths:
        places.append((at, length))
        at += -(-length // ALIGNMENT) * ALIGNMENT
    return places


class _LongRequest:
    """The request of a long message, in the steps of LongRequest."""

    size = 0
    _reservation: Reservation | None = None

    def __init__(self, call: InferringCall, request: CallRequest, message: bytes | bytearray) -> None:
        self._call = call
        self._request = request
        self._message = message
        self._raws: Raws = ()
        self._typed: Typed = ()
        self._readable = False

    def read(self) -> None:
        """See LongRequest."""
        request = self._request
        try:
            parts = split(self._message, ALIGNMENT)
        except ValueError as exc:
            self._readable = True
            raise InferenceError(str(exc), Code.INVALID_ARG) from None
        if parts is None:
            raise InferenceError(_UNREADABLE)
        key, id, self._raws, self.size, self._typed = parts
        try:
            request.id = id.decode()
        except UnicodeDecodeError:
            raise InferenceError(_UNREADABLE) from None
        self._readable = True
        request.target = read_target(key)

    def allocate(self) -> None:
        """See LongRequest."""
        assert self._request.target is not None  # it was read
        model = self._call.find_model(self._request.target, self._request.id)
        self._reservation = self._call.reserve(model, self.size)

    def fill(self) -> None:
        """See LongRequest."""
        request, reservation = self._request, self._reservation
        assert reservation is not None  # it was allocated
        reservation.slot.commit()
        if self._typed:
            request.typed = pack_typed(self._message, self._raws, self._typed, reservation.slot)
        else:
            scatter(self._message, self._raws, reservation.slot.view, ALIGNMENT)
        request.lengths = tuple([length for _, length in self._raws])

    def submit(self, count: Count) -> None:
        """See LongRequest."""
        model = self._end_reservation()
        assert model is not None  # it was allocated
        assert self._request.slot is not None  # the reservation's
        self._request.slot = count(self._request.slot)
        self._call.submit_unpacked(self._request, model)

    def refuse(self, failure: InferenceError) -> None:
        """See LongRequest."""
        self._end_reservation()
        if self._call.is_over:
            self._request.free()
        elif not self._readable:
            self._call.fail(Status.INTERNAL, _UNREADABLE)
        elif isinstance(failure, PendingBytesError):
            self._call.refuse_message(failure)
        else:
            self._call.reject(self._request, failure)

    def _end_reservation(self) -> ModelVersion | None:
        reservation, self._reservation = self._reservation, None
        if reservation is None:
            return None
        self._request.slot = reservation.end()
        return reservation.model


def pack_typed(
    message: bytes | bytearray, raws: Raws, typed: Typed, slot: RequestSlot | None
) -> Mapping[int, TypedContents]:
    """Write typed contents to the slot. Beside raw contents they are refused later, and nothing is written."""
    if raws:
        return describe_typed(typed, [True] * len(typed))
    return describe_typed(typed, pack(message, typed, bytearray() if slot is None else slot.view, ALIGNMENT))
