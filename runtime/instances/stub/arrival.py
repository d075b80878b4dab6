# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Brings inputs of a batch from a GPU that its instance does not read to where it does.

Inputs lie where the instances of the model read them when the request arrived. While it queued, the instances may have
been exchanged for some on another GPU; and a sequence may go on with an instance that leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyruntime.runtime.calls.gpu_inputs import bring_inputs
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import GpuRegion, GrantedRegion
from pyruntime.runtime.requests.types import Slot, free_slots
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import TensorRef


class Arrival:
    """See the module. The jobs of `batch` stay as they are until `end`, except that their memory is not free before."""

    def __init__(self, batch: list[Job], gpu: int | None) -> None:
        """`gpu` is the number of the instance's GPU."""
        self.batch = batch
        self._gpu = gpu
        self._copies = [_Copies(job) for job in batch if any(_lies_elsewhere(each, gpu) for each in job.regions)]

    async def copy(self, memory: RequestMemory, peers: GpuPeers) -> None:
        """Make the copies. `memory` is the model's. It must not be cancelled: see GpuPeers."""
        for each in self._copies:
            await each.make(self._gpu, memory, peers)

    def end(self, is_wanted: bool) -> dict[Job, InferenceError]:
        """Have the jobs refer to the copies, or drop these if they are not wanted. Returns the copies that failed."""
        for each in self._copies:
            each.end(is_wanted)
        return {each.job: each.failure for each in self._copies if each.failure is not None}


class _Copies:
    """The copies for one job. They are a slot of it, too, which keeps its memory until they are complete."""

    offset = 0
    view = memoryview(b"")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.failure: InferenceError | None = None
        self._tensors: list[TensorRef] = job.tensors
        self._regions: Sequence[GrantedRegion] = job.regions
        self._slots, job.slots = job.slots, [self]
        self._made: list[Slot] = []
        self._is_copying, self._is_free = True, False

    async def make(self, gpu: int | None, memory: RequestMemory, peers: GpuPeers) -> None:
        """Copy what lies elsewhere."""
        reads = {} if gpu is None else dict.fromkeys((tensor[0] for tensor in self._tensors), gpu)
        try:
            self._tensors, self._regions = await bring_inputs(
                self._tensors, self._regions, reads, memory, peers, self._made
            )
        except InferenceError as exc:
            self.failure = exc

    def end(self, is_wanted: bool) -> None:
        """See Arrival."""
        self._is_copying = False
        job, made = self.job, self._made
        if is_wanted:
            job.tensors, job.regions, job.slots = self._tensors, self._regions, [*self._slots, *made]
            return
        free_slots(made)
        if self._is_free:
            free_slots(self._slots)

    def free(self) -> None:
        """See Slot."""
        if self._is_copying:
            self._is_free = True
        else:
            free_slots(self._slots)


def _lies_elsewhere(region: GrantedRegion, gpu: int | None) -> bool:
    return isinstance(region, GpuRegion) and region.gpu.ordinal != gpu
