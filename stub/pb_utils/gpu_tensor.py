# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A tensor on a GPU, in memory of the model's framework. Imported only if a model makes one.

Nothing is copied before the contents are needed in main memory: for a response, for another model, or by `as_numpy`.
Each time they are copied anew, because the model may change them meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Tuple

import numpy as np

from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.pb_utils import dlpack
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.tensor import _BF16_BITS, _DTYPES, _NO_BF16, Tensor
from pyruntime.utils.gpu.driver import GpuError

if TYPE_CHECKING:
    from pyruntime.stub.pb_utils.dlpack import ImportedTensor


class GpuContents:
    """Contents on a GPU, in place of an array where a response or a request is written."""

    def __init__(self, name: str, imported: ImportedTensor) -> None:
        """`name` is that of the tensor."""
        assert imported.gpu is not None  # the caller looks
        self.gpu = imported.gpu
        self.pointer = imported.pointer
        self.owner = imported.owner
        self.shape = imported.shape
        self.dtype: Any = _DTYPES.get(imported.datatype, _BF16_BITS)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self._name = name

    def settle(self) -> None:
        """Wait for all work of this process on the GPU: the contents are complete then."""
        try:
            gpu_of(self.gpu).settle()
        except GpuError as exc:
            raise self._failure(exc) from exc

    def copy_to(self, target: Any) -> None:
        """Copy the contents to a writable buffer of that size. Raises TritonModelException."""
        if not self.nbytes:
            return
        self.settle()
        try:
            gpu_of(self.gpu).read(self.pointer, target)
        except GpuError as exc:
            raise self._failure(exc) from exc

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = np.empty(self.shape, self.dtype)
        self.copy_to(array.reshape(-1).view(np.uint8))
        return array if dtype is None else array.astype(dtype, copy=False)

    def tobytes(self) -> bytes:
        """A copy in main memory."""
        target = bytearray(self.nbytes)
        self.copy_to(target)
        return bytes(target)

    def _failure(self, cause: GpuError) -> TritonModelException:
        return TritonModelException(f"Tensor '{self._name}' cannot be read from GPU {self.gpu}: {cause.explanation}")


class GpuTensor(Tensor):
    """See the module."""

    __slots__ = ("_on_gpu",)

    def __init__(self, name: str, imported: ImportedTensor) -> None:
        self._name = name
        self._datatype = imported.datatype
        self._shape = list(imported.shape)
        self._array = None
        self._region = None
        self._on_gpu = GpuContents(name, imported)

    def is_cpu(self) -> bool:
        """See Tensor."""
        return False

    def to_dlpack(self) -> Any:
        """A PyCapsule "dltensor" over the memory on the GPU, whose contents are complete. Nothing is copied."""
        memory = self._on_gpu
        memory.settle()
        return dlpack.to_capsule(memory.owner, memory.pointer, self._shape, self._datatype, memory.gpu)

    def __dlpack_device__(self) -> Tuple[int, int]:
        """The DLPack protocol: the GPU, by its number in this process."""
        return dlpack.CUDA, self._on_gpu.gpu

    def as_numpy(self) -> Any:
        """A copy of the contents in main memory. Raises TritonModelException for BF16."""
        if self._datatype == "BF16":
            raise TritonModelException(_NO_BF16)
        return np.asarray(self._on_gpu)

    def _contents(self) -> Any:
        return np.asarray(self._on_gpu)

    def _encoded(self) -> Any:
        return self._on_gpu
