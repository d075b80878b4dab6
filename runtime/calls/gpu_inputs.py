# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies inputs of a call from a GPU to the request memory of a callee that does not read them there.

The broker of the GPU copies, while the event loop goes on.
"""

from __future__ import annotations

from functools import partial

from pyruntime.runtime.calls.call_request import CallRequest
from pyruntime.runtime.calls.model_call import Callee
from pyruntime.runtime.memory.gpu_copies import Copy, allocate, fill
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.regions import GpuRegion, GrantedRegion
from pyruntime.utils.addresses import address, split
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, TensorRef


def lie_elsewhere(request: CallRequest, callee: Callee) -> bool:
    """Whether inputs lie on a GPU on which the callee does not read them."""
    return any(isinstance(each, GpuRegion) and each.gpu.ordinal != callee.reads_gpu for each in request.regions)


def slot_of(request: CallRequest, callee: Callee) -> RequestSlot:
    """A slot of the callee's for all inputs on GPUs. Raises InferenceError."""
    return allocate(callee.memory, [size for _, _, _, _, size, kind, _ in request.tensors if kind == MEMORY_GPU])


async def fetch(request: CallRequest, callee: Callee, slot: RequestSlot) -> CallRequest:
    """The request, with all inputs that lay on GPUs in `slot`. Raises InferenceError.

    It must not be cancelled, because the brokers write to the slot nevertheless.
    """
    memory = callee.memory.region
    regions = {region.number: region for region in request.regions}
    sizes: list[int] = []
    copies: list[Copy] = []
    for _, _, _, where, size, kind, _ in request.tensors:
        if kind == MEMORY_GPU:
            assert isinstance(where, int)  # see read_call
            number, offset = split(where)
            region = regions[number]
            assert isinstance(region, GpuRegion)  # see read_call
            sizes.append(size)
            copies.append(partial(region.lessor.fetch, region, offset, size))
    places = iter(await fill(slot, memory, sizes, copies))
    tensors: list[TensorRef] = []
    for tensor in request.tensors:
        name, datatype, shape, _, size, kind, _ = tensor
        if kind == MEMORY_GPU:
            tensor = (name, datatype, shape, address(memory.number, next(places)), size, MEMORY_CPU, 0)
        tensors.append(tensor)
    kept: list[GrantedRegion] = [region for region in request.regions if not isinstance(region, GpuRegion)]
    return request._replace(tensors=tensors, regions=[*kept, memory], on_gpu=False)
