# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The base of all gRPC calls. A call does no I/O: it writes to the HTTP/2 session.

Each way to act on a request has a class of its own: see calls.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.compression import decompress
from pyruntime.runtime.frontends.common.request_log import LoggedCalls, log_cancelled_call, log_failed_call
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.status import HEAD, STATUS_OF, Status, trailers, trailers_only
from pyruntime.runtime.inference.pending_bytes import Claim, PendingBytesError, Share
from pyruntime.runtime.native._http2 import Session
from pyruntime.utils.errors import InferenceError

UNKNOWN_ENCODING = "a message is compressed, and the header grpc-encoding does not say how"

# The answers to Place in native/_http2.pyi.
Place = memoryview | tuple[memoryview, int, Callable[[int], int]] | Literal[False] | None

# For each of the raw contents of a message: its offset in the buffer, and its length, in bytes.
Raws = tuple[tuple[int, int], ...]

# Triton's limit: the largest signed 32-bit integer.
MESSAGE_BYTES_MAX = 2**31 - 1
# A client may take this long to send a message that a call waits for, plus the time for its size at this rate.
MESSAGE_S_MAX = 60.0
BYTES_PER_S_MIN = 64 << 10
# The bytes of documents that may wait for a client which does not read them, on all calls of a connection together.
UNREAD_BYTES_MAX = 16 << 20
# Why a call is refused, or an idle one ends, in Triton's words; and why an idle one ends that Triton would keep.
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
GIVES_WAY = "the stream was idle, and the server has as many connections as it can serve"


class Connection(Protocol):
    """The connection as its calls see it."""

    @property
    def session(self) -> Session: ...

    @property
    def share(self) -> Share:
        """The connection's share of the pending bytes."""

    @property
    def unread(self) -> Claim:
        """Counts the bytes of documents that the client has not read yet."""

    def said(self) -> None:
        """The session has something to send."""

    def over(self, stream: int) -> None:
        """The call on this stream is over: later events of the stream are dropped."""

    def answered(self, stream: int) -> None:
        """The call on this stream is over, and the session has its response."""

    def repeats(self, head: bytes) -> None:
        """A call with this packed head was answered by its message: see repeated_requests.py."""

    def call_later(self, delay_s: float, call_back: Callable[[], None]) -> Callable[[], None]:
        """Call back after `delay_s` seconds. The returned function cancels this."""


