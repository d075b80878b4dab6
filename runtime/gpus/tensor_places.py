# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a model may lie on GPUs. (pure)

Outputs may stay on the GPU that all instances are on. Where inputs may lie says the parameter
FORCE_CPU_ONLY_INPUT_TENSORS: with `yes`, the default, all of them are in main memory; with `no` those stay on that GPU
which a model has made there, or which lie there in memory of a client. What holds for an ensemble follows from its
steps: see ensembles/gpu_places.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.utils.errors import Code, LoadError
from pyruntime.utils.request_codec import MEMORY_GPU, OutputPlaceRef

PARAMETER = "FORCE_CPU_ONLY_INPUT_TENSORS"

# Whether what lies on one GPU can be read on another one, after a copy or without.
Reaches = Callable[[int, int], bool]


class TensorPlaces(NamedTuple):
    """The tensors of a model that may lie on GPUs; all others are in main memory.

    `reads` are the GPUs on which it reads inputs, by their names, and `outputs` are the places of outputs that may stay
    on a GPU, by theirs.
    """

    reads: Mapping[str, int]
    outputs: Mapping[str, OutputPlaceRef]


def places_of_model(spec: ModelSpec) -> TensorPlaces | None:
    """The same place for all tensors. None if not all instances are on one GPU."""
    numbers = {each.device_id if each.kind == "GPU" else None for each in spec.instances}
    gpu = numbers.pop() if len(numbers) == 1 else None
    if gpu is None:
        return None
    reads = dict.fromkeys(spec.inputs, gpu) if reads_on_gpu(spec) else {}
    return TensorPlaces(reads, dict.fromkeys(spec.outputs, (0, 0, MEMORY_GPU, gpu)))


def reads_on_gpu(spec: ModelSpec) -> bool:
    """Whether an instance on a GPU reads inputs there that lie there already."""
    return spec.parameters.get(PARAMETER) == "no"


def reads_of(places: TensorPlaces | None) -> Mapping[str, int]:
    """The GPUs on which inputs are read, by their names."""
    return {} if places is None else places.reads


def outputs_for(places: TensorPlaces, gpu: int, reaches: Reaches) -> dict[str, OutputPlaceRef]:
    """The places of outputs that can be read on this GPU."""
    return {name: place for name, place in places.outputs.items() if reaches(place[3], gpu)}


def check_input_tensors(spec: ModelSpec) -> None:
    """Raise LoadError, with Triton's words, for a value of the parameter that is neither `yes` nor `no`."""
    value = spec.parameters.get(PARAMETER, "yes")
    if value not in ("yes", "no"):
        raise LoadError(f"Incorrect value for {PARAMETER}: {value}'", Code.UNSUPPORTED)
