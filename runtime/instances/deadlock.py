# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a call from one model to another can ever be served. (pure)

An instance is *stuck* if a batch of it waits for a call that is. A call is stuck if it is with an instance that is, or
if it queues and every instance of its model is stuck. What is left when everything that can go on has been struck out
is a deadlock, and it is there as soon as the last call of a cycle begins to wait: so that call is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Waiting(Protocol):
    """An instance, as this module sees it."""

    @property
    def model_name(self) -> str:
        """The model that it is an instance of."""

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """For each call that a batch of the instance waits for: who could serve it, and the model's name.

        That is the one instance that it is with, or all of its model while it queues.
        """


def explain_deadlock(caller: Waiting, callee_name: str, servers: Sequence[Waiting]) -> str:
    """The cycle (`a -> b -> a`) that a call which queues at `servers` closes; "" if somebody can go on."""
    stuck: dict[int, Waiting] = {}
    frontier: list[Waiting] = [caller, *servers]
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
    return " -> ".join(_path(caller, callee_name, servers, stuck))


def _path(caller: Waiting, callee_name: str, servers: Sequence[Waiting], stuck: dict[int, Waiting]) -> list[str]:
    """Model names from the caller on, until one comes for the second time."""
    path = [caller.model_name]
    name, instance = callee_name, servers[0]
    while name not in path:
        path.append(name)
        for others, next_name in instance.waiting_calls():
            if others and all(id(other) in stuck for other in others):
                name, instance = next_name, others[0]
                break
    return [*path, name]
