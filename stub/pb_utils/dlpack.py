# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Exports and imports tensors as DLPack capsules. Imported only if a model uses DLPack.

    capsule := PyCapsule "dltensor" -> DLManagedTensor        once taken it is renamed "used_dltensor"
    DLManagedTensor := DLTensor context deleter
    DLTensor := data device ndim dtype shape strides byte_offset        strides count elements; NULL means C order

A capsule of ours is created by numpy over our memory; its datatype is corrected for those that numpy cannot export. It
has no ctypes callbacks, because a capsule or a tensor may be deleted while an exception propagates, and a Python
callback would lose the exception. numpy does not look at the memory, so that it may be on a GPU.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

import numpy as np

from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.gpu.driver import GpuError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CPU = 1
CUDA = 2
_CUDA_HOST = 3  # Pinned memory: main memory, for all that we do with it.

_FRESH = b"dltensor"
_USED = b"used_dltensor"
# Capsules point to their name, and some live longer than this module.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_USED))

# DLPack's type codes, and Triton's datatype for each code and width in bits.
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_DATATYPES = {
    **{(_INT, bits): f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{(_UINT, bits): f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{(_FLOAT, bits): f"FP{bits}" for bits in (16, 32, 64)},
    (_BFLOAT, 16): "BF16",
    (_BOOL, 8): "BOOL",
}
_CODES = {name: code for (code, _), name in _DATATYPES.items()}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# Called with the GIL: some deleters assume it, and others acquire it themselves, which is then harmless.
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]


# Own prototypes, because attributes of `ctypes.pythonapi` and their argument types are shared by the whole process.
# The first takes any object, capsule or not.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


class ImportedTensor(NamedTuple):
    """Memory of a producer: its address, shape in elements and Triton datatype. Valid while `owner` exists.

    `gpu` is the number of the GPU that it lies on, None for main memory.
    """

    pointer: int
    shape: tuple[int, ...]
    datatype: str
    owner: object
    gpu: Optional[int] = None


class _Loan:
    """Owns a DLManagedTensor; calls its deleter once, when garbage-collected."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, managed: _DLManagedTensor) -> None:
        self._address = ctypes.addressof(managed)
        self._deleter = managed.deleter

    def __del__(self) -> None:
        if self._deleter:  # a producer without a deleter has nothing to free
            self._deleter(self._address)


class _Memory:
    """Memory from which numpy creates an array without a copy. The array keeps it alive, and it keeps `owner` alive."""

    def __init__(self, owner: object, pointer: int, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (pointer, False), "shape": tuple(shape), "typestr": dtype.str, "version": 3}


def as_array(owner: object, pointer: int, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The C-ordered elements at `pointer` as a writable array, without a copy. The array keeps `owner` alive."""
    if 0 in shape:  # numpy refuses a null address, and an empty array needs no owner
        return np.empty(shape, dtype)
    return np.asarray(_Memory(owner, pointer, shape, dtype))


def to_capsule(owner: object, pointer: int, shape: Sequence[int], dtype_name: str, gpu: Optional[int] = None) -> Any:
    """A capsule "dltensor" over the C-ordered elements at `pointer`, of Triton's datatype `dtype_name` ("FP32").

    They are in main memory, or on a GPU.

    `owner` stays alive until the consumer releases the memory, or until the unused capsule is deleted. Raises
    TritonModelException for BYTES. Needs numpy 1.22.
    """
    if dtype_name not in _CODES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    # Exported as integers of the same width, because some versions of numpy cannot export bool, and none bfloat16.
    capsule = as_array(owner, pointer, shape, np.dtype(f"<u{BY_NAME[dtype_name].size}")).__dlpack__()
    managed = _DLManagedTensor.from_address(_get_pointer(capsule, _FRESH))
    managed.dl_tensor.code = _CODES[dtype_name]
    if gpu is not None:
        managed.dl_tensor.device_type, managed.dl_tensor.device_id = CUDA, gpu
    return capsule


def import_tensor(obj: Any) -> ImportedTensor:
    """Take over the tensor of a capsule, or of any object with `__dlpack__` and `__dlpack_device__`.

    Raises TritonModelException like `from_capsule`, and any exception of the object itself.
    """
    if not hasattr(obj, "__dlpack__"):
        return from_capsule(obj)
    # Check the device first, because an export from a GPU may wait for a CUDA stream.
    _check_device(*map(int, obj.__dlpack_device__()))
    return from_capsule(obj.__dlpack__())


def from_capsule(capsule: Any) -> ImportedTensor:
    """Take over the tensor in a capsule "dltensor", and rename the capsule so that it cannot be used again.

    Raises TritonModelException, and leaves the capsule to its maker, for anything else than such a capsule, for a
    device other than the CPU and CUDA GPUs, for a datatype that Triton lacks and for an order of elements other than C.
    """
    if not _is_valid(capsule, _FRESH):
        if _is_valid(capsule, _USED):
            raise TritonModelException("DLPack capsule has been consumed before; a capsule can be used only once.")
        raise TritonModelException(
            f"Expected a DLPack capsule or an object with __dlpack__, found type {type(capsule)}."
        )
    managed = _DLManagedTensor.from_address(_get_pointer(capsule, _FRESH))
    tensor = managed.dl_tensor
    _check_device(tensor.device_type, tensor.device_id)
    datatype = _DATATYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        raise TritonModelException(
            f"DLPack type with code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes "
            "is not a datatype of Triton."
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides and not _is_c_ordered(shape, tensor.strides[: tensor.ndim]):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    pointer = (tensor.data or 0) + tensor.byte_offset
    _set_name(capsule, _USED)
    gpu = tensor.device_id if tensor.device_type == CUDA else None
    return ImportedTensor(pointer, shape, datatype, _Loan(managed), gpu)


def _check_device(device_type: int, device_id: int) -> None:
    """Raise TritonModelException for a device that tensors cannot be read from."""
    if device_type in (_CPU, _CUDA_HOST):
        return
    message = f"DLDevice type {device_type} is not support by Python backend."
    if device_type != CUDA:
        raise TritonModelException(message)
    from pyruntime.stub.gpus import gpu_of

    try:
        gpu_of(device_id)
    except GpuError as exc:
        raise TritonModelException(message) from exc  # Triton's words; the cause says what is missing


def _is_c_ordered(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie in C order without gaps; the stride of a dimension of size 1 says nothing."""
    expected = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] != 1 and strides[axis] != expected:
            return 0 in shape  # without elements, any order is right
        expected *= shape[axis]
    return True
