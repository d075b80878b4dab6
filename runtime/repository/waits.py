# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Records which loads wait for which other ones, so that a wait that could never end is refused. (pure)"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One wait: several instances of a model may wait for the same other one."""

    waiter: str
    target: str


class WaitGraph:
    """Models by name. The load of a waiter continues only after the load of its target."""

    def __init__(self) -> None:
        self._waits: dict[str, set[Wait]] = {}

    def __repr__(self) -> str:
        waits = [f"{wait.waiter} -> {wait.target}" for waits in self._waits.values() for wait in waits]
        return f"<WaitGraph [{', '.join(sorted(waits))}]>"

    def cycle(self, waiter: str, target: str) -> list[str]:
        """The models that would wait for each other if `waiter` waited for `target`, from `waiter` to `waiter`.

        Empty if the wait can end.
        """
        paths = [[waiter, target]]
        seen: set[str] = set()
        while paths:
            path = paths.pop()
            if path[-1] == waiter:
                return path
            if path[-1] not in seen:
                seen.add(path[-1])
                paths.extend([*path, wait.target] for wait in self._waits.get(path[-1], ()))
        return []

    def add(self, waiter: str, target: str) -> Wait:
        """Record that `waiter` waits for `target`, until the returned wait is removed or the waiter's load ends."""
        wait = Wait(waiter, target)
        self._waits.setdefault(waiter, set()).add(wait)
        return wait

    def remove(self, wait: Wait) -> None:
        """Remove a wait. No effect if it was removed before."""
        waits = self._waits.get(wait.waiter, set())
        waits.discard(wait)
        if not waits:
            self._waits.pop(wait.waiter, None)

    def end(self, waiter: str) -> None:
        """Remove all waits of a model whose load has ended, by success or failure."""
        self._waits.pop(waiter, None)
