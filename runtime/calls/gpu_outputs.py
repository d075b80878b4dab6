# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Brings outputs of a call from the GPU of the callee to that of the caller, or to main memory."""

from __future__ import annotations

from dataclasses import replace

from pyruntime.runtime.memory.gpu_peers import GpuPeers, Moved, Tensor
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import GpuRegion
from pyruntime.runtime.requests.types import InferResponse, OnGpu, OutputTensor
from pyruntime.utils.addresses import split


def is_elsewhere(output: OutputTensor, gpu: int | None) -> bool:
    """Whether an output lies on another GPU."""
    return type(output.place) is OnGpu and output.place.memory.gpu.ordinal != gpu


def source_of(output: OutputTensor) -> Tensor:
    """An output that lies on a GPU, as what is copied."""
    assert isinstance(output.place, OnGpu)  # the caller looks
    return Tensor(output.place.memory, split(output.address)[1], output.byte_size)


def copies_of(outputs: list[OutputTensor], moved: Moved) -> list[OutputTensor]:
    """The same outputs, in the places that they were copied to."""
    copies = []
    for output, at in zip(outputs, moved.addresses, strict=True):
        name, datatype, shape, size = output.name, output.datatype, output.shape, output.byte_size
        if isinstance(moved.region, GpuRegion):
            copies.append(OutputTensor(name, datatype, shape, b"", at, OnGpu(moved.region, size)))
        else:
            offset = split(at)[1]
            copies.append(OutputTensor(name, datatype, shape, moved.region.view[offset : offset + size], at))
    return copies


async def bring_outputs(
    response: InferResponse, gpu: int | None, peers: GpuPeers, memory: RequestMemory
) -> InferResponse:
    """The response, with copies of all outputs that lie on another GPU. Raises InferenceError.

    `memory` is the callee's, for what cannot lie on the caller's GPU. It must not be cancelled: see GpuPeers.
    """
    moving = [output for output in response.outputs if is_elsewhere(output, gpu)]
    moved = await peers.move([source_of(output) for output in moving], gpu, memory)
    copies = dict(zip(map(id, moving), copies_of(moving, moved), strict=True))
    outputs = [copies.get(id(output), output) for output in response.outputs]
    kept = [each for each in response.regions if not isinstance(each, GpuRegion) or each.gpu.ordinal == gpu]

    def release() -> None:
        moved.slot.free()
        response.release()

    return replace(response, outputs=outputs, release=release, regions=(*kept, moved.region))
