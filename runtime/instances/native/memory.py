# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tensors of native models, which run in the host's own process.

A native instance gets addresses in the model's request region, which the host maps. The regions of other models are
mapped as well, and are addressed in the same way. The memory of clients is not mapped: it may shrink at any time, and
an access beyond its end is a bus error. So inputs in it are copied into the request region.
"""

from __future__ import annotations

import ctypes
import os

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import ClientRegion, SharedRegion
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import TensorRef


def base_of(region: SharedRegion) -> int:
    """The address of a region's first byte in this process. It stays there until the region is closed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(region.view))


def resolved(job: Job, memory: RequestMemory, base: int) -> list[TensorRef]:
    """The inputs of a job, with the offset of each tensor from `base`, the address of `memory`.

    Raises InferenceError if a client's memory cannot be read, or there is no room for a copy of it.
    """
    regions = {region.number: region for region in job.regions}
    tensors: list[TensorRef] = []
    for name, datatype, shape, at, size, memory_kind, device_id in job.tensors:
        if isinstance(at, bytes):
            slot = memory.allocate(size)
            slot.fill(at)
            job.slots.append(slot)
            at = slot.offset
        elif (region := regions.get(split(at)[0])) is not None:
            if isinstance(region, ClientRegion):
                at = _copied(job, memory, region, split(at)[1], size)
            else:
                assert isinstance(region, SharedRegion)  # what lay on a GPU was copied before
                at = base_of(region) + split(at)[1] - base
        tensors.append((name, datatype, shape, at, size, memory_kind, device_id))
    return tensors


def free_copies(job: Job) -> None:
    """Free what `resolved` has copied for an execution after which the job is executed again."""
    clients = {region.number for region in job.regions if isinstance(region, ClientRegion)}
    count = sum(
        isinstance(at, bytes) or (size > 0 and split(at)[0] in clients) for _, _, _, at, size, _, _ in job.tensors
    )
    if count:
        copies = job.slots[-count:]
        del job.slots[-count:]
        for slot in copies:
            slot.free()


def _copied(job: Job, memory: RequestMemory, region: ClientRegion, offset: int, size: int) -> int:
    if not size:
        return 0
    slot = memory.allocate(size)
    job.slots.append(slot)
    view, at = slot.view, 0
    while at < size:
        count = os.preadv(region.fileno(), [view[at:]], offset + at)
        if not count:
            raise InferenceError("the shared memory of an input is smaller than it was when it was registered")
        at += count
    return slot.offset
