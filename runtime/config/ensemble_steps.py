# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Compares an ensemble with the models of its steps, once these are loaded. (pure)

Each rule is one EnsembleError, with Triton's message. A tensor has the datatype and the shape of whoever names it
first: the ensemble, for its inputs and outputs, and then the steps in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyruntime.runtime.config.ensembles import EnsembleError, place_of_step
from pyruntime.runtime.config.spec import EnsembleSpec, ModelSpec, StepSpec, TensorSpec

# The number of the decoupled step that a tensor originates from, counted from 0.
_NOT_DECOUPLED = -1


def check_steps(spec: ModelSpec, models: Sequence[ModelSpec]) -> bool:
    """Raise EnsembleError unless the steps of an ensemble fit together. Returns whether it is decoupled.

    `models` are those of the steps, in their order.
    """
    ensemble = spec.ensemble
    assert ensemble is not None  # the caller looks
    tensors = _Tensors(spec)
    for index, (step, model) in enumerate(zip(ensemble.steps, models, strict=True)):
        _check_batch_size(spec, model, index)
        _check_inputs(spec, step, model, index, tensors)
        _check_outputs(spec, step, model, index, tensors)
    return _check_origins(spec, ensemble, models, tensors)


def inherited_labels(spec: ModelSpec, models: Sequence[ModelSpec]) -> ModelSpec:
    """The spec of an ensemble with labels for its outputs: without a file of its own, those of the step's output."""
    ensemble = spec.ensemble
    assert ensemble is not None  # the caller looks
    written = {
        tensor: model.labels[name]
        for step, model in zip(ensemble.steps, models, strict=True)
        for name, tensor in step.outputs.items()
        if tensor in spec.outputs and name in model.labels
    }
    return replace(spec, labels=written | dict(spec.labels))


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as one model describes it: `shape` is `dims`, after a leading -1 if the model batches."""

    model: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]

    @staticmethod
    def of(model: ModelSpec, tensor: TensorSpec, dims: tuple[int, ...]) -> _Tensor:
        shape = (-1, *dims) if model.max_batch_size > 0 else dims
        datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
        return _Tensor(model.name, f"TYPE_{datatype}", dims, shape)


class _Tensors:
    """The tensors of an ensemble, as they were named first."""

    def __init__(self, spec: ModelSpec) -> None:
        self._name = spec.name
        self.first: dict[str, _Tensor] = {}
        for tensor in (*spec.inputs.values(), *spec.outputs.values()):
            dims = tensor.dims if tensor.reshape is None else tensor.reshape
            self.first[tensor.name] = _Tensor.of(spec, tensor, dims)

    def check(self, name: str, model: ModelSpec, tensor: TensorSpec, index: int) -> None:
        """Raise EnsembleError unless a step's model describes a tensor as whoever named it first."""
        found = _Tensor.of(model, tensor, tensor.dims)
        first = self.first.setdefault(name, found)
        if first.datatype != found.datatype:
            difference = "data type", first.datatype, found.datatype
        elif not _agree(first.dims, found.dims) and not _agree(first.shape, found.shape):
            difference = "shape", _dims(first.shape), _dims(found.shape)
        else:
            return
        what, one, other = difference
        raise EnsembleError(
            f"in ensemble {self._name}, ensemble tensor {name}: inconsistent {what}: {one} is inferred from model "
            f"{first.model} while {other} is inferred from model {found.model}",
            place_of_step(index),
        )


def _check_batch_size(spec: ModelSpec, model: ModelSpec, index: int) -> None:
    if model.max_batch_size and spec.max_batch_size > model.max_batch_size:
        raise EnsembleError(
            f"ensemble {spec.name} allows maximum batch size {spec.max_batch_size}, but it contains model "
            f"{model.name} which only allows maximum batch size to be {model.max_batch_size}",
            place_of_step(index),
        )


def _check_inputs(spec: ModelSpec, step: StepSpec, model: ModelSpec, index: int, tensors: _Tensors) -> None:
    place = (*place_of_step(index), "input_map")
    for name, tensor in step.inputs.items():
        if name not in model.inputs:
            raise EnsembleError(
                f"in ensemble {spec.name}, ensemble tensor {tensor} is mapping to non-existing input {name} in model "
                f"{model.name}",
                place,
            )
    for name, described in model.inputs.items():
        if name in step.inputs:
            tensors.check(step.inputs[name], model, described, index)
        elif not described.optional:
            raise EnsembleError(
                f"in ensemble {spec.name}, input {name} in model {model.name} is not mapped to any ensemble tensors",
                place,
            )


def _check_outputs(spec: ModelSpec, step: StepSpec, model: ModelSpec, index: int, tensors: _Tensors) -> None:
    for name, tensor in step.outputs.items():
        if name not in model.outputs:
            raise EnsembleError(
                f"in ensemble {spec.name}, ensemble tensor {tensor} is mapped from non-existing output {name} in model "
                f"{model.name}",
                (*place_of_step(index), "output_map"),
            )
    for name, tensor in step.outputs.items():
        tensors.check(tensor, model, model.outputs[name], index)


def _check_origins(spec: ModelSpec, ensemble: EnsembleSpec, models: Sequence[ModelSpec], tensors: _Tensors) -> bool:
    """Check that a step reads from one decoupled step at most: its responses have no partner among other tensors."""
    origins = dict.fromkeys(spec.inputs, _NOT_DECOUPLED)
    left = list(enumerate(zip(ensemble.steps, models, strict=True)))
    while left:
        index, (step, model) = each = next(each for each in left if origins.keys() >= set(each[1][0].inputs.values()))
        left.remove(each)
        origin = _only_origin(origins, step.inputs.values())
        if origin is None:
            named = tensors.first[next(iter(step.outputs.values()))].model
            raise EnsembleError(_mixed(spec, named), place_of_step(index))
        for tensor in step.outputs.values():
            origins.setdefault(tensor, index if model.decoupled else origin)
    if _only_origin(origins, spec.outputs) is None:
        raise EnsembleError(_mixed(spec, spec.name), ("output",))
    return any(model.decoupled for model in models)


def _only_origin(origins: dict[str, int], tensors: Iterable[str]) -> int | None:
    found = {origins[tensor] for tensor in tensors}
    return next(iter(found)) if len(found) == 1 else None


def _mixed(spec: ModelSpec, model: str) -> str:
    return (
        f"in ensemble {spec.name}, step of model '{model}' receives inputs originated from different decoupled models"
    )


def _agree(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are equal, where -1 is any size."""
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
