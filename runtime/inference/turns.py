# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Turns for work on large requests: only a few are decompressed and parsed at a time, others wait in order. (pure)

A request has its turn until its tensors lie in request memory. So the heap holds only a few large bodies in their
decompressed form, and those that are begun are finished before others begin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Bytes(Protocol):
    """The claim of a request: see pending_bytes.py."""

    @property
    def held(self) -> int:
        """The number of its bytes."""

    @property
    def waits(self) -> bool:
        """Whether it waits for room."""

    def turns_changed(self) -> None:
        """The request waits for its turn, or no longer has one."""


class Turns:
    """`free` more requests may have their turn. All methods belong to the event loop's thread."""

    def __init__(self, count: int) -> None:
        self.free = count
        # Those that have their turn; and those that wait, in order, with what they call then.
        self._begun: set[Turn] = set()
        self._waiting: OrderedDict[Turn, Callable[[], None]] = OrderedDict()
        self._serving = False

    def __repr__(self) -> str:
        return f"<Turns: {self.free} free, {len(self._waiting)} wait>"

    def turn(self) -> Turn:
        """That of a new request."""
        return Turn(self)

    @property
    def has_work(self) -> bool:
        """Whether a request that has its turn does not wait for room: it will end its turn."""
        return not all(turn.claim.waits for turn in self._begun)

    @property
    def waiting_bytes(self) -> int:
        """What the requests hold that wait for their turn."""
        return sum(turn.claim.held for turn in self._waiting)

    def is_begun(self, claim: Bytes) -> bool:
        """Whether the request with this claim has its turn."""
        return any(turn.claim is claim for turn in self._begun)

    def _serve(self) -> None:
        """Let the next ones begin. A call during another one is left to that one."""
        if self._serving:
            return
        self._serving = True
        try:
            while self.free and self._waiting:
                turn, then = self._waiting.popitem(last=False)
                turn._begin()
                then()
        finally:
            self._serving = False


class Turn:
    """The turn of one request. Its owner must end it. `claim` is that of the request, from `take` on."""

    __slots__ = ("_turns", "claim")

    claim: Bytes

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def take(self, claim: Bytes, then: Callable[[], None]) -> bool:
        """Whether the request has its turn. If not, `then` is called once it has; it must not raise."""
        turns = self._turns
        if self in turns._begun:
            return True
        self.claim = claim
        if turns.free and not turns._waiting:
            self._begin()
            return True
        turns._waiting[self] = then
        claim.turns_changed()
        return False

    def end(self) -> None:
        """Let another request have its turn, or wait no longer. Has no effect on a turn that has ended."""
        turns = self._turns
        turns._waiting.pop(self, None)
        if self in turns._begun:
            turns._begun.remove(self)
            turns.free += 1
            turns._serve()
            self.claim.turns_changed()

    def _begin(self) -> None:
        self._turns._begun.add(self)
        self._turns.free -= 1
