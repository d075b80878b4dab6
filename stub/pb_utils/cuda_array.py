# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays on a GPU by Numba's `__cuda_array_interface__` (version 3), for frameworks without DLPack.

    interface := { shape, typestr, data: (pointer, read_only), version, strides: None or bytes, stream: None or number }

The work that the contents come from is in order on `stream`. None says that nobody has to wait.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np

from pyruntime.stub.pb_utils.dlpack import NOT_CONTIGUOUS, ImportedTensor
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.tensor import datatype_of
from pyruntime.utils.gpu.driver import GpuError

_VERSION = 3


def import_cuda_array(obj: Any) -> ImportedTensor:
    """The contents of an array, which are read when all work of the process is complete. Raises TritonModelException.

    The array keeps its memory: it is the owner.
    """
    interface = obj.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    datatype = datatype_of(dtype)
    if datatype is None or datatype == "BYTES" or not dtype.isnative or interface.get("mask") is not None:
        raise TritonModelException(f"An array of {interface['typestr']} on a GPU is not of a datatype of Triton.")
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != _c_strides(shape, dtype.itemsize) and 0 not in shape:
        raise TritonModelException(NOT_CONTIGUOUS)
    pointer, read_only = interface["data"]
    return ImportedTensor(pointer, shape, datatype, obj, _gpu_of(pointer), read_only)


def cuda_array_interface(pointer: int, shape: Tuple[int, ...], dtype: Any, read_only: bool) -> Dict[str, Any]:
    """The interface of C-ordered contents that are complete."""
    return {
        "shape": shape,
        "typestr": dtype.str,
        "data": (pointer, read_only),
        "version": _VERSION,
        "strides": None,
        "stream": None,
    }


def _c_strides(shape: Tuple[int, ...], itemsize: int) -> Tuple[int, ...]:
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= size
    return tuple(reversed(strides))


def _gpu_of(pointer: int) -> int:
    """The number of the GPU that memory of a framework lies on; 0 for no elements, which lie nowhere."""
    from pyruntime.utils.gpu.inventory import device_of

    try:
        return device_of(pointer) if pointer else 0
    except GpuError as exc:
        raise TritonModelException(f"An array lies in memory that is on no GPU: {exc.explanation}") from exc
