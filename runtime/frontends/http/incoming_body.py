# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A request's body that comes in over several reads: in chunks, in pieces, or directly into memory of its exchange."""

from __future__ import annotations

from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.lingering import DISCARDED_BYTES_MAX
from pyruntime.runtime.frontends.http.request_head import ChunkedBody, Head


class IncomingBody:
    """The body of an exchange, after its head. Not for bodies that came whole with their heads."""

    __slots__ = ("_chunked", "_missing", "direct", "discarded", "exchange")

    def __init__(self, exchange: Exchange, head: Head) -> None:
        self.exchange = exchange
        # The memory that the next bytes go to, straight from the socket; None while they pass `take`.
        self.direct: memoryview | None = None
        # The bytes that were discarded of the body of a refused request.
        self.discarded = 0
        self._chunked = ChunkedBody() if head.chunked else None
        # The bytes that are still to come, but for those that `direct` has room for.
        self._missing = head.content_length

    def __repr__(self) -> str:
        return f"<IncomingBody [{self.progress}]>"

    @property
    def is_complete(self) -> bool:
        if self._chunked is not None:
            return self._chunked.complete
        return self.direct is None and not self._missing

    @property
    def progress(self) -> int:
        """A number that grows by the bytes that have come in."""
        if self._chunked is not None:
            return self._chunked.taken
        return -self._missing if self.direct is None else -self._missing - len(self.direct)

    def seek_memory(self) -> None:
        """Have the bytes go directly into memory of the exchange, if it has some."""
        self._take_direct(self.exchange.direct_body())

    def fill(self, nbytes: int) -> None:
        """Count bytes that the socket has put into `direct`."""
        assert self.direct is not None  # the socket had it
        self.direct = self.direct[nbytes:]
        if self.direct:
            return
        self.direct = None
        if self._missing:
            self._take_direct(self.exchange.more_direct())

    def discard(self, nbytes: int) -> bool:
        """Count discarded bytes. Returns False if they are too many to read the body to its end."""
        self.discarded += nbytes
        return self.discarded <= DISCARDED_BYTES_MAX

    def admits(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes of a read. The exchange remembers it if not."""
        if self.direct is not None:
            return True
        return self.exchange.admit(nbytes if self._chunked is not None else min(nbytes, self._missing))

    def take(self, data: bytes) -> bytes:
        """Give the exchange its part of a read, which was admitted. Returns the rest; raises BadRequest."""
        if self.direct is not None:  # the read that brought the head brought this much of the body
            size = min(len(data), len(self.direct))
            self.direct[:size] = data[:size]
            self.fill(size)
            return data[size:]
        if self._chunked is not None:
            parts, rest = self._chunked.feed(data)
            for part in parts:
                self.exchange.take(part)
            return rest
        part, rest = data[: self._missing], data[self._missing :]
        self._missing -= len(part)
        self.exchange.take(part)
        return rest

    def _take_direct(self, direct: memoryview | None) -> None:
        self.direct = direct
        if direct is not None:
            self._missing -= len(direct)
