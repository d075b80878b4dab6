# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The base of all exchanges. An exchange is one HTTP request and its response.

It chooses where the body goes, acts on the request, and keeps the response until its connection can send it. It does no
I/O. Each way to act on a request has a class of its own: see exchanges.py.
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
from pyruntime.runtime.frontends.http.kserve_response import encode_error
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.response_head import ACCEPTED_ENCODINGS, JSON, STATUS_OF, head
from pyruntime.runtime.inference.intake import Activities
from pyruntime.runtime.inference.threads import DECOMPRESSED_AT_ONCE_MAX, at_once, in_thread
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.utils.errors import Code, InferenceError

# Responses up to this size, in bytes, are joined and sent with one call; larger ones are sent without a copy.
JOINED_BYTES_MAX = 32 << 10

# The activities in traces of HTTP requests. A response is sent after `respond`, when the transport can take it.
ACTIVITIES = Activities("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", sends_in_respond=False)


class Connection(Protocol):
    """The connection as its exchanges see it."""

    def answered(self) -> None:
        """The exchange has its response, or a piece of it."""

    def discarded(self, nbytes: int) -> None:
        """`nbytes` of a body were discarded."""


class Piece(NamedTuple):
    """A part of a response, to be sent as it is. `release` must be called once it is sent."""

    data: bytes
    release: Callable[[], None]


def nothing_to_release() -> None:
    """The `release` of a response that owns no memory."""


def note_sending(trace: Trace, release: Callable[[], None], *, is_last: bool) -> Callable[[], None]:
    """Note in a trace that a response, or a piece of one, is about to be sent.

    Returns the replacement of its `release`. The trace is closed with the last piece.
    """
    trace.note(ACTIVITIES.send_start, time.monotonic_ns())

    def sent() -> None:
        release()
        trace.note(ACTIVITIES.send_end, time.monotonic_ns())
        if is_last:
            trace.close()

    return sent


class Exchange(ABC):
    """See the module. Subclasses act on the request.

    A complete response is in `parts`, and `release` must be called once they are sent. A response may also come in
    pieces: then `parts` stays None, and `next_piece` is called until the response has `ended`.
    """

    # Defaults are class attributes: most requests change few of them, and every attribute set in __init__ costs time.
    keep_alive = True
    length = 0
    parts: list[bytes | memoryview] | None = None
    release: Callable[[], None] = staticmethod(nothing_to_release)
    ended = False
    # The client is gone.
    abandoned = False
    # The time when the request began to arrive, noted only while tracing is on, and its trace if it has one.
    received_ns = 0
    trace: Trace | None = None
    _body: bytes | bytearray = b""
    _refusal: InferenceError | None = None
    _error_lines = JSON
    _counted = False

    def __init__(self, state: ServerState, connection: Connection, head: Head) -> None:
        self._state = state
        self._connection = connection
        self.head = head
        if not head.keep_alive:
            self.keep_alive = False
        if state.tracer.active:
            self.received_ns = time.monotonic_ns()
        if state.log_settings.verbose:
            self._connection = LoggedConnection(connection, self, head.line)
        if head.encoding and head.encoding not in ENCODINGS:
            self._error_lines = JSON + ACCEPTED_ENCODINGS
            self._refusal = InferenceError("Unsupported compression type", Code.UNSUPPORTED)
        if head.content_length > state.settings.http_max_input_size:
            self._error_lines = JSON
            self._refusal = self._too_large(head.content_length)

    # The request arrives.

    def check_head(self) -> bool:
        """Called before the body arrives. Returns False if the head suffices to refuse the request."""
        return self._refusal is None

    def direct_body(self) -> memoryview | None:
        """After `check_head`: the memory into which the socket may read the body, or None."""
        return None

    def take(self, data: bytes) -> None:
        """Take a piece of a body for which `direct_body` gave no memory."""
        if self._refusal is None:
            if not self._body:
                self._body = bytearray()
            assert isinstance(self._body, bytearray)  # a body comes whole or in pieces
            self._body += data
            if len(self._body) > self._state.settings.http_max_input_size:
                self._refusal = self._too_large(len(self._body))
        if self._refusal is not None:
            self._body = b""
            self._connection.discarded(len(data))

    def _too_large(self, size: int) -> InferenceError:
        limit = self._state.settings.http_max_input_size
        return InferenceError(
            f"the request's body has {size} bytes or more, the server accepts {limit}: see --http-max-input-size",
            Code.INVALID_ARG,
        )

    def finish(self, body: bytes) -> None:
        """Act on the request. The body is complete: it is `body`, or was taken before."""
        if body:
            self._body = body
        # A request in flight from here on: while it arrived, only its client waited for it.
        self._counted = True
        self._state.in_flight += 1
        try:
            if self._refusal is not None:
                raise self._refusal
            if self.head.encoding and self._body:
                self._decompress()
            else:
                self._act()
        except InferenceError as exc:
            self.reject(exc)

    def _decompress(self) -> None:
        """Decompress the body, in a thread if it is large, and then act on the request."""
        state, body, self._body = self._state, self._body, b""
        work = partial(decompress, body, self.head.encoding, state.settings.http_max_input_size)
        if len(body) > DECOMPRESSED_AT_ONCE_MAX:
            in_thread(state.tasks, work, self._decompressed, "decompress a request")
        else:
            at_once(work, self._decompressed)

    def _decompressed(self, body: bytes | InferenceError) -> None:
        if self.abandoned:
            return
        try:
            if isinstance(body, InferenceError):
                raise body
            self._body = body
            self._act()
        except InferenceError as exc:
            self.reject(exc)

    @abstractmethod
    def _act(self) -> None:
        """Act on the request. Raises InferenceError to refuse it."""

    # The response.

    def begin_sending(self) -> None:
        """Note in the trace that the response is about to be sent."""
        if self.trace is not None:
            self.release = note_sending(self.trace, self.release, is_last=True)
            self.trace = None

    def next_piece(self) -> Piece | None:
        """The next piece of the response, None while there is none. The last piece sets `ended`."""
        return None

    def refuse(self, status: int, message: str) -> None:
        """Answer a request that breaks the rules of HTTP itself."""
        self._free()
        self._counted = True
        self._state.in_flight += 1
        self._respond(status, encode_error(message))

    def reject(self, failure: InferenceError) -> None:
        """Answer with an error."""
        self._free()
        self._respond(STATUS_OF[failure.code], encode_error(failure.message), self._error_lines)

    def cancel(self) -> None:  # noqa: B027 - most have nothing to cancel
        """Cancel the request: the client no longer waits for it."""

    def take_back(self) -> None:  # noqa: B027 - most are never answered by a native thread
        """From here on only the connection may send the response, and no native thread."""

    def abandon(self) -> None:
        """Cancel the request, free its memory, and drop later responses: the client is gone."""
        self.abandoned = True
        self.cancel()
        self._free()
        self.release()
        self.release = nothing_to_release
        if self.trace is not None:
            self.trace.close()
        if self._counted:
            self._state.end_request()

    def _respond(self, status: int, body: bytes, content_type: bytes = JSON) -> None:
        if not self.abandoned:
            self.length = len(body)
            self.parts = [head(status, len(body), self.keep_alive, content_type), body]
            self._connection.answered()

    def _free(self) -> None:  # noqa: B027 - most have nothing
        """Free the memory of the request."""
