# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors between steps of an ensemble on different GPUs: one for each GPU, not for each reader.

`known` are the tensors, and `reads` are the GPUs on which the model of the step reads inputs, by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyruntime.runtime.calls.gpu_outputs import copies_of, is_elsewhere, source_of
from pyruntime.runtime.ensembles.graph import Step
from pyruntime.runtime.ensembles.tensors import Source
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.memory.requests import RequestMemory

Known = Mapping[str, Source | None]


def lie_elsewhere(step: Step, known: Known, reads: Mapping[str, int]) -> bool:
    """Whether a step finds inputs on a GPU on which its model does not read them, without a copy where it does."""
    return any(is_elsewhere(source.tensor(name, gpu), gpu) for source, name, gpu in _read(step, known, reads))


async def bring(step: Step, known: Known, reads: Mapping[str, int], memory: RequestMemory, peers: GpuPeers) -> None:
    """Copy such inputs to where the model reads them. Raises InferenceError. `memory` is the model's.

    Their sources keep the copies. It must not be cancelled: see GpuPeers.
    """
    wanted: dict[tuple[Source, int | None], list[str]] = {}
    for source, name, gpu in _read(step, known, reads):
        wanted.setdefault((source, gpu), []).append(name)
    for (source, gpu), names in wanted.items():
        async with source.copying:  # another step may copy the same ones
            missing = [name for name in dict.fromkeys(names) if is_elsewhere(source.tensor(name, gpu), gpu)]
            if missing:
                tensors = [source.tensors[name] for name in missing]
                moved = await peers.move([source_of(tensor) for tensor in tensors], gpu, memory)
                source.add_copies(gpu, dict(zip(missing, copies_of(tensors, moved), strict=True)), moved)


def _read(step: Step, known: Known, reads: Mapping[str, int]) -> Iterator[tuple[Source, str, int | None]]:
    """The inputs that are there: their sources, their names in the ensemble, and the GPUs they are read on."""
    for name, tensor in step.inputs:
        source = known[tensor]
        if source is not None:
            yield source, tensor, reads.get(name)
