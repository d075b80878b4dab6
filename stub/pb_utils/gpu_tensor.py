# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A tensor on a GPU, in memory of the model's framework. Imported only if a model makes one.

Nothing is copied before the contents are needed in main memory: for a response, for another model, or by `as_numpy`.
Each time they are copied anew, because the model may change them meanwhile.

Another framework gets the memory itself. It says on which stream it reads, which comes behind the contents.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.pb_utils import dlpack
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.tensor import _BF16_BITS, _NO_BF16, DTYPES, Tensor
from pyruntime.utils.gpu.driver import GpuError

if TYPE_CHECKING:
    from pyruntime.stub.pb_utils.dlpack import ImportedTensor
    from pyruntime.stub.pb_utils.leased import Slot


class OnGpu(NamedTuple):
    """The place of contents that other processes can open: an address, and the number of the server for the GPU."""

    address: int
    device: int


class GpuContents:
    """Contents on a GPU, in place of an array where a response or a request is written.

    `place` is None if no other process can open them.
    """

    # The memory that they were written to for others to open, if they were: see leased.py.
    slot: Optional[Slot] = None

    @property
    def place(self) -> Optional[OnGpu]:
        """See the class."""
        return None

    def __init__(self, name: str, imported: ImportedTensor) -> None:
        """`name` is that of the tensor."""
        assert imported.gpu is not None  # the caller looks
        self.gpu = imported.gpu
        self._pointer = imported.pointer
        self.owner = imported.owner
        self.shape = imported.shape
        self.read_only = imported.read_only
        self.dtype: Any = DTYPES.get(imported.datatype, _BF16_BITS)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self._name = name

    @property
    def pointer(self) -> int:
        """The address on the GPU."""
        return self._pointer

    def settle(self) -> None:
        """Wait for all work of this process on the GPU: the contents are complete then."""
        try:
            gpu_of(self.gpu).settle()
        except GpuError as exc:
            raise self._failure(exc) from exc

    def ready(self, stream: Optional[int]) -> None:
        """Let later work of this stream, or of any for None, find complete contents. Raises TritonModelException."""
        if stream != dlpack.NO_STREAM:
            self.settle()  # the framework may have changed them on any stream

    def copy_to(self, target: Any) -> None:
        """Copy the contents to a writable buffer of that size. Raises TritonModelException."""
        if not self.nbytes:
            return
        self.settle()
        try:
            gpu_of(self.gpu).read(self.pointer, target)
        except GpuError as exc:
            raise self._failure(exc) from exc

    def copy_on_gpu(self, target: int) -> None:
        """Copy the contents to other memory of their GPU. Raises GpuError and TritonModelException."""
        self.settle()
        gpu_of(self.gpu).copy(target, self.pointer, self.nbytes)

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

    __slots__ = ()

    def __init__(self, name: str, imported: ImportedTensor) -> None:
        self._name = name
        self._datatype = imported.datatype
        self._shape = list(imported.shape)
        self._region = None
        # In place of an array: who looks whether the model keeps it need not know the difference.
        self._array = GpuContents(name, imported)

    @property
    def _on_gpu(self) -> GpuContents:
        assert isinstance(self._array, GpuContents)  # since it was made
        return self._array

    def is_cpu(self) -> bool:
        """See Tensor."""
        return False

    def to_dlpack(self) -> Any:
        """A PyCapsule "dltensor" over the memory on the GPU, whose contents are complete. Nothing is copied."""
        self._on_gpu.ready(None)
        return self._handed_on(None)

    def __dlpack__(
        self,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """The DLPack protocol of the array API standard: the memory on the GPU, or with `dl_device` a copy of it.

        `stream` is that of the consumer, by CUDA's numbers: None or 1 the legacy default stream, 2 that of the thread,
        -1 none. Raises BufferError for another device, and for a copy on the GPU, which is the consumer's to make.
        """
        dlpack.check_export(dl_device, self.__dlpack_device__())
        if dl_device is not None and int(dl_device[0]) == dlpack.CPU:
            if copy is False:
                raise BufferError("a tensor on a GPU cannot be exported to main memory without a copy")
            return Tensor._capsule(self, max_version, None)
        if copy:
            raise BufferError("a tensor on a GPU is exported as it is: copy what you take")
        if stream == 0:
            raise BufferError("stream 0 is ambiguous: CUDA's default streams are 1 and 2")
        self._on_gpu.ready(dlpack.LEGACY_STREAM if stream is None else stream)
        return self._handed_on(max_version)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """For frameworks without DLPack, such as Numba: the memory on the GPU, whose contents are complete."""
        from pyruntime.stub.pb_utils.cuda_array import cuda_array_interface

        memory = self._on_gpu
        if self._datatype == "BF16":
            raise AttributeError("the CUDA array interface has no BF16")
        memory.ready(None)
        return cuda_array_interface(memory.pointer, tuple(self._shape), memory.dtype, memory.read_only)

    def _handed_on(self, max_version: Optional[Tuple[int, int]]) -> Any:
        # The contents are the owner, so that whoever looks sees that they are in use.
        memory = self._on_gpu
        gpu, read_only = memory.gpu, memory.read_only
        return dlpack.to_capsule(memory, memory.pointer, self._shape, self._datatype, gpu, max_version, read_only)

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
