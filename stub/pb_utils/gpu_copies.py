# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies outputs of a call to a GPU, if its request prefers that. Imported only then.

The memory is this process's own, and goes when nothing refers to the tensor any more.
"""

from __future__ import annotations

import contextlib
from typing import List, Set

import numpy as np

from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.dlpack import ImportedTensor
from pyruntime.stub.pb_utils.gpu_tensor import GpuTensor
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.utils.gpu.driver import GpuError, GpuMemoryError

# GPUs that cannot be used: to try costs too much for each call. One without memory has some again for another call.
_refused: Set[int] = set()
# GPUs of which the log has said why outputs are not there.
_told: Set[int] = set()


class _Memory:
    """Memory on a GPU. Raises GpuError."""

    def __init__(self, gpu: int, size: int) -> None:
        self._gpu = gpu_of(gpu)
        self.pointer = self._gpu.allocate(size)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            with contextlib.suppress(GpuError):  # the GPU is lost, and the memory with it
                self._gpu.settle()  # a framework may still read it
                self._gpu.free(self.pointer)


def copied_to_gpu(tensors: List[Tensor], gpu: int) -> List[Tensor]:
    """The tensors, those in main memory copied to the GPU with this number in this process.

    Strings, and tensors without elements, stay; so do all if the GPU cannot be used, or has no memory.
    """
    if gpu in _refused:
        return tensors
    try:
        return [_copied(tensor, gpu) if _can_move(tensor) else tensor for tensor in tensors]
    except GpuError as exc:
        if not isinstance(exc, GpuMemoryError):
            _refused.add(gpu)
        if gpu not in _told:
            _told.add(gpu)
            LOGGER.warning("outputs of calls that prefer GPU %d are in main memory: %s", gpu, exc.explanation)
        return tensors


def _can_move(tensor: Tensor) -> bool:
    return tensor.is_cpu() and tensor._datatype != "BYTES" and 0 not in tensor._shape


def _copied(tensor: Tensor, gpu: int) -> Tensor:
    contents = np.ascontiguousarray(tensor._contents())
    memory = _Memory(gpu, contents.nbytes)
    gpu_of(gpu).write(memory.pointer, contents.reshape(-1).view(np.uint8))
    imported = ImportedTensor(memory.pointer, tuple(tensor._shape), tensor._datatype, memory, gpu)
    return GpuTensor(tensor._name, imported)
