# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Logs each request at the verbose level: its method and path, its status, and the time that it took.

The log costs nothing while it is off. While it is on, an exchange or a call reaches its connection through a proxy,
which logs the answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pyruntime.runtime.inference.pending_bytes import Claim, Share

_LOG = logging.getLogger("pyruntime.frontends")

# A longer path is cut: no URL of ours needs more.
SHOWN_LENGTH_MAX = 512

# "HTTP/1.1 " stands before the status of a response.
_STATUS = slice(9, 12)


S_co = TypeVar("S_co", covariant=True)


class ExchangeConnection(Protocol):
    """See http.exchange.Connection."""

    @property
    def is_local(self) -> bool: ...

    def answered(self) -> None: ...

    def discarded(self, nbytes: int) -> None: ...

    def claim(self) -> Claim: ...

    def has_room(self) -> None: ...


class LoggedExchange(Protocol):
    """The exchange of a request. `parts` are its response; None before there is one, and for a stream."""

    parts: list[bytes | memoryview] | None


class CallConnection(Protocol[S_co]):
    """See grpc.call.Connection."""

    @property
    def session(self) -> S_co: ...

    @property
    def share(self) -> Share: ...

    @property
    def unread(self) -> Claim: ...

    def said(self) -> None: ...

    def over(self, stream: int) -> None: ...

    def answered(self, stream: int) -> None: ...

    def repeats(self, head: bytes) -> None: ...

    def call_later(self, delay_s: float, call_back: Callable[[], None]) -> Callable[[], None]: ...


class LoggedConnection:
    """A proxy of the connection of one exchange. `line` is the request's method and path."""

    def __init__(self, connection: ExchangeConnection, exchange: LoggedExchange, line: str) -> None:
        self._connection = connection
        self._exchange: LoggedExchange | None = exchange
        self._line = line or "what is no request"
        self._begun_ns = time.monotonic_ns()

    def answered(self) -> None:
        """See Connection. Only the first answer is logged: for a stream, its beginning."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            parts = exchange.parts
            status = bytes(parts[0][_STATUS]).decode() if parts else "a stream"
            _LOG.debug("HTTP request: %s -> %s after %.3f ms", self._line, status, _since_ms(self._begun_ns))
        self._connection.answered()

    @property
    def is_local(self) -> bool:
        """See Connection."""
        return self._connection.is_local

    def discarded(self, nbytes: int) -> None:
        """See Connection."""
        self._connection.discarded(nbytes)

    def claim(self) -> Claim:
        """See Connection."""
        return self._connection.claim()

    def has_room(self) -> None:
        """See Connection."""
        self._connection.has_room()


class LoggedCalls(Generic[S_co]):
    """A proxy of the connection of one call. `path` is the remote procedure's."""

    def __init__(self, connection: CallConnection[S_co], path: str) -> None:
        self._connection = connection
        self._path = path
        self._begun_ns = time.monotonic_ns()

    @property
    def session(self) -> S_co:
        """See Connection."""
        return self._connection.session

    def said(self) -> None:
        """See Connection."""
        self._connection.said()

    @property
    def share(self) -> Share:
        """See Connection."""
        return self._connection.share

    @property
    def unread(self) -> Claim:
        """See Connection."""
        return self._connection.unread

    def over(self, stream: int) -> None:
        """See Connection. Every call ends exactly once."""
        self._log_end()
        self._connection.over(stream)

    def answered(self, stream: int) -> None:
        """See Connection."""
        self._log_end()
        self._connection.answered(stream)

    def _log_end(self) -> None:
        _LOG.debug("gRPC call: %s ended after %.3f ms", self._path, _since_ms(self._begun_ns))

    def repeats(self, head: bytes) -> None:
        """See Connection."""
        self._connection.repeats(head)

    def call_later(self, delay_s: float, call_back: Callable[[], None]) -> Callable[[], None]:
        """See Connection."""
        return self._connection.call_later(delay_s, call_back)


def log_failed_call(path: str, status: int, message: str) -> None:
    """Log that a call ends with an error."""
    _LOG.debug("gRPC call: %s fails with status %d: %s", path, status, message[:SHOWN_LENGTH_MAX])


def log_cancelled_call(path: str) -> None:
    """Log that a client has cancelled a call, or has gone, in Triton's words."""
    _LOG.debug("Cancellation notification received for %s", path)


def request_line(method: str, url: bytes) -> str:
    """Method and path, without control characters. The query is left out, as it may hold secrets."""
    path = url.partition(b"?")[0][:SHOWN_LENGTH_MAX]
    shown = path.decode("ascii", "backslashreplace")
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in shown)
    return f"{method} {shown}"


def _since_ms(begun_ns: int) -> float:
    return (time.monotonic_ns() - begun_ns) / 1e6
