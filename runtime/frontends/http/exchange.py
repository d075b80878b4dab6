# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP request and its response.

An exchange knows where its body goes, has the request acted on, and keeps the response until its connection can send
it. It does no I/O. Here is what all exchanges have in common; there is a class for each way to act on a request.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.compression import ENCODINGS, decompress
from pyruntime.runtime.frontends.common.request_log import LoggedConnection
from pyruntime.runtime.frontends.common.threads import at_once, in_thread
from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY
from pyruntime.runtime.frontends.http.kserve_response import encode_error, encode_infer
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.response_head import ACCEPTED_ENCODINGS, JSON, STATUS_OF, head, infer_head
from pyruntime.runtime.frontends.http.trace import begin_trace, sending
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.scheduling.job import Job
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.utils.errors import Code, InferenceError

# A compressed body is taken apart at once up to this size: it becomes a thousand times as large at worst, which takes
# 30 ms then. A larger one is left to a thread.
DECOMPRESSED_AT_ONCE_MAX = 16 << 10


class Connection(Protocol):
    """What an exchange tells its connection."""

    def answered(self) -> None:
        """The exchange has its response, or a piece of it."""

    def discarded(self, nbytes: int) -> None:
        """So much of a body was thrown away."""


class Piece(NamedTuple):
    """A part of a response, to be sent as it is; `release` must be called once the client has taken it."""

    data: bytes
    release: Callable[[], None]


def nothing_to_release() -> None:
    """The `release` of what refers to nobody's memory."""


class Exchange(ABC):
    """See the module. Subclasses act on the request.

    The response is `parts` once there is one, and `release` must be called when they are sent. Or it comes in pieces:
    `parts` stays None then, and `next_piece` is asked until the response is `ended`.
    """

    # Defaults stand here, not in __init__: most requests change few of them, and every request pays for what they set.
    keep_alive = True
    length = 0
    parts: list[bytes | memoryview] | None = None
    release: Callable[[], None] = staticmethod(nothing_to_release)
    ended = False
    # Of the subclass: whether a model executes the request, and whether it may be a decoupled one.
    _executes = False
    _takes_decoupled = False
    _model: ModelVersion | None = None
    _job: Job | None = None
    _body: bytes | bytearray = b""
    _refusal: InferenceError | None = None
    _error_lines = JSON
    _abandoned = False
    _counted = False
    # When it began to come in, while requests are traced, and its trace if this one is.
    _received_ns = 0
    trace: Trace | None = None

    def __init__(self, state: ServerState, connection: Connection, head: Head) -> None:
        self._state = state
        self._connection = connection
        self._head = head
        if not head.keep_alive:
            self.keep_alive = False
        if state.tracer.active:
            self._received_ns = time.monotonic_ns()
        if state.log_settings.verbose:
            self._connection = LoggedConnection(connection, self, head.line)
        try:
            if head.content_length > state.settings.http_max_input_size:
                self._check_size(head.content_length)
            if head.encoding and head.encoding not in ENCODINGS:
                self._error_lines = JSON + ACCEPTED_ENCODINGS
                raise InferenceError("Unsupported compression type", Code.UNSUPPORTED)
            if self._executes:
                self._model = model = state.resolve(head.route.model, head.route.version)
                if model.spec.decoupled and not self._takes_decoupled:
                    raise InferenceError(
                        "HTTP end point doesn't support models with decoupled transaction policy", Code.UNSUPPORTED
                    )
        except InferenceError as exc:
            self._refusal = exc

    @property
    def refused(self) -> bool:
        """Whether the head alone is reason enough to refuse the request."""
        return self._refusal is not None

    # The request arrives.

    def direct_body(self) -> memoryview | None:
        """Where the socket may read the body to; None if that is nowhere, or if its length is not known."""
        return None

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
        limit = self._state.settings.http_max_input_size
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
        if self._head.encoding and self._body and self._refusal is None:
            self._decompress()
        else:
            self._act_or_fail()

    def _act_or_fail(self) -> None:
        try:
            if self._refusal is not None:
                raise self._refusal
            self._act()
        except InferenceError as exc:
            self._fail(exc)

    def _decompress(self) -> None:
        """Have the body decompressed, and go on then."""
        state, body, self._body = self._state, self._body, b""
        work = partial(decompress, body, self._head.encoding, state.settings.http_max_input_size)
        if len(body) > DECOMPRESSED_AT_ONCE_MAX:
            in_thread(state.tasks, work, self._decompressed, "decompress a request")
        else:
            at_once(work, self._decompressed)

    def _decompressed(self, body: bytes | InferenceError) -> None:
        if isinstance(body, InferenceError):
            self._refusal = body
        else:
            self._body = body
        if not self._abandoned:
            self._act_or_fail()

    @abstractmethod
    def _act(self) -> None:
        """Do what the request asks for. Raises InferenceError for a request that is refused."""

    def _start(self, model: ModelVersion, job: Job) -> None:
        self._job = job
        tracer = self._state.tracer
        if tracer.active:
            self.trace = begin_trace(tracer, model, job, self._head.traceparent, self._received_ns)
        model.start(job)

    # The response.

    def begin_sending(self) -> None:
        """The response of a request that is traced goes out now."""
        if self.trace is not None:
            self.release = sending(self.trace, self.release, last=True)
            self.trace = None

    def next_piece(self) -> Piece | None:
        """The next piece of the response, None while there is none. With the last of them the response is `ended`."""
        return None

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error of the protocol itself."""
        self._free()
        self._count()
        self._respond(status, encode_error(message))

    def cancel(self) -> None:
        """Nobody waits for the model any longer: it need not begin with the request, or is told to stop."""
        if self._job is not None and self._model is not None:
            self._model.cancel(self._job)

    def take_back(self) -> None:  # noqa: B027 - most cannot be answered past us
        """More is to be done with the connection: the response must come through us, if it has not been sent."""

    def abandon(self) -> None:
        """The client is gone: free what the exchange holds, and drop what still comes of the response."""
        self._abandoned = True
        self._free()
        self.cancel()
        self.release()
        self.release = nothing_to_release
        if self.trace is not None:
            self.trace.close()
        if self._counted:
            self._state.end_request()

    def _count(self) -> None:
        """From here on the request is in flight. Before, while it comes in, nobody waits for it but its client."""
        self._counted = True
        self._state.in_flight += 1

    def _fail(self, failure: InferenceError) -> None:
        self._job = None
        self._free()
        self._respond(STATUS_OF[failure.code], encode_error(failure.message), self._error_lines)

    def _respond(self, status: int, body: bytes, content_type: bytes = JSON) -> None:
        if not self._abandoned:
            self.length = len(body)
            self.parts = [head(status, len(body), self.keep_alive, content_type), body]
            self._connection.answered()

    def _answer_in_binary(self, response: InferResponse) -> None:
        """Answer with all outputs as they are: `parts` are the head, the document, and each output."""
        document, document_length, binary = encode_infer(response, ALL_BINARY)
        length = len(document)
        for part in binary:
            length += len(part)
        self.length = length
        self.parts = [infer_head(document_length, length, self.keep_alive), document, *binary]
        self.release = response.release
        self._connection.answered()

    def _free(self) -> None:  # noqa: B027 - most have nothing
        """Give back the memory that the request came into."""
