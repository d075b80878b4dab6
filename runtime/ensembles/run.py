# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides what one request to an ensemble does next. (pure)

It is told which tensors there are, and returns commands: steps to start, and responses to send. Tensors have
iterations, counted from 0: the n-th response of a decoupled step has the tensors of iteration n, and the steps behind
it run once for each iteration, on tensors of the same one. `T` is the type of the tensors, which it does not look into;
None stands for a tensor that is absent.

Each tensor that is reported is used as often as Plan.uses says: once by each Start and each Send that has it, and by
each Drop, which says that one use will not take place. Commands are not frozen, because every request makes some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyruntime.runtime.ensembles.graph import OUTPUTS, Plan, Step

T = TypeVar("T")


@dataclass(slots=True)
class Start(Generic[T]):
    """Start a step for an iteration, on these tensors of the ensemble."""

    step: Step
    iteration: int
    tensors: Mapping[str, T | None]


@dataclass(slots=True)
class Send(Generic[T]):
    """Send a response with these outputs. `is_last`: no step is under way."""

    iteration: int
    outputs: Mapping[str, T | None]
    is_last: bool


@dataclass(slots=True)
class Drop(Generic[T]):
    """A use of this tensor will not take place."""

    tensor: T


@dataclass(slots=True)
class Skipped:
    """A decoupled step is not started for an iteration, because a tensor that it requires is absent."""

    step: Step
    iteration: int


Command = Start[T] | Send[T] | Drop[T] | Skipped


class Run(Generic[T]):
    """The state of one request. `under_way` is how many steps were started and have not ended.

    After `stop` it starts no step and sends nothing, and tensors that are still reported are dropped.
    """

    __slots__ = ("_commands", "_left", "_made", "_missing", "_plan", "_sent", "_tensors", "is_stopped", "under_way")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Tensors by name and iteration, and how many uses each has left.
        self._tensors: dict[tuple[str, int], T | None] = {}
        self._left: dict[tuple[str, int], int] = {}
        # For each iteration of a step, and of the outputs: how many tensors are not there yet.
        self._missing: dict[tuple[int, int], int] = {}
        # How many responses each decoupled step has sent, and how many this request.
        self._made: dict[int, int] = {}
        self._sent = 0
        self._commands: deque[Command[T]] = deque()
        self.under_way = 0
        self.is_stopped = False

    def __repr__(self) -> str:
        return f"<Run [{len(self._tensors)} tensors, {self.under_way} steps under way, {self._sent} responses]>"

    @property
    def sent(self) -> int:
        """How many responses were to be sent so far."""
        return self._sent

    def begin(self, inputs: Mapping[str, T | None]) -> Iterable[Command[T]]:
        """All inputs of the ensemble that the request has, and None for those that it lacks."""
        uses = self._plan.uses
        self._add({name: tensor for name, tensor in inputs.items() if name in uses}, 0)
        return self._taken()

    def responded(
        self, step: Step, iteration: int, tensors: Mapping[str, T | None], *, is_last: bool
    ) -> Iterable[Command[T]]:
        """A step has sent a response: `tensors` has an entry for each tensor that it writes and somebody uses."""
        if step.is_decoupled:
            iteration = self._made.get(step.index, 0)
            self._made[step.index] = iteration + 1
        self.under_way -= is_last
        if self.is_stopped:
            self._drop_unused(tensors)
        else:
            self._add(tensors, iteration)
        return self._taken()

    def ended(self) -> Iterable[Command[T]]:
        """A step has ended without a further response."""
        self.under_way -= 1
        return self._taken()

    def stop(self) -> Iterable[Command[T]]:
        """The request has failed, or is cancelled."""
        self.is_stopped = True
        for key, tensor in self._tensors.items():
            if tensor is not None:
                self._commands.extend([Drop(tensor)] * self._left[key])
        self._tensors.clear()
        self._left.clear()
        self._missing.clear()
        return self._taken()

    def next_iteration(self, step: Step) -> int:
        """The iteration of the next response of a decoupled step."""
        return self._made.get(step.index, 0)

    def _taken(self) -> Iterable[Command[T]]:
        commands, self._commands = self._commands, deque()
        return commands

    def _drop_unused(self, tensors: Mapping[str, T | None]) -> None:
        for name, tensor in tensors.items():
            if tensor is not None:
                self._commands.extend([Drop(tensor)] * self._plan.uses[name])

    def _add(self, tensors: Mapping[str, T | None], iteration: int) -> None:
        """Add tensors, and those that are absent because of them; then look what is complete."""
        plan = self._plan
        queue = deque(tensors.items())
        while queue:
            name, tensor = queue.popleft()
            key = name, iteration
            self._tensors[key] = tensor
            self._left[key] = plan.uses[name]
            for step in plan.readers.get(name, ()):
                if self._is_complete(step.index, iteration, len(step.reads)):
                    queue.extend((absent, None) for absent in self._start(step, iteration))
            if name in plan.outputs:
                self._is_complete(OUTPUTS, iteration, len(plan.outputs))
        while self._missing.get((OUTPUTS, self._sent)) == 0:
            self._send()

    def _is_complete(self, reader: int, iteration: int, count: int) -> bool:
        """Note that one of the `count` tensors of a reader is there; True if it was the last one."""
        left = self._missing.get((reader, iteration), count) - 1
        if left or reader == OUTPUTS:
            self._missing[reader, iteration] = left
        else:
            self._missing.pop((reader, iteration), None)
        return not left

    def _start(self, step: Step, iteration: int) -> list[str]:
        """Start a step, or skip it. Returns the tensors that are absent because it is skipped."""
        found = {name: self._use(name, iteration) for name in step.reads}
        if step.index not in self._plan.skippable or all(found[name] is not None for name in step.requires):
            self.under_way += 1
            self._commands.append(Start(step, iteration, found))
            return []
        self._commands.extend(Drop(tensor) for tensor in found.values() if tensor is not None)
        if step.is_decoupled:
            self._commands.append(Skipped(step, iteration))
            return []
        return [tensor for _, tensor in step.outputs if tensor in self._plan.uses]

    def _send(self) -> None:
        iteration = self._sent
        self._sent += 1
        del self._missing[OUTPUTS, iteration]
        outputs = {name: self._use(name, iteration) for name in self._plan.outputs}
        is_last = not self.under_way and self._missing.get((OUTPUTS, self._sent)) != 0
        self._commands.append(Send(iteration, outputs, is_last))

    def _use(self, name: str, iteration: int) -> T | None:
        key = name, iteration
        tensor = self._tensors[key]
        self._left[key] -= 1
        if not self._left[key]:
            del self._left[key], self._tensors[key]
        return tensor
