# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies inputs of a call from a GPU to the request memory of a callee that does not read them there.

The broker of the GPU copies, while the event loop goes on.
"""

from __future__ import annotations

import asyncio

from pyruntime.runtime.calls.call_request import CallRequest
from pyruntime.runtime.calls.model_call import Callee
from pyruntime.runtime.memory.requests import BareSlot, RequestSlot
from pyruntime.runtime.regions import GpuRegion, GrantedRegion
from pyruntime.utils.addresses import address, split
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, TensorRef


def lie_elsewhere(request: CallRequest, callee: Callee) -> bool:
    """Whether inputs lie on a GPU on which the callee does not read them."""
    return any(isinstance(each, GpuRegion) and each.gpu.ordinal != callee.reads_gpu for each in request.regions)


def allocate(request: CallRequest, callee: Callee) -> RequestSlot:
    """A slot of the callee's for all inputs on GPUs. Raises InferenceError."""
    sizes = [size for _, _, _, _, size, kind, _ in request.tensors if kind == MEMORY_GPU]
    return callee.memory.allocate_bare(sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))


async def fetch(request: CallRequest, callee: Callee, slot: RequestSlot) -> CallRequest:
    """The request, with all inputs that lay on GPUs in `slot`. Raises InferenceError.

    It must not be cancelled, because the brokers write to the slot nevertheless.
    """
    if isinstance(slot, BareSlot):  # making its pages takes a while
        await asyncio.to_thread(slot.commit)
    memory = callee.memory.region
    regions = {region.number: region for region in request.regions}
    tensors: list[TensorRef] = []
    copies = []
    at = slot.offset
    for tensor in request.tensors:
        name, datatype, shape, where, size, kind, _ = tensor
        if kind == MEMORY_GPU:
            assert isinstance(where, int)  # see read_call
            number, offset = split(where)
            region = regions[number]
            assert isinstance(region, GpuRegion)  # see read_call
            copies.append(region.lessor.fetch(region, offset, size, memory, at))
            tensor = (name, datatype, shape, address(memory.number, at), size, MEMORY_CPU, 0)
            at += -(-size // ALIGNMENT) * ALIGNMENT
        tensors.append(tensor)
    # All of them end before one fails: the slot is not free before.
    for result in await asyncio.gather(*copies, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
    kept: list[GrantedRegion] = [region for region in request.regions if not isinstance(region, GpuRegion)]
    return request._replace(tensors=tensors, regions=[*kept, memory], on_gpu=False)
