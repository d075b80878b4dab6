# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides what one request to an ensemble does next. (pure)

It is told which tensors there are, and returns commands: steps to start, and responses to send. Tensors of one origin
(see Plan) have iterations, counted from 0: the n-th response of a decoupled step has the tensors of its iteration n,
and the steps behind it run once for each iteration. `T` is the type of the tensors, which it does not look into; None
stands for a tensor that is absent.

Each tensor that is reported is used once by each of its readers: by the Start of a step, by the Send that has it as an
output, or by a Drop, which says that one use will not take place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from pyruntime.runtime.ensembles.graph import INPUTS, NOT_DECOUPLED, OUTPUTS, Plan, Step

T = TypeVar("T")


class Iteration(Generic[T]):
    """The tensors of one iteration. `missing` is how many writers each reader waits for that has not begun."""

    __slots__ = ("missing", "number", "origin", "tensors")

    def __init__(self, origin: int, number: int, missing: dict[int, int]) -> None:
        self.origin = origin
        self.number = number
        self.missing = missing
        self.tensors: dict[str, T | None] = {}


class Start(NamedTuple, Generic[T]):
    """Start a step for an iteration, on the tensors of it that the step reads."""

    step: Step
    iteration: Iteration[T]


@dataclass(slots=True)
class Send(Generic[T]):
    """Send a response with the outputs of an iteration. `is_last`: no step is under way."""

    iteration: Iteration[T]
    is_last: bool


@dataclass(slots=True)
class Drop(Generic[T]):
    """A use of this tensor will not take place."""

    tensor: T


@dataclass(slots=True)
class Skipped(Generic[T]):
    """A decoupled step is not started for an iteration, because a tensor that it requires is absent."""

    step: Step
    iteration: Iteration[T]


Command = Start[T] | Send[T] | Drop[T] | Skipped[T]


class Run(Generic[T]):
    """The state of one request. `under_way` is how many steps were started and have not ended.

    After `stop` it starts no step and sends nothing, and tensors that are still reported are dropped.
    """

    __slots__ = ("_iterations", "_made", "_plan", "_sent", "is_stopped", "under_way")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # By origin and number, until all readers have begun.
        self._iterations: dict[tuple[int, int], Iteration[T]] = {}
        # How many responses each decoupled step has sent, and how many this request.
        self._made: dict[int, int] = {}
        self._sent = 0
        self.under_way = 0
        self.is_stopped = False

    def __repr__(self) -> str:
        tensors = sum(len(each.tensors) for each in self._iterations.values())
        return f"<Run [{tensors} tensors, {self.under_way} steps under way, {self._sent} responses]>"

    def begin(self, inputs: Mapping[str, T | None]) -> list[Command[T]]:
        """The inputs of the ensemble that somebody reads, and None for those that the request lacks."""
        return self._add(inputs, INPUTS, self._begun(NOT_DECOUPLED, 0))

    def responded(
        self, step: Step, iteration: Iteration[T], tensors: Mapping[str, T | None], *, is_last: bool
    ) -> list[Command[T]]:
        """A step has sent a response: `tensors` has an entry for each tensor that it writes and somebody reads."""
        if is_last:
            self.under_way -= 1
        if self.is_stopped:
            commands: list[Command[T]] = []
            for name, tensor in tensors.items():
                if tensor is not None:
                    commands.extend([Drop(tensor)] * len(self._plan.readers[name]))
            return commands
        if step.is_decoupled:
            iteration = self._begun(step.index, self.next_iteration(step))
            self._made[step.index] = iteration.number + 1
        return self._add(tensors, step.index, iteration)

    def ended(self) -> None:
        """A step has ended without a further response."""
        self.under_way -= 1

    def stop(self) -> list[Command[T]]:
        """The request is over, has failed, or is cancelled."""
        self.is_stopped = True
        commands: list[Command[T]] = []
        for iteration in self._iterations.values():
            for name, tensor in iteration.tensors.items():
                if tensor is not None:
                    left = sum(reader in iteration.missing for reader in self._plan.readers[name])
                    commands.extend([Drop(tensor)] * left)
        self._iterations.clear()
        return commands

    def next_iteration(self, step: Step) -> int:
        """The iteration of the next response of a decoupled step."""
        return self._made.get(step.index, 0)

    def _begun(self, origin: int, number: int) -> Iteration[T]:
        """A new iteration."""
        iteration = self._iterations[origin, number] = Iteration(origin, number, self._plan.counts[origin].copy())
        return iteration

    def _add(self, tensors: Mapping[str, T | None], writer: int, iteration: Iteration[T]) -> list[Command[T]]:
        """Add what a writer has written, and what is absent because of it; then look what is complete."""
        plan, missing, known = self._plan, iteration.missing, iteration.tensors
        known.update(tensors)
        commands: list[Command[T]] = []
        writers = [writer]
        for each in writers:  # it grows meanwhile
            for reader in plan.written[each].readers:
                left = missing[reader] - 1
                if left or reader == OUTPUTS:
                    missing[reader] = left
                    continue
                del missing[reader]
                step = plan.steps[reader]
                if reader not in plan.skippable or all(known[name] is not None for name in step.requires):
                    self.under_way += 1
                    # As Start(...) does, which costs a call.
                    commands.append(tuple.__new__(Start, (step, iteration)))
                    continue
                commands.extend(Drop(tensor) for name in step.reads if (tensor := known[name]) is not None)
                if step.is_decoupled:
                    commands.append(Skipped(step, iteration))
                else:
                    known.update(plan.written[reader].absent)
                    writers.append(reader)
        if missing.get(OUTPUTS) == 0:
            commands += self._responses(iteration.origin)
        elif not missing:
            del self._iterations[iteration.origin, iteration.number]
        return commands

    def _responses(self, origin: int) -> list[Command[T]]:
        """Send the responses that are complete, as far as those before them are."""
        commands: list[Command[T]] = []
        iteration = self._iterations.get((origin, self._sent))
        while iteration is not None and iteration.missing.get(OUTPUTS) == 0:
            del iteration.missing[OUTPUTS]
            if not iteration.missing:
                del self._iterations[origin, self._sent]
            self._sent += 1
            following = self._iterations.get((origin, self._sent))
            is_last = not self.under_way and (following is None or following.missing.get(OUTPUTS) != 0)
            commands.append(Send(iteration, is_last))
            iteration = following
        return commands
