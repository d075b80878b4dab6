# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Exports and imports tensors as DLPack capsules. Imported only if a model uses DLPack.

    capsule := PyCapsule "dltensor" -> DLManagedTensor        once taken it is renamed "used_dltensor"
             | PyCapsule "dltensor_versioned" -> DLManagedTensorVersioned        "used_dltensor_versioned"
    DLManagedTensor := DLTensor context deleter
    DLManagedTensorVersioned := version context deleter flags DLTensor        a flag says "read only"
    DLTensor := data device ndim dtype shape strides byte_offset        strides count elements; NULL means C order

A capsule of ours is created by numpy over our memory; its datatype is corrected for those that numpy cannot export. It
has no ctypes callbacks, because a capsule or a tensor may be deleted while an exception propagates, and a Python
callback would lose the exception. numpy does not look at the memory, so that it may be on a GPU.

An object is asked for a capsule by `__dlpack__` with the *stream* that will read the memory, if that is on a GPU: the
producer orders its work before that stream. The rules are those of the array API standard, 2024.12.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Tuple, Type, Union

import numpy as np

from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.gpu.driver import GpuError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU = 1
CUDA = 2
_CUDA_HOST = 3  # Pinned memory: main memory, for all that we do with it.

_FRESH, _FRESH_VERSIONED = b"dltensor", b"dltensor_versioned"
_USED, _USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
# Capsules point to their name, and some live longer than this module.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_USED))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_USED_VERSIONED))
# The newest layout that we read, which a producer is told.
VERSION = (1, 0)
_READ_ONLY = 1

# CUDA's legacy default stream, which None stands for, and "no stream", as the standard numbers them.
LEGACY_STREAM, NO_STREAM = 1, -1

# DLPack's type codes, and Triton's datatype for each code and width in bits. Triton has no float8: its bits are UINT8.
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_FLOAT8_FIRST, _FLOAT8_LAST = 7, 14
_DATATYPES = {
    **{(_INT, bits): f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{(_UINT, bits): f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{(_FLOAT, bits): f"FP{bits}" for bits in (16, 32, 64)},
    (_BFLOAT, 16): "BF16",
    (_BOOL, 8): "BOOL",
}
_CODES = {name: code for (code, _), name in _DATATYPES.items()}
_DATATYPES.update({(code, 8): "UINT8" for code in range(_FLOAT8_FIRST, _FLOAT8_LAST + 1)})

NOT_CONTIGUOUS = (
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
)
# The gap is Triton's.
_NO_TENSOR = (
    "Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and "
    "`__dlpack_device__` attributes"
)


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


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    ]


_Managed = Union[_DLManagedTensor, _DLManagedTensorVersioned]
# numpy creates versioned capsules from 2.1 on.
_HAS_VERSIONS = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)

# Own prototypes, because attributes of `ctypes.pythonapi` and their argument types are shared by the whole process.
# The first takes any object, capsule or not.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


class ImportedTensor(NamedTuple):
    """Memory of a producer: its address, shape in elements and Triton datatype. Valid while `owner` exists.

    `gpu` is the number of the GPU that it lies on, None for main memory. `read_only` if the producer says so.
    """

    pointer: int
    shape: tuple[int, ...]
    datatype: str
    owner: object
    gpu: Optional[int] = None
    read_only: bool = False


