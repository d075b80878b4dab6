# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds deadlocks of calls between models. (pure)

A *worker* is a thread that executes a batch: the one of an instance, or one of several. It is *stuck* if its batch
waits for a stuck call. A call is stuck if a stuck worker executes it, or if it queues and every worker of its model is
stuck. All workers and calls that remain after those that can continue are removed are in a deadlock. It arises when the
last call of a cycle begins to wait, so that call is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Waiting(Protocol):
    """A worker."""

    @property
    def model_name(self) -> str:
        """The model that it executes."""

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """For each call that its batch waits for: the workers that could serve it, and the name of their model.

        These are the one worker that executes the call, or all workers of the model while the call queues.
        """


class Free:
    """A worker that waits for no call."""

    model_name = ""

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """See Waiting."""
        return ()


FREE = Free()


def explain_deadlock(caller_name: str, callee_name: str, servers: Sequence[Waiting]) -> str:
    """The cycle (`a -> b -> a`) that a call to the workers `servers` closes; "" if one of them can continue."""
    stuck: dict[int, Waiting] = {}
    # Starts at the servers: the caller matters only if one of them waits for it, and it may have thousands of calls.
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
    """The names of the models from the caller on, until a name repeats."""
    path = [caller_name]
    name, instance = callee_name, servers[0]
    while name not in path:
        path.append(name)
        for others, next_name in instance.waiting_calls():
            if others and all(id(other) in stuck for other in others):
                name, instance = next_name, others[0]
                break
    return [*path, name]
