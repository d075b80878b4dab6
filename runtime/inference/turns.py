# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Turns for work on large requests: only a few are decompressed and parsed at a time, others wait in order. (pure)

A request has its turn until its tensors lie in request memory. So the heap holds only a few large bodies in their
decompressed form, and those that are begun are finished before others begin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Turns:
    """`free` more requests may have their turn. All methods belong to the event loop's thread."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiting: OrderedDict[Turn, Callable[[], None]] = OrderedDict()
        self._serving = False

    def __repr__(self) -> str:
        return f"<Turns: {self.free} free, {len(self._waiting)} wait>"

    def turn(self) -> Turn:
        """That of a new request."""
        return Turn(self)

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
    """The turn of one request. Its owner must end it."""

    __slots__ = ("_has", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._has = False

    def take(self, then: Callable[[], None]) -> bool:
        """Whether the request has its turn. If not, `then` is called once it has; it must not raise."""
        if not self._has:
            if not self._turns.free or self._turns._waiting:
                self._turns._waiting[self] = then
                return False
            self._begin()
        return True

    def end(self) -> None:
        """Let another request have its turn, or wait no longer. Has no effect on a turn that has ended."""
        self._turns._waiting.pop(self, None)
        if self._has:
            self._has = False
            self._turns.free += 1
            self._turns._serve()

    def _begin(self) -> None:
        self._has = True
        self._turns.free -= 1
