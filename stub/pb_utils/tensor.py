# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.Tensor`: a named tensor with an array of the model, or with contents in shared memory.

An input tensor creates its array on first use, because many models read only some of their inputs. The array is a
writable view of shared memory, not a copy; the worker detects when a model keeps one after execute (see
input_lifetime.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

import numpy as np

from pyruntime.stub.pb_utils.arguments import as_text
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.utils.byte_tensors import deserialize_bytes_tensor, serialize_byte_tensor
from pyruntime.utils.dtypes import BY_NAME, DATATYPES

if TYPE_CHECKING:
    from pyruntime.stub.memory import Source
    from pyruntime.utils.request_codec import TensorRef

DTYPES: Dict[str, Any] = {
    datatype.name: np.dtype(datatype.numpy) for datatype in DATATYPES if datatype.numpy and datatype.size
}
DATATYPE_NAMES: Dict[Any, str] = {dtype: name for name, dtype in DTYPES.items()}
_BF16_BITS = np.dtype("<u2")
_DL_CPU = (1, 0)
_NO_BF16 = "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."


def datatype_of(dtype: Any) -> Optional[str]:
    """Triton's name for a numpy dtype of any byte order; None if there is none."""
    if dtype.kind in "OS":
        return "BYTES"
    if dtype.kind not in "biuf":
        return None  # some of these, such as StringDType, have no byte order
    return DATATYPE_NAMES.get(dtype.newbyteorder("="))


def _checked_name(name: Any) -> str:
    text = as_text(name, "the name of a tensor")
    if not text:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return text


def _as_array(value: Any) -> Any:
    """More than in Triton is an array, but not None, which is a forgotten `return`."""
    if value is None:
        raise TypeError("the contents of a tensor are a numpy array, found None")
    return np.asarray(value)


class Tensor:
    """See Triton's documentation of the Python backend. Arguments are positional only, as there."""

    __slots__ = ("_address", "_array", "_datatype", "_name", "_region", "_shape", "_size")

    _name: str
    _datatype: str
    _shape: List[int]
    # Created on first use if the tensor is in a region: `_size` bytes at `_address`.
    _array: Optional[Any]
    _region: Optional[Source]
    _address: Union[int, bytes]
    _size: int

    def __init__(self, __name: str, __numpy_array: Any) -> None:
        array = __numpy_array if isinstance(__numpy_array, np.ndarray) else _as_array(__numpy_array)
        if not __name or type(__name) is not str:
            __name = _checked_name(__name)
        datatype = DATATYPE_NAMES.get(array.dtype)
        if datatype is None:
            datatype = datatype_of(array.dtype)
            if datatype is None:
                raise TritonModelException("NumPy dtype is not supported.")
            if datatype != "BYTES":
                array = array.astype(DTYPES[datatype])  # from another byte order
        self._name = __name
        self._datatype = datatype
        self._shape = list(array.shape)
        self._array = array
        self._region = None

    @classmethod
    def _from_region(cls, region: Source, ref: TensorRef) -> Tensor:
        """The tensor that is referred to, whose contents lie in `region`."""
        tensor = cls.__new__(cls)
        tensor._name, tensor._datatype, tensor._shape, tensor._address, tensor._size, kind, _ = ref
        if kind:  # not MEMORY_CPU
            return region.on_gpu(ref, None)
        tensor._array = None
        tensor._region = region
        return tensor

    def __repr__(self) -> str:
        return f"<Tensor {self._name} {self._datatype} {self._shape}>"

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def triton_dtype(self) -> int:
        """The datatype as a number of the `DataType` enum, 1 to 14."""
        return BY_NAME[self._datatype].number

    def shape(self) -> List[int]:
        """The shape, batch dimension included."""
        return list(self._shape)

    def is_cpu(self) -> bool:
        """Whether the contents are in CPU memory."""
        return True

    def as_numpy(self) -> Any:
        """The contents as an array; BYTES as an object array of `bytes`.

        Raises TritonModelException for BF16, which numpy does not have.
        """
        if self._datatype == "BF16":
            raise TritonModelException(_NO_BF16)
        array = self._array
        if array is None:
            dtype = DTYPES.get(self._datatype)
            array = self._array = self._map() if dtype is None else self._view(dtype)
        return array

    def to_dlpack(self) -> Any:
        """A PyCapsule "dltensor" over the contents. Raises TritonModelException for BYTES.

        Each call makes a new capsule over the same memory. A consumer that keeps one keeps the memory.
        """
        return self._capsule(None, None)

    def __dlpack__(
        self,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """The DLPack protocol of the array API standard. `stream` has no meaning for main memory.

        Raises BufferError for another device, or if `copy` is False and the array is not contiguous.
        """
        from pyruntime.stub.pb_utils import dlpack

        dlpack.check_export(dl_device, _DL_CPU)
        return self._capsule(max_version, copy)

    def _capsule(self, max_version: Optional[Tuple[int, int]], copy: Optional[bool]) -> Any:
        from pyruntime.stub.pb_utils import dlpack

        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        contents = self._contents()
        if copy is False and not contents.flags.c_contiguous:
            raise BufferError("the array is not contiguous, so that it cannot be exported without a copy")
        contents = contents.copy() if copy else np.ascontiguousarray(contents)
        contents = contents.reshape(self._shape)
        read_only = not contents.flags.writeable
        pointer = contents.ctypes.data
        return dlpack.to_capsule(contents, pointer, self._shape, self._datatype, None, max_version, read_only)

    def __dlpack_device__(self) -> Tuple[int, int]:
        """The DLPack protocol: CPU memory, device 0."""
        return _DL_CPU

    @staticmethod
    def from_dlpack(__name: str, __tensor: Any) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of any object that has `__dlpack__`, without a copy.

        The memory may be on a GPU: see gpu_tensor.py. A float8 of any kind is UINT8, because Triton has none.
        """
        from pyruntime.stub.pb_utils import dlpack

        if not __name or type(__name) is not str:
            __name = _checked_name(__name)
        imported = dlpack.import_tensor(__tensor)
        if imported.gpu is not None:
            from pyruntime.stub.pb_utils.gpu_tensor import GpuTensor

            return GpuTensor(__name, imported)
        pointer, shape, datatype, owner, _, read_only = imported
        dtype = DTYPES.get(datatype, _BF16_BITS)
        tensor = Tensor.__new__(Tensor)
        tensor._name = __name
        tensor._datatype = datatype
        tensor._shape = list(shape)
        tensor._region = None
        tensor._array = dlpack.as_array(owner, pointer, tensor._shape, dtype, read_only)
        return tensor

    def _map(self) -> Any:
        if self._datatype == "BYTES":
            return deserialize_bytes_tensor(self._bytes()).reshape(self._shape)
        return self._view(DTYPES[self._datatype])

    def _view(self, dtype: Any) -> Any:
        assert self._region is not None  # a tensor has an array or a region
        buffer, offset = self._region.buffer(self._address, self._size)
        array = np.ndarray(self._shape, dtype, buffer, offset)
        # After a BYTES tensor of odd length, contents may be unaligned, which torch and SIMD code do not support.
        return array if offset % dtype.itemsize == 0 else array.copy()

    def _bytes(self) -> bytes:
        assert self._region is not None  # a tensor has an array or a region
        return self._region.read(self._address, self._size)

    def _contents(self) -> Any:
        """The contents as a numeric array: BF16 as uint16, because only its bytes matter here."""
        if self._array is None:
            self._array = self._view(_BF16_BITS) if self._datatype == "BF16" else self._map()
        return self._array

    def _encoded(self) -> Any:
        """The contents for a response: an array, or for BYTES their encoding."""
        if self._datatype != "BYTES":
            return self._contents() if self._array is None else self._array
        if self._array is None:
            return self._bytes()
        return serialize_byte_tensor(self._array) or b""
