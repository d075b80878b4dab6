# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends a large answer with JSON piece by piece: each is made in a thread when the client has taken those before.

So an answer takes the memory of two pieces, however long it is and however slow its client, and its work ends with the
client, or when the server closes the connection to exit. Pieces that wait for the client count as pending bytes. A
document with binary contents behind it says in the head how long it is: it is written twice, the first time to be
measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.common.classification import classified
from pyruntime.runtime.frontends.common.compression import compress_pieces
from pyruntime.runtime.frontends.http.exchange import Piece
from pyruntime.runtime.frontends.http.json_pieces import PIECE_BYTES, pieces
from pyruntime.runtime.frontends.http.kserve_request import OutputOptions
from pyruntime.runtime.frontends.http.kserve_response import encode_large
from pyruntime.runtime.frontends.http.response_head import LAST_CHUNK, chunk
from pyruntime.runtime.inference.pending_bytes import Claim
from pyruntime.runtime.inference.threads import in_thread
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError


class Body(NamedTuple):
    """A body that is not made yet. `length`, in bytes, is None where it is not known.

    `document_length` is that of the document in front of binary contents, 0 without these.
    """

    pieces: Iterator[bytes]
    length: int | None = None
    document_length: int = 0


def large_body(
    response: InferResponse, options: OutputOptions, spec: ModelSpec, encoding: str, is_stopped: Callable[[], bool]
) -> Body:
    """The body with outputs as `options` say, compressed with `encoding`.

    For a thread: reads all strings, and gives up with something once `is_stopped`. Raises InferenceError as `classify`
    and `encode_infer`.
    """
    if options.classes:
        response = classified(response, options.classes, spec)
    document, outputs, binary = encode_large(response, options, is_stopped)
    made: Iterator[bytes] = pieces(document, outputs)
    document_length, length = 0, None
    if binary:
        for piece in pieces(document, outputs):
            document_length += len(piece)
            if is_stopped():
                break
        made = chain(made, *map(_sliced, binary))
        length = None if encoding else document_length + sum(map(len, binary))
    return Body(compress_pieces(made, encoding) if encoding else made, length, document_length)


def _sliced(contents: memoryview | bytes) -> Iterator[bytes]:
    for start in range(0, len(contents), PIECE_BYTES):
        yield bytes(contents[start : start + PIECE_BYTES])


class LargeAnswer:
    """See the module. `begin` once; then `next_piece` whenever the client can take one, after `ready`.

    `head` is sent with the first piece, and `chunked` says that each piece is a chunk. `claim` counts the pieces that
    wait. `release` is called once, when nothing is read from the response any more. With `is_part` other pieces follow
    behind the last one.
    """

    # The last piece has been given.
    ended = False
    # The contents changed while they were sent: the body is not complete, and the connection must end.
    failed = False

    def __init__(
        self,
        tasks: Callable[[], asyncio.TaskGroup],
        body: Iterator[bytes],
        head: bytes,
        chunked: bool,
        claim: Claim,
        ready: Callable[[], None],
        release: Callable[[], None],
        *,
        is_part: bool = False,
    ) -> None:
        self._is_part = is_part
        self._tasks = tasks
        self._body = body
        self._begin = head
        self._chunked = chunked
        self._claim = claim
        self._ready = ready
        self._release = release
        self._in_thread = False
        self._over = False
        # What waits for the client; b"" is the end, and None nothing.
        self._made: bytes | None = None

    def begin(self) -> None:
        """Have the first piece made."""
        self._in_thread = True
        in_thread(self._tasks(), partial(_next_of, self._body), self._take, "write a response")

    def _take(self, piece: bytes | InferenceError) -> None:
        self._in_thread = False
        if self._over:
            self._release()
            return
        if isinstance(piece, InferenceError):
            self.failed = True
            piece = b""
        self._claim.count(len(piece))
        self._made = piece
        self._ready()

    def next_piece(self) -> Piece | None:
        """See Exchange."""
        piece, self._made = self._made, None
        if piece is None:
            return None
        data, self._begin = self._begin, b""
        if piece:
            self.begin()
            return Piece(data + (chunk(piece) if self._chunked else piece), partial(self._taken, len(piece)))
        self.ended = True
        is_over = self._chunked and not self.failed and not self._is_part
        return Piece(data + (LAST_CHUNK if is_over else b""), self.end)

    def _taken(self, nbytes: int) -> None:
        if not self._over:
            self._claim.give_back(nbytes)

    def end(self) -> None:
        """Make no more pieces, and release the response. Has no effect a second time."""
        if self._over:
            return
        self._over = True
        self._made = None
        self._claim.end()
        if not self._in_thread:
            self._release()


def _next_of(body: Iterator[bytes]) -> bytes:
    """The next piece that is not empty, b"" at the end."""
    return next(filter(None, body), b"")
