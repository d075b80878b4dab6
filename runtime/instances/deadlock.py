# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a call from one model to another can ever be served. (pure)

A *worker* is a thread that executes a batch: the one of an instance, or one of several. It is *stuck* if its batch
waits for a call that is. A call is stuck if it is with a worker that is, or if it queues and every worker of its model
is stuck. What is left when everything that can go on has been struck out is a deadlock, and it is there as soon as the
last call of a cycle begins to wait: so that call is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Waiting(Protocol):
    """A worker, as this module sees it."""

    @property
    def model_name(self) -> str:
        """The model that it executes."""

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """For each call that its batch waits for: who could serve it, and the model's name.

        That is the one worker that it is with, or all of its model while it queues.
        """


class Free:
    """A worker that has nothing to wait for."""

    model_name = ""

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """See Waiting."""
        return ()


FREE = Free()


def explain_deadlock(caller_name: str, callee_name: str, servers: Sequence[Waiting]) -> str:
    """The cycle (`a -> b -> a`) that a call closes which queues for the workers `servers`; "" if one can go on."""
    stuck: dict[int, Waiting] = {}
    # The caller is stuck if somebody leads to it: to begin with its own calls, which may be thousands, is in vain.
    frontier: list[Waiting] = [*servers]
    while frontier:
        instance = frontier.pop()
        if id(instance) not in stuck:
            stuck[id(instance)] = instance
            for others, _ in instance.waiting_calls():
                frontier.extend(others)

    def is_hopeless(others: Sequence[Waiting]) -> bool:
        return bool(others) and all(id(other) in stuck for other in others)

    changed = True
    while changed:
        free = [
            key
            for key, instance in stuck.items()
            if not any(is_hopeless(others) for others, _ in instance.waiting_calls())
        ]
        for key in free:
            del stuck[key]
        changed = bool(free)
    if not is_hopeless(servers):
        return ""
    return " -> ".join(_path(caller_name, callee_name, servers, stuck))


def _path(caller_name: str, callee_name: str, servers: Sequence[Waiting], stuck: dict[int, Waiting]) -> list[str]:
    """Model names from the caller on, until one comes for the second time."""
    path = [caller_name]
    name, instance = callee_name, servers[0]
    while name not in path:
        path.append(name)
        for others, next_name in instance.waiting_calls():
            if others and all(id(other) in stuck for other in others):
                name, instance = next_name, others[0]
                break
    return [*path, name]
