# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls whose messages are inference requests: from a message to a job, with tensors that nobody copies twice.

A small message is copied to its model's request region once it is there. The raw contents of a large one go there as
they come in.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pyruntime.runtime.frontends.common.forwarding import forward
from pyruntime.runtime.frontends.grpc.call import BYTES_PER_S_MIN, MESSAGE_S_MAX, Call
from pyruntime.runtime.frontends.grpc.call_trace import trace_call
from pyruntime.runtime.frontends.grpc.infer_request import InferOptions, Target, decode_infer, read_target
from pyruntime.runtime.frontends.grpc.status import Status
from pyruntime.runtime.frontends.http.infer_exchange import EXPECTED_BYTES_MAX
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.native._http2 import scatter, split
from pyruntime.runtime.scheduling.job import Job, Respond
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import Code, InferenceError

if TYPE_CHECKING:
    from pyruntime.runtime.native._http2 import Raws

_UNREADABLE = "the message is no ModelInferRequest: it cannot be parsed"


class InferringCall(Call):
    """See the module."""

    _slot: RequestSlot | None = None
    # The model that a large message comes in to, and that waits for it; how it was named, and the message's size.
    _expecting: ModelVersion | None = None
    _named: tuple[str, int] = ("", 0)
    _expected_bytes = 0

    @property
    def waits_for_client(self) -> bool:
        """See Call."""
        return self._expecting is not None

    def message(self, message: bytes, ended: bool) -> None:
        """See Call."""
        parts = split(message, ALIGNMENT)
        if parts is None:
            self.fail(Status.INTERNAL, _UNREADABLE)
            return
        key, id, raws, size = parts
        self._infer(key, id, raws, size, message)
        if ended and not self._over:
            self.ended()

    def place(self, meta: bytes, left: int) -> memoryview | Literal[False] | None:
        """See Call. What the message says before its tensors suffices to refuse it."""
        parts = split(meta, ALIGNMENT)
        if parts is None:
            return None  # it is no better when all of it is here
        key, id, _, _ = parts
        name, version = "", ""
        try:
            target = read_target(key)
            name, version = target.model, target.message.model_version
            model = self._resolve(target)
            model.check_serving()
            if self._state.expected_bytes + left > EXPECTED_BYTES_MAX:
                return None
            # Each of the raw contents is aligned.
            slot = model.memory.allocate(left + ALIGNMENT * (len(target.message.inputs) + 1))
        except InferenceError as exc:
            self._refuse(name, id.decode(errors="replace"), exc, version)
            return False
        self._slot = slot
        self._named = target.model, target.version
        self._expected_bytes = left
        self._state.expected_bytes += left
        self._waiting_since = None
        self._patience_s = MESSAGE_S_MAX + left / BYTES_PER_S_MIN
        self._expecting = model
        model.expect()
        return slot.view

    def placed(self, meta: bytes, raws: Raws, ended: bool) -> None:
        """See Call."""
        model = self._expecting
        self._arrived()
        parts = split(meta, ALIGNMENT)
        assert parts is not None  # it was split when its place was asked for
        key, id, _, _ = parts
        self._infer(key, id, raws, 0, model)
        if ended and not self._over:
            self.ended()

    def _infer(self, key: bytes, raw_id: bytes, raws: Raws, size: int, source: bytes | ModelVersion | None) -> None:
        """Act on a message. `source` is all of it; or the model in whose memory, the slot, its raw contents lie."""
        id = ""
        version = ""
        name = ""
        try:
            id = raw_id.decode() if raw_id else ""
            target = read_target(key)
            name, version = target.model, target.message.model_version
            if isinstance(source, bytes):
                model = self._resolve(target)
                message: bytes | None = source
            else:
                model, message = self._model_of_slot(target, source), None
            self._start(model, target, key, id, raws, size, message)
        except InferenceError as exc:
            self._free()
            self._refuse(name, id, exc, version)
        except UnicodeDecodeError:
            self._free()
            self.fail(Status.INTERNAL, _UNREADABLE)

    def _start(
        self, model: ModelVersion, target: Target, key: bytes, id: str, raws: Raws, size: int, message: bytes | None
    ) -> None:
        slot = self._slot
        if message is not None:
            model.check_serving()
            if size:
                slot = self._slot = model.memory.allocate(size)
                scatter(message, raws, slot.view, ALIGNMENT)
        lengths = tuple([length for _, length in raws])
        forwarded = self._head.forwarded
        # A large message is placed otherwise, and what it takes to look at it is little beside its size.
        plannable = slot is not None and message is not None and not forwarded
        plan = model.plans.find(key, lengths) if plannable else None
        if plan is not None and slot is not None:
            options: InferOptions = plan.options
            self._slot = None  # the job's from here on
            respond = self._respond_to(model, id, options)
            job = plan.job(slot, respond, time.monotonic_ns(), id)
        else:
            places = raws if message is None else _places(lengths)
            view, base = (slot.view, slot.offset) if slot is not None else (memoryview(b""), 0)
            request, options = decode_infer(target, id, places, view, base, self._state.client_memory)
            if forwarded:
                forward(request, forwarded)
            if slot is not None:
                request.slots.append(slot)
                self._slot = None
            respond = self._respond_to(model, id, options)
            job = model.accept(request, respond)
            if slot is not None and plannable:
                model.plans.remember(key, lengths, job, slot, options)
        if self._state.tracer.active:
            trace_call(self._state.tracer, model, job, self._head.traceparent)
        self._started(model, job)

    def _resolve(self, target: Target) -> ModelVersion:
        return self._state.resolve(target.model, target.version)

    def _model_of_slot(self, target: Target, model: ModelVersion | None) -> ModelVersion:
        """The model that a large message is for: that in whose memory it lies, though others have its name by now."""
        assert model is not None  # it gave the slot
        if (target.model, target.version) != self._named:
            message = "'model_name' and 'model_version' must come before 'raw_input_contents'"
            raise InferenceError(message, Code.INVALID_ARG)
        return model

    def _arrived(self) -> None:
        model, self._expecting = self._expecting, None
        if model is not None:
            self._state.expected_bytes -= self._expected_bytes
            model.arrived()

    def _free(self) -> None:
        """Give back the memory of a request that has not started."""
        self._arrived()
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.free()

    @abstractmethod
    def _respond_to(self, model: ModelVersion, id: str, options: InferOptions) -> Respond:
        """What is called with the response to a request that is about to start."""

    @abstractmethod
    def _started(self, model: ModelVersion, job: Job) -> None:
        """Start the job. Raises InferenceError."""

    @abstractmethod
    def _refuse(self, name: str, id: str, failure: InferenceError, version: str = "") -> None:
        """A request is refused before it has started."""


def _places(lengths: tuple[int, ...]) -> Sequence[tuple[int, int]]:
    """Where `scatter` puts raw contents of these lengths: (offset, length) of each."""
    places = []
    at = 0
    for length in lengths:
        places.append((at, length))
        at += -(-length // ALIGNMENT) * ALIGNMENT
    return places