class _Loan:
    """Owns a DLManagedTensor of either layout; calls its deleter once, when garbage-collected."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, managed: _Managed) -> None:
        self._address = ctypes.addressof(managed)
        self._deleter = managed.deleter

    def __del__(self) -> None:
        if self._deleter:  # a producer without a deleter has nothing to free
            self._deleter(self._address)


class _Memory:
    """Memory from which numpy creates an array without a copy. The array keeps it alive, and it keeps `owner` alive."""

    def __init__(
        self, owner: object, pointer: int, shape: Sequence[int], dtype: np.dtype[Any], read_only: bool
    ) -> None:
        self.owner = owner
        data = pointer, read_only
        self.__array_interface__ = {"data": data, "shape": tuple(shape), "typestr": dtype.str, "version": 3}


def as_array(
    owner: object, pointer: int, shape: Sequence[int], dtype: np.dtype[Any], read_only: bool = False
) -> NDArray[Any]:
    """The C-ordered elements at `pointer` as an array, without a copy. The array keeps `owner` alive."""
    if 0 in shape:  # numpy refuses a null address, and an empty array needs no owner
        return np.empty(shape, dtype)
    return np.asarray(_Memory(owner, pointer, shape, dtype, read_only))


def to_capsule(
    owner: object,
    pointer: int,
    shape: Sequence[int],
    dtype_name: str,
    gpu: Optional[int] = None,
    max_version: Optional[Tuple[int, int]] = None,
    read_only: bool = False,
) -> Any:
    """A capsule over the C-ordered elements at `pointer`, of Triton's datatype `dtype_name` ("FP32").

    They are in main memory, or on a GPU. The capsule is a "dltensor", unless the consumer reads a versioned one
    (`max_version`), which alone can say `read_only`.

    `owner` stays alive until the consumer releases the memory, or until the unused capsule is deleted. Raises
    TritonModelException for BYTES. Needs numpy 1.22.
    """
    if dtype_name not in _CODES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    # Exported as integers of the same width, because some versions of numpy cannot export bool, and none bfloat16.
    array = as_array(owner, pointer, shape, np.dtype(f"<u{BY_NAME[dtype_name].size}"))
    managed: Any
    if _HAS_VERSIONS and max_version is not None and max_version[0] >= 1:
        capsule = array.__dlpack__(max_version=VERSION)
        managed = _DLManagedTensorVersioned.from_address(_get_pointer(capsule, _FRESH_VERSIONED))
        managed.flags |= _READ_ONLY if read_only else 0
    else:
        capsule = array.__dlpack__()
        managed = _DLManagedTensor.from_address(_get_pointer(capsule, _FRESH))
    managed.dl_tensor.code = _CODES[dtype_name]
    if gpu is not None:
        managed.dl_tensor.device_type, managed.dl_tensor.device_id = CUDA, gpu
    return capsule


def import_tensor(obj: Any) -> ImportedTensor:
    """Take over the tensor of a capsule, of any object with `__dlpack__` and `__dlpack_device__`, or of a CUDA array.

    Work of ours on the stream of `Gpu` comes behind the producer's. Raises TritonModelException like `from_capsule`,
    and any exception of the object itself.
    """
    if not hasattr(obj, "__dlpack__"):
        if hasattr(obj, "__cuda_array_interface__"):
            from pyruntime.stub.pb_utils.cuda_array import import_cuda_array

            return import_cuda_array(obj)
        return from_capsule(obj)
    if not hasattr(obj, "__dlpack_device__"):
        raise TritonModelException(_NO_TENSOR)
    # Check the device first, because an export from a GPU may wait for a CUDA stream.
    device_type, device_id = map(int, obj.__dlpack_device__())
    _check_device(device_type, device_id)
    stream = gpu_stream(device_id) if device_type == CUDA else None
    options = {} if stream is None else {"stream": stream}
    try:
        return from_capsule(obj.__dlpack__(**options))
    except BufferError:  # numpy's, for instance: only a versioned capsule can say that an array is read-only
        return from_capsule(obj.__dlpack__(max_version=VERSION, **options))


def gpu_stream(gpu: int) -> int:
    """The stream of our copies on this GPU. Raises GpuError."""
    from pyruntime.stub.gpus import gpu_of

    return gpu_of(gpu).stream


def from_capsule(capsule: Any) -> ImportedTensor:
    """Take over the tensor in a capsule, and rename the capsule so that it cannot be used again.

    Raises TritonModelException, and leaves the capsule to its maker, for anything else than such a capsule, for a
    device other than the CPU and CUDA GPUs, for a datatype that Triton lacks and for an order of elements other than C.
    """
    kind, used = _kind_of(capsule)
    managed = kind.from_address(_get_pointer(capsule, _FRESH if used is _USED else _FRESH_VERSIONED))
    read_only = False
    if isinstance(managed, _DLManagedTensorVersioned):
        if managed.major != VERSION[0]:
            raise TritonModelException(f"Expected a DLPack capsule of version {VERSION[0]}, found {managed.major}.")
        read_only = bool(managed.flags & _READ_ONLY)
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
        raise TritonModelException(NOT_CONTIGUOUS)
    pointer = (tensor.data or 0) + tensor.byte_offset
    _set_name(capsule, used)
    gpu = tensor.device_id if tensor.device_type == CUDA else None
    return ImportedTensor(pointer, shape, datatype, _Loan(managed), gpu, read_only)


def _kind_of(capsule: Any) -> Tuple[Type[Any], bytes]:
    """The layout of what a capsule points to, and its name once it is used."""
    if _is_valid(capsule, _FRESH):
        return _DLManagedTensor, _USED
    if _is_valid(capsule, _FRESH_VERSIONED):
        return _DLManagedTensorVersioned, _USED_VERSIONED
    if _is_valid(capsule, _USED) or _is_valid(capsule, _USED_VERSIONED):
        raise TritonModelException("DLPack capsule has been consumed before; a capsule can be used only once.")
    raise TritonModelException(_NO_TENSOR)


def check_export(dl_device: Optional[Tuple[int, int]], device: Tuple[int, int]) -> None:
    """Raise BufferError if a consumer asks for a tensor on another device than its own, main memory excepted."""
    if dl_device is not None and tuple(map(int, dl_device)) not in (device, (CPU, 0)):
        raise BufferError(f"a tensor on the DLPack device {device} cannot be exported to {tuple(dl_device)}")


def _check_device(device_type: int, device_id: int) -> None:
    """Raise TritonModelException for a device that tensors cannot be read from."""
    if device_type in (CPU, _CUDA_HOST):
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
