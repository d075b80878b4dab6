# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Limits how often each step of an ensemble is under way, over all of its requests: `max_inflight_requests`. (pure)

Nothing blocks: a start for which there is no credit waits in order of arrival, and can be withdrawn at any time.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class StepCredits(Generic[S]):
    """At most `limit` starts of each step are under way. `S` is the type of a start that waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: dict[int, int] = {}
        # In order of arrival.
        self._waiting: dict[int, dict[S, None]] = {}

    def __repr__(self) -> str:
        waiting = sum(len(starts) for starts in self._waiting.values())
        return f"<StepCredits {self._limit} [{sum(self._taken.values())} taken, {waiting} waiting]>"

    def take(self, step: int, start: S) -> bool:
        """Take a credit for a start; False if it has to wait."""
        taken = self._taken.get(step, 0)
        if taken >= self._limit:
            self._waiting.setdefault(step, {})[start] = None
            return False
        self._taken[step] = taken + 1
        return True

    def give_back(self, step: int) -> S | None:
        """Give a credit back. Returns the start that has it from now on, if one waits."""
        waiting = self._waiting.get(step)
        if waiting:
            start = next(iter(waiting))
            del waiting[start]
            return start
        self._taken[step] -= 1
        return None

    def withdraw(self, step: int, start: S) -> bool:
        """A start no longer waits. False if it does not wait."""
        waiting = self._waiting.get(step, {})
        if start not in waiting:
            return False
        del waiting[start]
        return True
