# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A tensor that a library writes on a GPU where other processes can open it: see stub/gpu_memory.py.

The library waits for its own work on the GPU before it hands the tensor over: the contents are complete. Without that
it may still write when it lets go of the memory, so that this process waits for all work on the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence

from pyruntime.stub.pb_utils.dlpack import ImportedTensor
from pyruntime.stub.pb_utils.gpu_tensor import GpuContents, GpuTensor, OnGpu

if TYPE_CHECKING:
    from pyruntime.stub.gpu_memory import GpuMemory


class Slot:
    """Memory for one tensor. It is free when nothing refers to this, and no other process reads it."""

    def __init__(self, memory: GpuMemory, gpu: int, size: int, place: OnGpu, pointer: int) -> None:
        self.gpu = gpu
        self.size = size
        self.place = place
        self.pointer = pointer
        # Whether the tensor was handed over.
        self.is_written = False
        self._memory = memory

    def __del__(self) -> None:
        self._memory.take_back(self.place.address, None if self.is_written else self.gpu)


class LeasedContents(GpuContents):
    """Contents in a slot."""

    def __init__(self, name: str, imported: ImportedTensor, slot: Slot) -> None:
        super().__init__(name, imported)
        self.nbytes = slot.size
        self.slot = slot

    def settle(self) -> None:
        """See GpuContents. There is nothing to wait for."""


def slot_on(memory: GpuMemory, gpu: int, size: int) -> Optional[Slot]:
    """Memory on the GPU with this number in this process. None if there is no room."""
    found = memory.allocate(gpu, size)
    return None if found is None else Slot(memory, gpu, size, *found)


def leased_tensor(name: str, datatype: str, shape: Sequence[int], slot: Slot) -> GpuTensor:
    """The tensor in a slot."""
    imported = ImportedTensor(slot.pointer, tuple(shape), datatype, slot, slot.gpu)
    tensor = GpuTensor(name, imported)
    tensor._array = LeasedContents(name, imported, slot)
    return tensor
