# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP request and its response.

An exchange collects a head and a body, hands them to the core or to an endpoint, and keeps the response until its
connection can send it. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyruntime.runtime.core import Core
from pyruntime.runtime.frontends.endpoints import answer
from pyruntime.runtime.frontends.http_head import STATUS_OF, head, infer_head
from pyruntime.runtime.frontends.kserve_request import ALL_JSON, OutputOptions, decode_infer
from pyruntime.runtime.frontends.kserve_response import encode_error, encode_infer
from pyruntime.runtime.frontends.routes import Endpoint, Route, match
from pyruntime.runtime.inference import InferResponse
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.model import ModelVersion
from pyruntime.utils.errors import Code, InferenceError


class Connection(Protocol):
    """What an exchange tells its connection."""

    def answered(self) -> None:
        """The exchange has its response."""

    def discarded(self, nbytes: int) -> None:
        """So much of a body was thrown away."""


def _nothing() -> None:
    pass


class Exchange:
    """See the module. `parts` is the response, None until there is one; `release` must be called once it is sent."""

    __slots__ = (
        "_abandoned",
        "_body",
        "_buffer",
        "_connection",
        "_content_length",
        "_core",
        "_encoding",
        "_header_length",
        "_model",
        "_options",
        "_received",
        "_refusal",
        "_route",
        "_slot",
        "expects_continue",
        "keep_alive",
        "length",
        "parts",
        "release",
    )

    def __init__(self, core: Core, connection: Connection) -> None:
        self._core = core
        self._connection = connection
        self._route = Route(Endpoint.REFUSED)
        self._content_length = -1
        self._header_length: int | None = None
        self._encoding = b""
        self._model: ModelVersion | None = None
        self._options: OutputOptions = ALL_JSON
        self._slot: RequestSlot | None = None
        self._buffer: bytearray | None = None
        self._body: bytes = b""
        self._received = 0
        self._refusal: InferenceError | None = None
        self._abandoned = False
        self.expects_continue = False
        self.keep_alive = True
        self.length = 0
        self.parts: list[bytes | memoryview] | None = None
        self.release: Callable[[], None] = _nothing

    # The request arrives.

    def header(self, name: bytes, value: bytes) -> None:
        """One header field."""
        name = name.lower()
        if name == b"content-length":
            self._content_length = int(value)
        elif name == b"inference-header-content-length":
            self._header_length = _header_length(value)
        elif name == b"expect":
            self.expects_continue = value.lower() == b"100-continue"
        elif name == b"content-encoding":
            self._encoding = value.lower()

    def begin(self, method: str, target: bytes) -> None:
        """The head is complete: find out who is asked, and where the body goes."""
        self._core.begin_request()
        self._route = match(method, target)
        try:
            self._check_size(max(0, self._content_length))
            if self._encoding not in (b"", b"identity"):
                raise InferenceError("Unsupported compression type", Code.UNSUPPORTED)
            if self._route.endpoint is Endpoint.MODEL_INFER:
                self._begin_infer()
        except InferenceError as exc:
            self._refusal = exc
            self.expects_continue = False

    def _begin_infer(self) -> None:
        model = self._core.resolve(self._route.model, self._route.version)
        if model.spec.decoupled:
            raise InferenceError(
                "HTTP end point doesn't support models with decoupled transaction policy", Code.UNSUPPORTED
            )
        self._model = model
        lead = self._header_length
        # A body that is all JSON is of no use in shared memory; one of unknown length is moved there later.
        if lead is not None and self._content_length > lead >= 0:
            self._slot = model.memory.allocate(self._content_length, lead)

    def _check_size(self, size: int) -> None:
        limit = self._core.settings.http_max_input_size
        if size > limit:
            raise InferenceError(
                f"the request's body has {size} bytes or more, the server accepts {limit}: see --http-max-input-size",
                Code.INVALID_ARG,
            )

    def direct_body(self, least: int) -> memoryview | None:
        """Where the rest of the body can be read to without the parser; None if it cannot, or is less than `least`."""
        if self._slot is None or self._content_length - self._received < least:
            return None
        received, self._received = self._received, self._content_length
        return self._slot.view[received:]

    def body(self, data: bytes) -> None:
        """A piece of the body."""
        at = self._received
        self._received = at + len(data)
        if self._refusal is not None:
            self._connection.discarded(len(data))
        elif self._slot is not None:
            self._slot.view[at : self._received] = data
        elif at == 0 and len(data) == self._content_length:
            self._body = data
        else:
            if self._buffer is None:
                self._buffer = bytearray()
            try:
                self._check_size(self._received)
            except InferenceError as exc:
                self._refusal, self._buffer = exc, None
                return
            self._buffer += data

    def finish(self) -> None:
        """The body is complete: act on the request."""
        try:
            if self._refusal is not None:
                raise self._refusal
            if self._model is not None:
                self._infer(self._model)
            else:
                status, body = answer(self._core, self._route, self._contents())
                self._respond(status, body)
        except InferenceError as exc:
            self._fail(exc)

    def _contents(self) -> bytes:
        return self._body if self._buffer is None else bytes(self._buffer)

    def _infer(self, model: ModelVersion) -> None:
        slot = self._slot
        if slot is not None:
            body, base = slot.view, slot.offset
        else:
            body, base = memoryview(self._contents()), -1
        request, self._options = decode_infer(body, self._header_length, model.spec, base=base)
        if slot is not None:
            request.slots.append(slot)
            self._slot = None  # the request's from here on
        request.version = model.version
        self._core.infer(model, request, self._done)

    # The response.

    def _done(self, outcome: InferResponse | InferenceError) -> None:
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
        self._respond(status, encode_error(message))

    def abandon(self) -> None:
        """The client is gone: free what the exchange holds, and drop the response if it still comes."""
        self._abandoned = True
        self._free()
        self.release()
        self.release = _nothing
        self._core.end_request()

    def _fail(self, failure: InferenceError) -> None:
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


def _header_length(value: bytes) -> int:
    """The Inference-Header-Content-Length; -1, which the codec refuses, if it is no number of a sensible length."""
    return int(value) if value.isdigit() and len(value) <= 19 else -1
