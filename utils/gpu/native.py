# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Functions in C that allocate memory of a GPU, for native code that must not run Python code."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable

from pyruntime.utils.gpu.driver import GpuError, gpu_error

if TYPE_CHECKING:
    from pyruntime.utils.gpu.driver import Gpu

_LIBRARY = "libcuda.so.1"
# The names with _v2 have had these parameters since CUDA 4; those without are of older versions.
_FUNCTIONS = ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxSynchronize")

_Push = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Pop = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_Allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
_Settle = ctypes.CFUNCTYPE(ctypes.c_int)


class NativeFunctions(ctypes.Structure):
    """Addresses of functions that return 0 if they succeed, and the context that must be current around the others.

    push(context), pop(&context), allocate(&pointer: uint64, size: size_t), free(pointer: uint64), settle()
    """

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "push", "pop", "allocate", "free", "settle")]


def of_driver(context: int, library: str = _LIBRARY) -> NativeFunctions:
    """Those of NVIDIA's driver, for the GPU of a context. Raises GpuError without them."""
    try:
        driver = ctypes.CDLL(library)
        functions = [ctypes.cast(getattr(driver, name), ctypes.c_void_p) for name in _FUNCTIONS]
    except (OSError, AttributeError) as exc:
        raise gpu_error("CUDA_ERROR_NOT_INITIALIZED", "dlopen", str(exc)) from exc
    return NativeFunctions(context, *functions)


def in_python(gpu: Gpu) -> NativeFunctions:
    """The methods of a GPU that has no others, valid as long as the result. They take the GIL: for tests."""

    def allocate(pointer: Any, size: int) -> None:
        pointer[0] = gpu.allocate(size)

    functions = (
        _Push(lambda context: 0),
        _Pop(lambda context: 0),
        _Allocate(_status_of(allocate)),
        _Free(_status_of(gpu.free)),
        _Settle(_status_of(gpu.settle)),
    )
    native = NativeFunctions(None, *(ctypes.cast(function, ctypes.c_void_p) for function in functions))
    native.functions = functions  # ctypes keeps none of them
    return native


def _status_of(call: Callable[..., None]) -> Callable[..., int]:
    def status(*arguments: Any) -> int:
        try:
            call(*arguments)
        except GpuError:
            return 1
        return 0

    return status
