# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls whose messages are inference requests. They copy tensors once at most.

The contents of a small message are copied to the model's request region once the message is complete. Raw contents of a
large message go there as they arrive. Large messages with typed contents and compressed ones are unpacked in threads:
see unpacking.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from pyruntime.runtime.caching.answers import PreparedAnswers
from pyruntime.runtime.config.inputs import check_names
from pyruntime.runtime.frontends.common.restrictions import opens_call
from pyruntime.runtime.frontends.grpc.call import (
    BYTES_PER_S_MIN,
    MESSAGE_S_MAX,
    SHUTTING_DOWN,
    UNKNOWN_ENCODING,
    Call,
    Place,
    Raws,
)
from pyruntime.runtime.frontends.grpc.call_request import CallRequest, Outcome
from pyruntime.runtime.frontends.grpc.infer_request import PLAIN, Target, describe_typed, read_target
from pyruntime.runtime.frontends.grpc.long_request import UNREADABLE, LongCallRequest, pack_typed
from pyruntime.runtime.frontends.grpc.status import OK_TRAILERS, Status, ok_trailers
from pyruntime.runtime.frontends.grpc.unpacking import Count, LongRequest, Unpacking
from pyruntime.runtime.inference.intake import Reservation
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.pending_bytes import PendingBytesError
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.runtime.memory.requests import GrowingSlot
from pyruntime.runtime.native._http2 import scatter, split
from pyruntime.runtime.native.plain import read_target as read_message_target
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import Code, InferenceError

# Where requests without contents have theirs.
_NO_MEMORY = bytearray()

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def nothing_to_resume() -> None:
    """Ends what holds nothing back."""


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
        return LongCallRequest(self, CallRequest(self, self._head), message)

    def receive(self, message: bytes, count: Count | None = None) -> None:
        """Submit the request of a complete message that is not long. `count`: see LongRequest.submit."""
        target = read_message_target(message)
        if target is None or not self._receive_plain(message, target, count):
            self._receive_any(message, count)

    def _receive_plain(self, message: bytes, target: tuple[str, int, str, int], count: Count | None) -> bool:
        """Submit a request that native code reads whole. Returns False for any other: see codecs/infer_message.h."""
        name, version, id, size = target
        state = self._state
        model = state.table.serving.get((name, version))
        if model is None or state.exiting or (model.spec.decoupled and not self.is_stream):
            return False
        if model.answers is not None and self._is_answered(model.answers, message, id):
            return True
        slot, plain = None, None
        try:
            if size:
                slot = model.memory.allocate(size)
                plain = model.plain.read_message(id, message, slot.view, slot.offset)
            else:
                plain = model.plain.read_message(id, message, _NO_MEMORY, 0)
            if plain is not None and self._head.forwarded:
                plain = plain.forwarding(self._head.forwarded)
        except InferenceError:
            plain = None
        if plain is None:
            if slot is not None:
                slot.free()
            return False
        request = CallRequest(self, self._head)
        request.id, request.model, request.slot = id, model, slot
        try:
            if count is not None and slot is not None:
                request.slot = count(slot)
            self._begin_request(request)
            state.intake.submit_plain(request, model, plain, PLAIN)
        except PendingBytesError as exc:
            request.free()
            self.refuse_message(exc)
        except InferenceError as exc:
            self.reject(request, exc)
        return True

    def _receive_any(self, message: bytes, count: Count | None) -> None:
        """Submit any request: the reference, which words the errors."""
        request = CallRequest(self, self._head)
        try:
            parts = split(message, ALIGNMENT)
        except ValueError as exc:
            self.reject(request, InferenceError(str(exc), Code.INVALID_ARG))
            return
        if parts is None:
            self.fail(Status.INTERNAL, UNREADABLE)
            return
        key, id, raws, size, typed = parts
        try:
            request.id = id.decode()
            request.target = target = read_target(key)
            model = self.find_model(target, request.id)
            slot = None
            if size:
                slot = request.slot = model.memory.allocate(size)
                if count is not None:
                    slot = request.slot = count(slot)
                if not typed:
                    scatter(message, raws, slot.view, ALIGNMENT)
            if typed:
                request.typed = pack_typed(message, raws, typed, slot)
            request.lengths = tuple([length for _, length in raws])
            request.model = model
            self._begin_request(request)
            self._state.intake.submit(request, model)
        except PendingBytesError as exc:
            request.free()
            self.refuse_message(exc)
        except InferenceError as exc:
            self.reject(request, exc)
        except UnicodeDecodeError:
            self.fail(Status.INTERNAL, UNREADABLE)

    def _is_answered(self, answers: PreparedAnswers, message: bytes, id: str) -> bool:
        """Answer a request with what was prepared for it. Returns False if that is nothing, as in a stream."""
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
            self.fail(Status.INTERNAL, UNREADABLE)
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
            self.fail(Status.INTERNAL, UNREADABLE)

    def find_model(self, target: Target, id: str) -> ModelVersion:
        """The model that serves a request now. Raises InferenceError, also if it has fewer inputs than the request.

        So nothing is done for each of thousands of inputs that no model has.
        """
        if self._state.exiting:
            raise InferenceError(SHUTTING_DOWN, Code.UNAVAILABLE)
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
