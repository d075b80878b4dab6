# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One inference request of a call, from its message to its responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.infer_request import PLAIN, InferOptions, Target, TypedContents, decode_infer
from pyruntime.runtime.inference.intake import Activities
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.requests.types import InferRequest, InferResponse
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import InferenceError

_NO_CONTENTS: Mapping[int, TypedContents] = {}

Places = Sequence[tuple[int, int]]
Outcome = InferResponse | InferenceError | None


class RequestingCall(Protocol):
    """The call of a request: see InferringCall."""

    is_stream: bool

    @property
    def is_over(self) -> bool: ...

    @property
    def client_memory(self) -> ClientMemory: ...

    def hold_back(self) -> Callable[[], None]: ...

    def respond(self, request: CallRequest, outcome: Outcome, final: bool) -> None: ...

    def reject(self, request: CallRequest, failure: InferenceError) -> None: ...


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

    def __init__(self, call: RequestingCall, head: CallHead) -> None:
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
        places = self.places or places_of(self.lengths)
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


def places_of(lengths: tuple[int, ...]) -> Places:
    """Where `scatter` puts raw contents of these lengths."""
    places = []
    at = 0
    for length in lengths:
        places.append((at, length))
        at += -(-length // ALIGNMENT) * ALIGNMENT
    return places
