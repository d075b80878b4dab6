# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory for torch that other processes can open, so that an output which torch computes there needs no copy.

torch asks native/torch_allocator.c for it, which must not run Python code. So the memory is leased in advance, and is
torch's until the process ends. The place of an output in it is found by its pointer: see `place` of gpu_memory.py.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from functools import lru_cache
from typing import Any, List

from pyruntime.stub.gpu_memory import GpuMemory
from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.host import get_host
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.utils.gpu.driver import GpuError
from pyruntime.utils.gpu.native import NativeFunctions

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native", "_torch_allocator.abi3.so")
MALLOC, FREE = "torch_allocator_malloc", "torch_allocator_free"

# What the library calls must not go away.
_functions: List[NativeFunctions] = []


def torch_allocator(byte_size: int) -> Any:
    """See pyruntime.torch_allocator."""
    if byte_size <= 0:
        raise TritonModelException(f"torch is to have a positive number of bytes, found {byte_size}")
    try:
        found = get_host().gpu_memory()
    except GpuError as exc:
        raise TritonModelException(f"torch cannot have memory of the instance's GPU: {exc.explanation}") from exc
    if found is None:
        raise TritonModelException("this instance is on no GPU, so that torch cannot allocate memory of one for others")
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise TritonModelException(
            f"torch {torch.__version__} cannot use a GPU here: torch.cuda.is_available() is false"
        )
    gpu, memory = found
    try:
        _provide(memory, gpu, byte_size)
    except GpuError as exc:
        raise TritonModelException(f"torch cannot have memory of GPU {gpu}: {exc.explanation}") from exc
    return torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, MALLOC, FREE)


def _provide(memory: GpuMemory, gpu: int, byte_size: int) -> None:
    """Give torch this much memory of a GPU. Without room it has none but the driver's.

    Raises GpuError, and TritonModelException if the library cannot note it.
    """
    library = _library()
    functions = gpu_of(gpu).native()
    _functions.append(functions)
    if library.torch_allocator_use(gpu, ctypes.byref(functions)):
        raise TritonModelException(f"GPU {gpu} of this process is one too many: torch cannot have memory of it")
    reserve = memory.reserve(gpu, byte_size, library.torch_allocator_lacked)
    if reserve is not None and library.torch_allocator_add(gpu, *reserve):
        raise TritonModelException(f"torch cannot have memory of GPU {gpu}: no main memory is left to note it")


@lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    """The library, which torch loads, too. Raises OSError if it cannot be loaded."""
    library = ctypes.CDLL(LIBRARY)
    library.torch_allocator_add.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
    library.torch_allocator_lacked.restype = ctypes.c_size_t
    return library
