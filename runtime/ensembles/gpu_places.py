# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of an ensemble may lie on GPUs. (pure)

A tensor between steps stays on the GPU where it is if all steps that read it do so there, or on another GPU that can be
reached: see gpu_copies.py. An output stays only if the request says that it may: its client has memory there, or its
caller is there; and if all steps that read it, too, do so there. An input that is an output, too, is in main memory,
because no step decides about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import eq

from pyruntime.runtime.ensembles.graph import OUTPUTS, Plan, Step
from pyruntime.runtime.gpus.tensor_places import Reaches, TensorPlaces, reads_of
from pyruntime.utils.request_codec import OutputPlaceRef

# The places of the models of steps, by the index of the step.
StepPlaces = Mapping[int, TensorPlaces | None]


def ensemble_places(plan: Plan, models: StepPlaces) -> TensorPlaces | None:
    """The places of an ensemble whose steps have models with these places; None for main memory.

    `plan` is that for all outputs. The places hold for requests for some of the outputs, too, whose tensors have no
    other readers.
    """
    written = {tensor for step in plan.steps.values() for _, tensor in step.outputs}
    reads: dict[str, int] = {}
    for tensor, readers in plan.readers.items():
        gpus = _gpus_of_readers(tensor, plan, models)
        gpu = gpus.pop() if len(gpus) == 1 else None
        if gpu is not None and tensor not in written and OUTPUTS not in readers:
            reads[tensor] = gpu
    outputs: dict[str, OutputPlaceRef] = {}
    for step in plan.steps.values():
        for name, place in _staying(step, plan, models).items():
            tensor = dict(step.outputs)[name]
            if OUTPUTS in plan.readers.get(tensor, ()):
                outputs[tensor] = place
    return TensorPlaces(reads, outputs) if reads or outputs else None


def places_of_step(
    step: Step, plan: Plan, models: StepPlaces, wanted: Mapping[str, OutputPlaceRef] | None, reaches: Reaches = eq
) -> dict[str, OutputPlaceRef] | None:
    """The outputs of a step that may stay on a GPU, by the names of its model; None for none.

    `wanted` are the outputs of the ensemble that may, and where.
    """
    places = _staying(step, plan, models, reaches)
    for name, tensor in step.outputs:
        is_output = OUTPUTS in plan.readers.get(tensor, ())
        if is_output and name in places and (wanted is None or wanted.get(tensor) != places[name]):
            del places[name]
    return places or None


def _staying(step: Step, plan: Plan, models: StepPlaces, reaches: Reaches = eq) -> dict[str, OutputPlaceRef]:
    """The outputs of a step that all steps which read them can read on their GPUs, by the names of its model."""
    places = models[step.index]
    made = {} if places is None else places.outputs
    staying: dict[str, OutputPlaceRef] = {}
    for name, tensor in step.outputs:
        place = made.get(name)
        gpus = _gpus_of_readers(tensor, plan, models)
        if place is not None and all(gpu is not None and reaches(place[3], gpu) for gpu in gpus):
            staying[name] = place
    return staying


def _gpus_of_readers(tensor: str, plan: Plan, models: StepPlaces) -> set[int | None]:
    """The GPUs on which steps read a tensor. With None if one reads it in main memory."""
    gpus: set[int | None] = set()
    for reader in plan.readers.get(tensor, ()):
        if reader != OUTPUTS:
            reads = reads_of(models[reader])
            gpus.update(reads.get(name) for name, each in plan.steps[reader].inputs if each == tensor)
    return gpus
