# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decompresses the body of one request step by step, within the budget of pending bytes.

Each step makes room first, and then decompresses a little: a small body at once, a larger one in threads, one step
after the other. So a body that becomes too large, or for which there is no room, costs no more than a step, and so does
one whose client is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice

from pyruntime.runtime.frontends.common.compression import PIECE_BYTES_MAX, decompressed
from pyruntime.runtime.inference.pending_bytes import Claim
from pyruntime.runtime.inference.threads import DECOMPRESSED_AT_ONCE_MAX, at_once, in_thread
from pyruntime.utils.errors import InferenceError

# The pieces of the first step, which a small body begins with on the event loop: about a millisecond's work.
PIECES_AT_ONCE_MAX = 4
# The pieces of all other steps. A step takes a few milliseconds, and handing it to a thread a tenth of one.
PIECES_MAX = 16


class Decompression:
    """See the module. All methods but `_decompress` belong to the event loop's thread.

    `claim` is that of the body, and holds the bytes of the compressed one unless that came in one read. `take_turn` is
    asked before a thread works on it: see Turn.take. `then` is
    called once, maybe before `begin` returns, with the body of at most `limit` bytes or with an error.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        claim: Claim,
        take_turn: Callable[[Callable[[], None]], bool],
        compressed: bytes | bytearray,
        encoding: str,
        limit: int,
        then: Callable[[bytearray | InferenceError], None],
    ) -> None:
        self._tasks = tasks
        self._claim = claim
        self._take_turn = take_turn
        self._then = then
        self._pieces = decompressed(compressed, encoding, limit)
        self._at_once = len(compressed) <= DECOMPRESSED_AT_ONCE_MAX
        self._compressed_bytes = claim.held
        self._body = bytearray()
        self._ended = False

    def begin(self) -> None:
        """Make room for the first step, and decompress."""
        self._step(PIECES_AT_ONCE_MAX if self._at_once else PIECES_MAX)

    def end(self) -> None:
        """The body is no longer wanted: its client is gone. `then` is not called. The owner ends the claim."""
        self._ended = True
        self._body = bytearray()

    def _step(self, count: int) -> None:
        if not self._at_once and not self._take_turn(partial(self._step, count)):
            return
        room = len(self._body) + count * PIECE_BYTES_MAX + self._compressed_bytes - self._claim.held
        try:
            if self._claim.take_or_wait(room, partial(self._go_on, count)):
                self._go_on(count, None)
        except InferenceError as exc:
            self._finish(exc)

    def _go_on(self, count: int, failure: InferenceError | None) -> None:
        if failure is not None:
            self._finish(failure)
            return
        work = partial(self._decompress, count)
        if self._at_once:
            self._at_once = False
            at_once(work, self._decompressed)
        else:
            in_thread(self._tasks, work, self._decompressed, "decompress a request")

    def _decompress(self, count: int) -> bool:
        """Decompress up to `count` pieces, in any thread. Returns whether these were the last ones."""
        if self._ended:
            return True
        number = 0
        for number, piece in enumerate(islice(self._pieces, count), 1):  # noqa: B007 - counts
            self._body += piece
        return number < count

    def _decompressed(self, is_last: bool | InferenceError) -> None:
        if self._ended:
            return
        if isinstance(is_last, InferenceError):
            self._finish(is_last)
        elif is_last:
            self._claim.give_back(self._claim.held - len(self._body))
            self._finish(self._body)
        else:
            self._step(PIECES_MAX)

    def _finish(self, outcome: bytearray | InferenceError) -> None:
        # The callback and what it refers to need not live as long as a thread's last step.
        then, self._ended = self._then, True
        then(outcome)