class Call(ABC):
    """See the module. The connection reports what the client does; the handlers of the request call the rest."""

    # Whether each message takes little time on the event loop's thread: see rounds.py.
    is_prompt = True

    # Defaults are class attributes: most calls change few of them, and every attribute set in __init__ costs time.
    _end_deadline: Callable[[], None] | None = None
    _begun = False
    _over = False
    _head_of_response = HEAD
    # When `check` first found the call waiting for a message, and how long it may wait, in seconds.
    _waiting_since: float | None = None
    _message_s_max = MESSAGE_S_MAX
    # The longest message that the client may send, in bytes.
    _message_bytes_max = MESSAGE_BYTES_MAX

    def __init__(self, state: ServerState, connection: Connection, stream: int, head: CallHead) -> None:
        self._state = state
        self._connection = LoggedCalls(connection, head.path) if state.log_settings.verbose else connection
        self._stream = stream
        self._head = head

    @property
    def is_over(self) -> bool:
        """Whether nothing more is sent to the client."""
        return self._over

    @property
    def path(self) -> str:
        """The path of an existing procedure."""
        return self._head.path

    # Events of the client.

    @abstractmethod
    def message(self, message: bytes, ended: bool) -> None:
        """A message has arrived; `ended`: it is the last one."""

    def compressed(self, message: bytes, ended: bool) -> None:
        """A compressed message has arrived. It is decompressed at once: calls with a large limit do otherwise."""
        if self._head.encoding == "identity":
            self.fail(Status.INTERNAL, UNKNOWN_ENCODING)
            return
        try:
            message = decompress(message, self._head.encoding, self._message_bytes_max)
        except InferenceError as exc:
            self.fail(Status.RESOURCE_EXHAUSTED, exc.message)
            return
        self.message(message, ended)

    def place(self, meta: bytes, left: int) -> Place:
        """Where a large message may go: see Place in native/_http2.pyi. Only inference calls have such a place."""
        return None

    def placed(self, meta: bytes, raws: Raws, ended: bool) -> None:
        """A message has arrived. Its raw contents are in the buffer that `place` returned."""
        raise AssertionError("no place was given for it")

    @abstractmethod
    def ended(self) -> None:
        """The client sends no more; it ended the stream without another message."""

    def cancelled(self) -> None:
        """The client has cancelled the call or disconnected: no response reaches it."""
        if self._state.log_settings.verbose:
            log_cancelled_call(self._head.path)
        self._leave()
        self._cancel()

    def begin_deadline(self, timeout_s: float) -> None:
        """Fail the call with DEADLINE_EXCEEDED after `timeout_s` seconds."""
        self._end_deadline = self._connection.call_later(max(timeout_s, 0.0), self._expired)

    @property
    def waits_for_client(self) -> bool:
        """Whether the call waits for the client to send more, or holds memory for that."""
        return False

    def check(self, now: float) -> None:
        """Fail the call if the client takes too long. `now` is in seconds, of the event loop's clock."""
        if not self.waits_for_client:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since >= self._message_s_max:
            self.fail(Status.DEADLINE_EXCEEDED, f"the request did not come in within {self._message_s_max:.0f} s")

    @property
    def is_idle(self) -> bool:
        """Whether the call waits for nothing but its client, which is under no duty to say more."""
        return False

    def drain(self) -> None:  # noqa: B027 - most wait for their answer
        """End the call if it is idle: the server is about to stop, or needs the connection for others."""

    def _end_idle(self) -> None:
        self.fail(Status.UNAVAILABLE, SHUTTING_DOWN if self._state.exiting else GIVES_WAY)

    # Responses.

    def fail(self, status: int, message: str) -> None:
        """End the call with an error. It has no effect once the call is over."""
        if self._over:
            return
        if self._state.log_settings.verbose:
            log_failed_call(self._head.path, status, message)
        self._leave()
        said = trailers(status, message) if self._begun else trailers_only(status, message)
        self._connection.session.refuse(self._stream, said)
        self._connection.said()
        self._cancel()

    def _fail_with(self, failure: InferenceError) -> None:
        self.fail(STATUS_OF[failure.code], failure.message)

    def fail_too_large(self, size: int) -> None:
        """End the call because of a message of `size` bytes."""
        self.fail(Status.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._message_bytes_max})")

    def _client_reads(self) -> bool:
        """Whether there may be one more document for the client. If it does not read them, the call fails."""
        if self._connection.unread.held <= UNREAD_BYTES_MAX:
            return True
        self.fail(Status.RESOURCE_EXHAUSTED, f"more than {UNREAD_BYTES_MAX} bytes wait for the client")
        return False

    def _write_document(self, document: bytes) -> bool:
        """Send a message that counts among the pending bytes. Returns False, and fails the call, for lack of room."""
        release = self._count_unread(len(document))
        if release is None:
            return False
        self._begin()
        self._connection.session.message(self._stream, [document], release)
        return True

    def _count_unread(self, size: int) -> Callable[[], None] | None:
        """Count `size` bytes of a message among the pending ones. Returns the message's release.

        Without room for them the call fails, and there is no release.
        """
        unread = self._connection.unread
        try:
            unread.take(size)
        except PendingBytesError as exc:
            self.fail(Status.RESOURCE_EXHAUSTED, exc.message)
            return None
        return partial(unread.give_back, size)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._connection.session.begin(self._stream, self._head_of_response)

    def _leave(self) -> None:
        """Mark the call as over, stop its deadline, and leave the connection."""
        self._over = True
        if self._end_deadline is not None:
            self._end_deadline()
            self._end_deadline = None
        self._connection.over(self._stream)

    def _expired(self) -> None:
        self._end_deadline = None
        self.fail(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    @abstractmethod
    def _cancel(self) -> None:
        """Stop the work for the call, which is over, and free its memory."""
