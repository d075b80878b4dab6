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
from typing import NamedTuple, Protocol, TypeVar

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.compression import ENCODINGS
from pyruntime.runtime.frontends.common.decompression import Decompression
from pyruntime.runtime.frontends.common.request_log import LoggedConnection
from pyruntime.runtime.frontends.http.kserve_response import encode_error, encode_failure
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.response_head import (
    ACCEPTED_ENCODINGS,
    CLOSE,
    JSON,
    KEEP_ALIVE,
    STATUS_OF,
    head,
    with_line,
)
from pyruntime.runtime.inference.intake import Activities
from pyruntime.runtime.inference.pending_bytes import Claim, PendingBytesError
from pyruntime.runtime.inference.threads import in_thread
from pyruntime.runtime.inference.turns import Turn
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.utils.errors import Code, InferenceError

# The longest body, decompressed, of a request to an endpoint that expects no tensors and no files: settings, names of
# regions. The longest that clients send have some hundred bytes.
DOCUMENT_BYTES_MAX = 64 << 10
# Responses up to this size, in bytes, are joined and sent with one call; larger ones are sent without a copy.
JOINED_BYTES_MAX = 32 << 10

# The activities in traces of HTTP requests. A response is sent after `respond`, when the transport can take it.
ACTIVITIES = Activities("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", sends_in_respond=False)


T = TypeVar("T")


class Connection(Protocol):
    """The connection as its exchanges see it."""

    @property
    def is_local(self) -> bool:
        """Whether the client's address is one that only the server's own machine can have."""

    def answered(self) -> None:
        """The exchange has its response, or a piece of it."""

    def discarded(self, nbytes: int) -> None:
        """`nbytes` of a body were discarded."""

    def claim(self) -> Claim:
        """The claim for the bytes of a request's body, of the connection's share."""

    def has_room(self) -> None:
        """There is room for the piece of a body that had to wait, or the request is refused meanwhile."""


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


def _too_large(header_length: int | None, size: int, limit: int) -> str:
    """Triton's words for a body of `size` bytes; it has no limit for what follows a JSON header, and no words."""
    if header_length == 0:
        return f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. Use"
    part = "request JSON size" if header_length is None else "request size"
    return f"{part} of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use"


