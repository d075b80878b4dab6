# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The request of a long message, which is unpacked step by step: see unpacking.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyruntime.runtime.frontends.grpc.call import Raws
from pyruntime.runtime.frontends.grpc.call_request import CallRequest
from pyruntime.runtime.frontends.grpc.infer_request import Target, Typed, TypedContents, describe_typed, read_target
from pyruntime.runtime.frontends.grpc.status import Status
from pyruntime.runtime.frontends.grpc.unpacking import Count
from pyruntime.runtime.inference.intake import Reservation
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.pending_bytes import PendingBytesError
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.native._http2 import pack, scatter, split
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import Code, InferenceError

UNREADABLE = "the message is no ModelInferRequest: it cannot be parsed"


class LongCall(Protocol):
    """The call of a long message: see InferringCall."""

    @property
    def is_over(self) -> bool: ...

    def find_model(self, target: Target, id: str) -> ModelVersion: ...

    def reserve(self, model: ModelVersion, size: int) -> Reservation: ...

    def submit_unpacked(self, request: CallRequest, model: ModelVersion) -> None: ...

    def reject(self, request: CallRequest, failure: InferenceError) -> None: ...

    def fail(self, status: int, message: str) -> None: ...

    def refuse_message(self, failure: InferenceError) -> None: ...


class LongCallRequest:
    """See the module, and LongRequest."""

    size = 0
    _reservation: Reservation | None = None

    def __init__(self, call: LongCall, request: CallRequest, message: bytes | bytearray) -> None:
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
            raise InferenceError(UNREADABLE)
        key, id, self._raws, self.size, self._typed = parts
        try:
            request.id = id.decode()
        except UnicodeDecodeError:
            raise InferenceError(UNREADABLE) from None
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
            self._call.fail(Status.INTERNAL, UNREADABLE)
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
