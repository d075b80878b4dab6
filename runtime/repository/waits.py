# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which loads wait for which other ones, so that a wait that can never end is refused instead. (pure)"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One wait: several instances of a model may wait for the same other one."""

    waiter: str
    target: str


class WaitGraph:
    """Models by name: the load of a waiter goes on only after that of its target."""

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
        """`waiter` waits for `target` until the answer is removed, or its load ends."""
        wait = Wait(waiter, target)
        self._waits.setdefault(waiter, set()).add(wait)
        return wait

    def remove(self, wait: Wait) -> None:
        """A wait is over. Does nothing if it was already."""
        waits = self._waits.get(wait.waiter, set())
        waits.discard(wait)
        if not waits:
            self._waits.pop(wait.waiter, None)

    def end(self, waiter: str) -> None:
        """The load of a model has ended, perhaps by a failure: whatever it waited for, it does not any more."""
        self._waits.pop(waiter, None)