class Exchange(ABC):
    """See the module. Subclasses act on the request.

    A complete response is in `parts`, and `release` must be called once they are sent. A response may also come in
    pieces: then `parts` stays None, and `next_piece` is called until the response has `ended`.
    """

    # Defaults are class attributes: most requests change few of them, and every attribute set in __init__ costs time.
    keep_alive = True
    # The client is told that its connection stays.
    _says_to_stay = False
    length = 0
    parts: list[bytes | memoryview] | None = None
    release: Callable[[], None] = staticmethod(nothing_to_release)
    ended = False
    # The client is gone.
    abandoned = False
    # The client sends nothing more, and waits no longer: most such clients are gone.
    _is_cancelled = False
    # Requests with this head may be answered by their bytes: see repeated_requests.py.
    is_repeated = False
    # The time when the request began to arrive, noted only while tracing is on, and its trace if it has one.
    received_ns = 0
    trace: Trace | None = None
    # The longest body, decompressed, in bytes; it may not exceed --http-max-input-size either.
    body_bytes_max = DOCUMENT_BYTES_MAX
    _body: bytes | bytearray = b""
    # What the body takes of the budget of pending bytes, unless it came in one read; and how many bytes of it are for
    # pieces that are still to come.
    _claim: Claim | None = None
    _room = 0
    # What was received of a body that has become larger, in bytes.
    _received = 0
    # The turn to be decompressed and parsed, of a large request.
    _turn: Turn | None = None
    # A thread reads or writes the memory of the request.
    _in_thread = False
    _decompression: Decompression | None = None
    _refusal: InferenceError | None = None
    _error_lines = JSON
    _counted = False

    def __init__(self, state: ServerState, connection: Connection, head: Head) -> None:
        self._state = state
        self._connection = connection
        self.head = head
        if not head.keep_alive:
            self.keep_alive = self._says_to_stay = head.asks_to_stay
        if state.tracer.active:
            self.received_ns = time.monotonic_ns()
        if state.log_settings.verbose:
            self._connection = LoggedConnection(connection, self, head.line)
        if head.encoding and head.encoding not in ENCODINGS:
            self._error_lines = JSON + ACCEPTED_ENCODINGS
            self._refusal = InferenceError("Unsupported compression type", Code.UNSUPPORTED)
        if head.content_length > DOCUMENT_BYTES_MAX or head.content_length > state.settings.http_max_input_size:
            self._check_length(head.content_length)

    # The request arrives.

    def check_head(self) -> bool:
        """Called before the body arrives. Returns False if the head suffices to refuse the request."""
        return self._refusal is None

    def direct_body(self) -> memoryview | None:
        """After `check_head`: the memory into which the socket may read the body, or the beginning of it, or None."""
        return None

    def more_direct(self) -> memoryview | None:
        """The memory for the next part of the body, when all before is filled.

        None if there is none: the request is refused, and `take` discards the rest.
        """
        raise AssertionError("no memory was given for a part of the body")

    def admit(self, nbytes: int) -> bool:
        """Make room for `nbytes` of a body, of which `take` brings at most so many next.

        Returns False if they must wait: then the connection's `has_room` is called later.
        """
        wanted = nbytes - self._room
        if wanted <= 0 or self._refusal is not None:
            return True
        if self._claim is None:
            self._claim = self._connection.claim()
        claim = self._claim
        try:
            if not claim.take_or_wait(wanted, partial(self._admitted, wanted)):
                return not claim.waits
            self._room = nbytes
        except PendingBytesError as exc:
            self._refuse_body(exc)
        return True

    def _admitted(self, nbytes: int, failure: PendingBytesError | None) -> None:
        if failure is None:
            self._room += nbytes
        else:
            self._refuse_body(failure)
        self._connection.has_room()

    def take(self, data: bytes) -> None:
        """Take a piece of a body for which `direct_body` gave no memory, after `admit`."""
        if self._refusal is None:
            if not self._body:
                self._body = bytearray()
            assert isinstance(self._body, bytearray)  # a body comes whole or in pieces
            self._body += data
            self._room -= len(data)
            self._check_length(len(self._body))
        if self._refusal is not None:
            self._connection.discarded(len(data))

    def _check_length(self, size: int) -> None:
        """Refuse a body of `size` bytes or more, if that is too much."""
        limit = min(self._state.settings.http_max_input_size, self.body_bytes_max)
        if size <= limit:
            return
        if limit == self.body_bytes_max:
            message = (
                f"request size of {size} bytes exceeds the maximum allowed input size of {limit} bytes of this endpoint"
            )
        else:
            message = f"{_too_large(self.head.header_length, size, limit)} --http-max-input-size to increase the limit."
        self._error_lines = JSON
        self._refuse_body(InferenceError(message, Code.INVALID_ARG))

    def _refuse_body(self, refusal: InferenceError) -> None:
        """Discard what is there of the body, and what is still to come."""
        self._refusal = refusal
        self._end_claim()

    def finish(self, body: bytes) -> None:
        """Act on the request. The body is complete: it is `body`, or was taken before."""
        if body:
            self._body = body
        # A request in flight from here on: while it arrived, only its client waited for it.
        self._counted = True
        self._state.in_flight += 1
        if self._refusal is not None:
            self.reject(self._refusal)
            return
        try:
            if self.head.encoding and self._body:
                self._decompress()
            else:
                self._act()
        except InferenceError as exc:
            self.reject(exc)

    def _decompress(self) -> None:
        """Decompress the body, in threads if it is large, and then act on the request."""
        body, self._body = self._body, b""
        limit = min(self.body_bytes_max, self._state.settings.http_max_input_size)
        if self._claim is None:
            self._claim = self._connection.claim()
        self._received = len(body)
        self._decompression = Decompression(
            self._state.tasks, self._claim, self._take_turn, body, self.head.encoding, limit, self._decompressed
        )
        self._decompression.begin()

    def _decompressed(self, body: bytearray | InferenceError) -> None:
        self._decompression = None
        if isinstance(body, InferenceError):
            self.reject(body)
            return
        self._body = body
        try:
            self._act()
        except InferenceError as exc:
            self.reject(exc)

    @abstractmethod
    def _act(self) -> None:
        """Act on the request. Raises InferenceError to refuse it."""

    def _run(self, work: Callable[[], T], then: Callable[[T], None], name: str) -> None:
        """Run `work` in a thread, when it is our turn, and then `then` on the event loop's thread.

        Nothing follows if the client is gone. The memory of the request is not freed while the thread works. If either
        of them raises InferenceError, the request is refused.
        """
        if self._take_turn(partial(self._begin_run, work, then, name)):
            self._begin_run(work, then, name)

    def _take_turn(self, then: Callable[[], None]) -> bool:
        """See Turn.take."""
        if self._turn is None:
            self._turn = self._state.turns.turn()
        if self._claim is None:
            self._claim = self._connection.claim()
        return self._turn.take(self._claim, then)

    def _begin_run(self, work: Callable[[], T], then: Callable[[T], None], name: str) -> None:
        self._in_thread = True
        in_thread(self._state.tasks, work, partial(self._ran, then), name)

    def _ran(self, then: Callable[[T], None], result: T | InferenceError) -> None:
        self._in_thread = False
        if self.abandoned:
            self._free()
            self._end_claim()
            return
        if isinstance(result, InferenceError):
            self.reject(result)
            return
        try:
            then(result)
        except InferenceError as exc:
            self.reject(exc)

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
        self._end_claim()
        self._counted = True
        self._state.in_flight += 1
        self._respond(status, encode_error(message))

    def reject(self, failure: InferenceError) -> None:
        """Answer with an error."""
        self._free()
        self._end_claim()
        self._respond(STATUS_OF[failure.code], encode_failure(failure), self._error_lines)

    @property
    def is_unwanted(self) -> bool:
        """Whether the client no longer waits for the request, or is gone: what takes long ends."""
        return self.abandoned or self._is_cancelled

    def cancel(self) -> None:
        """Cancel the request: the client no longer waits for it. Its body is decompressed no further."""
        self._is_cancelled = True
        decompression, self._decompression = self._decompression, None
        if decompression is not None:
            decompression.end()
            if not self.abandoned:
                self.reject(InferenceError("", Code.CANCELLED))

    def take_back(self) -> None:  # noqa: B027 - most are never answered by a native thread
        """From here on only the connection may send the response, and no native thread."""

    def abandon(self) -> None:
        """Cancel the request, free its memory, and drop later responses: the client is gone."""
        self.abandoned = True
        self.cancel()
        if not self._in_thread:
            self._free()
            self._end_claim()
        self.release()
        self.release = nothing_to_release
        if self.trace is not None:
            self.trace.close()
        if self._counted:
            self._state.end_request()

    def _respond(self, status: int, body: bytes, content_type: bytes = JSON, more: bytes = b"") -> None:
        """Answer. `more` are headers besides the usual ones."""
        self._end_claim()
        if not self.abandoned:
            self.length = len(body)
            self.parts = [self._persistent(head(status, len(body), self.keep_alive, content_type, more)), body]
            self._connection.answered()

    def _lines(self) -> bytes:
        """What the head of the response says of the connection."""
        if not self.keep_alive:
            return CLOSE
        return KEEP_ALIVE if self._says_to_stay else b""

    def _persistent(self, head: bytes) -> bytes:
        """`head`, which tells a client of HTTP/1.0 that the connection stays, if it does."""
        return with_line(head, KEEP_ALIVE) if self._says_to_stay and self.keep_alive else head

    def _end_claim(self) -> None:
        """Give back what the body takes, and the turn: nothing of it is needed in the heap any more."""
        self._body = b""
        claim, self._claim = self._claim, None
        self._room = 0
        if claim is not None:
            claim.end()
        self._end_turn()

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.end()

    def _free(self) -> None:  # noqa: B027 - most have nothing
        """Free the memory of the request."""
