# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP request and its response.

An exchange knows where its body goes, hands the request to the core or to an endpoint, and keeps the response until its
connection can send it. It does no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pyruntime.runtime.core import Core
from pyruntime.runtime.frontends.endpoints import answer
from pyruntime.runtime.frontends.http_head import STATUS_OF, head, infer_head
from pyruntime.runtime.frontends.http_request import Head
from pyruntime.runtime.frontends.kserve_request import ALL_JSON, OutputOptions, decode_infer
from pyruntime.runtime.frontends.kserve_response import encode_error, encode_infer
from pyruntime.runtime.frontends.routes import Endpoint, Route
from pyruntime.runtime.inference import InferResponse, Slot
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.model import ModelVersion
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import Code, InferenceError


class Connection(Protocol):
    """What an exchange tells its connection."""

    def answered(self) -> None:
        """The exchange has its response."""

    def discarded(self, nbytes: int) -> None:
        """So much of a body was thrown away."""


def _nothing() -> None:
    pass


_BAD = Head(Route(Endpoint.REFUSED), 0, False, None, b"", False, False)


class Exchange:
    """See the module. `parts` is the response, None until there is one; `release` must be called once it is sent."""

    # Defaults stand here, not in __init__: most requests change few of them, and every request pays for what they set.
    keep_alive = True
    length = 0
    parts: list[bytes | memoryview] | None = None
    release: Callable[[], None] = staticmethod(_nothing)
    _model: ModelVersion | None = None
    _options: OutputOptions = ALL_JSON
    _slot: RequestSlot | None = None
    _job: Job | None = None
    _body: bytes | bytearray = b""
    _refusal: InferenceError | None = None
    _abandoned = False
    _counted = False

    def __init__(self, core: Core, connection: Connection, head: Head) -> None:
        self._core = core
        self._connection = connection
        self._head = head
        if not head.keep_alive:
            self.keep_alive = False
        try:
            if head.content_length > core.settings.http_max_input_size:
                self._check_size(head.content_length)
            if head.encoding and head.encoding != b"identity":
                raise InferenceError("Unsupported compression type", Code.UNSUPPORTED)
            route = head.route
            if route.endpoint is Endpoint.MODEL_INFER:
                self._model = model = core.resolve(route.model, route.version)
                if model.spec.decoupled:
                    raise InferenceError(
                        "HTTP end point doesn't support models with decoupled transaction policy", Code.UNSUPPORTED
                    )
        except InferenceError as exc:
            self._refusal = exc

    @classmethod
    def of_bad_request(cls, core: Core, connection: Connection) -> Exchange:
        """The exchange that answers what cannot be read."""
        return cls(core, connection, _BAD)

    @property
    def refused(self) -> bool:
        """Whether the head alone is reason enough to refuse the request."""
        return self._refusal is not None

    # The request arrives.

    def direct_body(self) -> memoryview | None:
        """Where the socket may read the body to; None if it has no binary tensors, or if its length is not known."""
        model, request = self._model, self._head
        lead = request.header_length
        if self._refusal is not None or model is None or lead is None or not 0 <= lead < request.content_length:
            return None
        try:
            model.check_serving()
            self._slot = model.memory.allocate(request.content_length, lead)
        except InferenceError as exc:
            self._refusal = exc
            return None
        return self._slot.view

    def take(self, data: bytes) -> None:
        """A piece of a body that `direct_body` had no place for."""
        if self._refusal is None:
            if not self._body:
                self._body = bytearray()
            assert isinstance(self._body, bytearray)  # a body comes whole or in pieces
            self._body += data
            try:
                self._check_size(len(self._body))
            except InferenceError as exc:
                self._refusal = exc
        if self._refusal is not None:
            self._body = b""
            self._connection.discarded(len(data))

    def _check_size(self, size: int) -> None:
        limit = self._core.settings.http_max_input_size
        if size > limit:
            raise InferenceError(
                f"the request's body has {size} bytes or more, the server accepts {limit}: see --http-max-input-size",
                Code.INVALID_ARG,
            )

    def finish(self, body: bytes) -> None:
        """The body is complete: it is in `body`, or was taken before. Act on the request."""
        if body:
            self._body = body
        self._count()
        try:
            if self._refusal is not None:
                raise self._refusal
            if self._model is not None:
                self._infer(self._model)
            else:
                self._respond(*answer(self._core, self._head.route, bytes(self._body)))
        except InferenceError as exc:
            self._fail(exc)

    def _infer(self, model: ModelVersion) -> None:
        model.check_serving()  # it may have gone while the body came in
        lead, slot = self._head.header_length, self._slot
        if slot is None and lead is not None and 0 <= lead < len(self._body):
            slot = self._slot = model.memory.allocate(len(self._body), lead)
            slot.fill(self._body)
        if slot is None or not lead:
            # There is nothing to remember where the body is JSON, or all contents.
            body = memoryview(self._body) if slot is None else slot.view
            request, self._options = decode_infer(body, lead, model.spec, base=-1 if slot is None else slot.offset)
            self._give_slot(request.slots)
            self._start(model, model.accept(request, self._done))
            return
        header = bytes(self._body[:lead]) if self._body else slot.view[:lead].tobytes()
        plan = model.plans.find(header, slot.size)
        if plan is not None:
            self._options = plan.options
            self._slot = None  # the job's from here on
            job = plan.job(slot, self._done, time.monotonic_ns())
        else:
            request, self._options = decode_infer(slot.view, lead, model.spec, base=slot.offset)
            self._give_slot(request.slots)
            job = model.accept(request, self._done)
            model.plans.remember(header, job, slot, self._options)
        self._start(model, job)

    def _start(self, model: ModelVersion, job: Job) -> None:
        self._job = job
        model.start(job)

    def _give_slot(self, slots: list[Slot]) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slots.append(slot)

    # The response.

    def _done(self, outcome: InferResponse | InferenceError) -> None:
        self._job = None  # it refers to us
        if isinstance(outcome, InferenceError):
            self._fail(outcome)
            return
        if self._abandoned:
            outcome.release()
            return
        try:
            document, document_length, binary = encode_infer(outcome, self._options)
        except InferenceError as exc:
            outcome.release()
            self._fail(exc)
            return
        length = len(document)
        for part in binary:
            length += len(part)
        self.length = length
        self.parts = [infer_head(document_length, length, self.keep_alive), document, *binary]
        self.release = outcome.release
        self._connection.answered()

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error of the protocol itself."""
        self._free()
        self._count()
        self._respond(status, encode_error(message))

    def cancel(self) -> None:
        """If the model has not begun with the request, it never will: the answer is that it was cancelled."""
        if self._job is not None and self._model is not None:
            self._model.scheduler.cancel(self._job)

    def abandon(self) -> None:
        """The client is gone: free what the exchange holds, and drop the response if it still comes."""
        self._abandoned = True
        self._free()
        self.cancel()
        self.release()
        self.release = _nothing
        if self._counted:
            self._core.end_request()

    def _count(self) -> None:
        """From here on the request is in flight. Before, while it comes in, nobody waits for it but its client."""
        self._counted = True
        self._core.in_flight += 1

    def _fail(self, failure: InferenceError) -> None:
        self._job = None
        self._free()
        if not self._abandoned:
            self._respond(STATUS_OF[failure.code], encode_error(failure.message))

    def _respond(self, status: int, body: bytes) -> None:
        self.length = len(body)
        self.parts = [head(status, len(body), self.keep_alive), body]
        self._connection.answered()

    def _free(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.free()
