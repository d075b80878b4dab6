# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Brings inputs from a GPU to where a model reads them: another GPU, or its request memory.

`reads` are the GPUs on which the model reads inputs, by their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pyruntime.runtime.calls.call_request import CallRequest
from pyruntime.runtime.memory.gpu_peers import GpuPeers, Tensor
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import GpuRegion, GrantedRegion
from pyruntime.runtime.requests.types import Slot
from pyruntime.utils.addresses import split
from pyruntime.utils.request_codec import MEMORY_GPU, TensorRef


def lie_elsewhere(request: CallRequest, reads: Mapping[str, int]) -> bool:
    """Whether inputs lie on a GPU on which the callee does not read them."""
    return any(_lies_elsewhere(tensor, reads) for tensor in request.tensors)


async def bring_inputs(
    inputs: Sequence[TensorRef],
    regions: Sequence[GrantedRegion],
    reads: Mapping[str, int],
    memory: RequestMemory,
    peers: GpuPeers,
    slots: list[Slot],
) -> tuple[list[TensorRef], list[GrantedRegion]]:
    """The inputs, with copies in place of those that lie elsewhere, and the regions of all. Raises InferenceError.

    The slots of the copies are added to `slots`, also if it fails. `memory` is the model's. It must not be cancelled:
    see GpuPeers.
    """
    by_number = {region.number: region for region in regions}
    tensors: list[TensorRef] = list(inputs)
    moving: dict[int | None, dict[int, Tensor]] = defaultdict(dict)
    kept: dict[GrantedRegion, None] = {region: None for region in regions if not isinstance(region, GpuRegion)}
    for index, tensor in enumerate(tensors):
        name, _, _, where, size, _, _ = tensor
        number, offset = split(where) if isinstance(where, int) else (0, 0)
        if _lies_elsewhere(tensor, reads):
            region = by_number[number]
            assert isinstance(region, GpuRegion)  # see read_call
            moving[reads.get(name)][index] = Tensor(region, offset, size)
        elif number in by_number:
            kept[by_number[number]] = None
    for gpu, sources in moving.items():
        moved = await peers.move(list(sources.values()), gpu, memory)
        slots.append(moved.slot)
        kept[moved.region] = None
        for index, at in zip(sources, moved.addresses, strict=True):
            name, datatype, shape, _, size, _, _ = tensors[index]
            tensors[index] = (name, datatype, shape, at, size, *moved.where)
    return tensors, list(kept)


def _lies_elsewhere(tensor: TensorRef, reads: Mapping[str, int]) -> bool:
    return tensor[5] == MEMORY_GPU and reads.get(tensor[0]) != tensor[6]
