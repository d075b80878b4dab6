# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies inputs of a call from a GPU to the request memory of a callee that does not read them there.

The broker of the GPU copies, while the event loop goes on. `reads` are the GPUs on which the callee reads inputs, by
their names. It must be the same for one call in all functions: the sizes follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyruntime.runtime.calls.call_request import CallRequest
from pyruntime.runtime.memory.gpu_copies import Copy, allocate, fill
from pyruntime.runtime.memory.requests import RequestMemory, RequestSlot
from pyruntime.runtime.regions import GpuRegion, GrantedRegion
from pyruntime.utils.addresses import address, split
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, TensorRef


def lie_elsewhere(request: CallRequest, reads: Mapping[str, int]) -> bool:
    """Whether inputs lie on a GPU on which the callee does not read them."""
    return any(_lies_elsewhere(tensor, reads) for tensor in request.tensors)


def slot_of(request: CallRequest, reads: Mapping[str, int], memory: RequestMemory) -> RequestSlot:
    """A slot of the callee's `memory` for the inputs that are copied. Raises InferenceError."""
    return allocate(memory, [tensor[4] for tensor in request.tensors if _lies_elsewhere(tensor, reads)])


async def fetch(
    request: CallRequest, reads: Mapping[str, int], memory: RequestMemory, slot: RequestSlot
) -> CallRequest:
    """The request, with the inputs in `slot` that the callee does not read where they are. Raises InferenceError.

    It must not be cancelled, because the brokers write to the slot nevertheless.
    """
    regions = {region.number: region for region in request.regions}
    sizes: list[int] = []
    copies: list[Copy] = []
    for tensor in request.tensors:
        if _lies_elsewhere(tensor, reads):
            where, size = tensor[3:5]
            assert isinstance(where, int)  # see read_call
            number, offset = split(where)
            region = regions[number]
            assert isinstance(region, GpuRegion)  # see read_call
            sizes.append(size)
            copies.append(partial(region.lessor.fetch, region, offset, size))
    places = iter(await fill(slot, memory.region, sizes, copies))
    tensors: list[TensorRef] = []
    kept: dict[GrantedRegion, None] = {}
    for tensor in request.tensors:
        name, datatype, shape, where, size, _, _ = tensor
        if _lies_elsewhere(tensor, reads):
            tensor = (name, datatype, shape, address(memory.region.number, next(places)), size, MEMORY_CPU, 0)
        elif isinstance(where, int) and (number := split(where)[0]) in regions:
            kept[regions[number]] = None
        tensors.append(tensor)
    return request._replace(tensors=tensors, regions=[*kept, memory.region], on_gpu=False)


def _lies_elsewhere(tensor: TensorRef, reads: Mapping[str, int]) -> bool:
    return tensor[5] == MEMORY_GPU and reads.get(tensor[0]) != tensor[6]
