# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The graph of an ensemble: which steps and tensors a request needs, by the outputs that it asks for. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyruntime.runtime.config.spec import ModelSpec, StepSpec

# How many selections of outputs are remembered for one ensemble.
PLANS_KEPT_MAX = 256
# Stands for the outputs, where readers of tensors are steps, by their index.
OUTPUTS = -1
# Stands for the request, where writers of tensors are steps, by their index.
INPUTS = -2
# Stands for the inputs of the ensemble, where tensors originate from decoupled steps, by their index.
NOT_DECOUPLED = -1


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step. `inputs` are pairs of a name of the model and a tensor of the ensemble, and so are `outputs`.

    An output that would replace an input of the ensemble is none of them: clients set that. `reads` are the tensors of
    the inputs, each once; `has_one_source`: one step, or the request, makes all of them. `requires` are those of them
    without which the model cannot run. `dims` are the dims of the model's inputs, by name, without a batch dimension.
    `requested` are the model's names of the outputs, and so are `requested_names`.
    """

    index: int
    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]
    has_one_source: bool
    requires: frozenset[str]
    dims: dict[str, tuple[int, ...]]
    requested: list[str]
    requested_names: tuple[str, ...]
    is_batching: bool
    is_decoupled: bool


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What a response of a step has, or the request, as far as somebody reads it.

    `names` are the tensors, by the name of the model's output. `readers` are all that read any of them, and `uses` is
    how many of them each reads, in total. `shared` are the model's names of those that steps read. `absent` has None
    for each tensor.
    """

    names: dict[str, str]
    readers: tuple[int, ...]
    uses: int
    shared: frozenset[str]
    absent: dict[str, None]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a request needs: `steps`, by their index, and `outputs`.

    `readers` are, by tensor, the steps that read it, and OUTPUTS if it is an output. `written` is, by its writer, what
    is read: the writer is a step, or INPUTS. `skippable` are the steps that are skipped if a tensor that they require
    is absent.

    The origin of a tensor is the decoupled step whose responses it is made of, or NOT_DECOUPLED. `origins` are those of
    the tensors that a step reads, and of the outputs; `counts` are, by origin, the readers of its tensors, and how many
    writers each of them waits for.
    """

    steps: dict[int, Step]
    outputs: tuple[str, ...]
    readers: dict[str, tuple[int, ...]]
    written: dict[int, Written]
    skippable: frozenset[int]
    origins: dict[int, int]
    counts: dict[int, dict[int, int]]


class Graph:
    """See the module. `optional` are the outputs that may be absent because steps were skipped."""

    def __init__(self, spec: ModelSpec, models: Sequence[ModelSpec]) -> None:
        """`models` are those of the steps, in their order. The ensemble must be valid."""
        ensemble = spec.ensemble
        assert ensemble is not None  # the caller looks
        self._inputs = frozenset(spec.inputs)
        makers = {
            tensor: index
            for index, step in enumerate(ensemble.steps)
            for tensor in step.outputs.values()
            if tensor not in self._inputs
        }
        self.steps = tuple(
            self._step(index, step, model, makers)
            for index, (step, model) in enumerate(zip(ensemble.steps, models, strict=True))
        )
        self._outputs = tuple(spec.outputs)
        self._optional = ensemble.optional_outputs
        self._writers = {tensor: step for step in self.steps for _, tensor in step.outputs}
        self._plans: dict[tuple[str, ...] | None, Plan] = {}

    def _step(self, index: int, step: StepSpec, model: ModelSpec, makers: Mapping[str, int]) -> Step:
        """A step. `makers` are the steps that make tensors, by these."""
        return Step(
            index=index,
            model=step.model_name,
            version=step.model_version,
            inputs=tuple(step.inputs.items()),
            outputs=tuple((name, tensor) for name, tensor in step.outputs.items() if tensor not in self._inputs),
            reads=tuple(dict.fromkeys(step.inputs.values())),
            has_one_source=len({makers.get(tensor, INPUTS) for tensor in step.inputs.values()}) == 1,
            requires=frozenset(tensor for name, tensor in step.inputs.items() if not model.inputs[name].optional),
            dims={name: model.inputs[name].dims for name in step.inputs},
            requested=list(step.outputs),
            requested_names=tuple(step.outputs),
            is_batching=model.max_batch_size > 0,
            is_decoupled=model.decoupled,
        )

    def plan(self, requested: Sequence[str] | None) -> Plan:
        """The plan for these outputs; None for all."""
        key = None if requested is None else tuple(requested)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= PLANS_KEPT_MAX:
                self._plans.clear()
            plan = self._plans[key] = self._make(self._outputs if key is None else tuple(dict.fromkeys(key)))
        return plan

    def _make(self, outputs: tuple[str, ...]) -> Plan:
        steps: dict[int, Step] = {}
        wanted = list(outputs)
        while wanted:
            step = self._writers.get(wanted.pop())
            if step is not None and step.index not in steps:
                steps[step.index] = step
                wanted.extend(step.reads)
        reads = {step.index: step.reads for step in steps.values()} | {OUTPUTS: outputs}
        readers: dict[str, tuple[int, ...]] = {}
        for reader, tensors in reads.items():
            for tensor in tensors:
                readers[tensor] = (*readers.get(tensor, ()), reader)
        origins = {reader: self._origin(tensors) for reader, tensors in reads.items()}
        counts: dict[int, dict[int, int]] = {NOT_DECOUPLED: {}}
        for reader, tensors in reads.items():
            writers = {self._writers[tensor].index if tensor in self._writers else INPUTS for tensor in tensors}
            counts.setdefault(origins[reader], {})[reader] = len(writers)
        written = {step.index: _written(step.outputs, readers) for step in steps.values()}
        written[INPUTS] = _written([(name, name) for name in self._inputs], readers)
        return Plan(steps, outputs, readers, written, self._skippable(steps, readers), origins, counts)

    def _skippable(self, steps: dict[int, Step], readers: dict[str, tuple[int, ...]]) -> frozenset[int]:
        """The steps whose outputs may be absent: all that read them can do without, or are skipped themselves."""
        found = set(steps)

        def is_needed(tensor: str) -> bool:
            return any(
                tensor not in self._optional
                if reader == OUTPUTS
                else tensor in steps[reader].requires and reader not in found
                for reader in readers.get(tensor, ())
            )

        changed = True
        while changed:
            needed = [index for index in found for _, tensor in steps[index].outputs if is_needed(tensor)]
            changed = bool(needed)
            found.difference_update(needed)
        return frozenset(found)

    def _origin(self, tensors: Sequence[str]) -> int:
        """The decoupled step that these tensors originate from, directly."""
        seen: set[str] = set()
        queue = list(tensors)
        while queue:
            tensor = queue.pop()
            step = None if tensor in seen else self._writers.get(tensor)
            seen.add(tensor)
            if step is not None:
                if step.is_decoupled:
                    return step.index
                queue.extend(step.reads)
        return NOT_DECOUPLED


def _written(outputs: Iterable[tuple[str, str]], readers: Mapping[str, tuple[int, ...]]) -> Written:
    """What somebody reads of these outputs, which are pairs of a name of the model and a tensor."""
    names = {name: tensor for name, tensor in outputs if tensor in readers}
    reads = [reader for tensor in names.values() for reader in readers[tensor]]
    shared = frozenset(name for name, tensor in names.items() if readers[tensor] != (OUTPUTS,))
    return Written(names, tuple(dict.fromkeys(reads)), len(reads), shared, dict.fromkeys(names.values()))


def fitting(shape: list[int], batch: int, dims: Sequence[int], *, is_batching: bool) -> list[int]:
    """The shape of a tensor for a reader, as in Triton: with or without the batch dimension.

    `batch` is the batch size of the request that made the tensor, 0 if its model does not batch. `dims` are what the
    reader is configured with, and `is_batching` is whether it batches. A shape that cannot be converted is kept, which
    the reader then refuses.
    """
    if is_batching == (batch > 0):
        return shape
    fits = len(shape) == len(dims) and all(want in (-1, size) for size, want in zip(shape, dims, strict=True))
    if is_batching:
        return [1, *shape] if fits else shape
    return shape[1:] if batch == 1 and not fits else shape
