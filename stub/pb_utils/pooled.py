# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Contents on a GPU that another model wrote to memory which processes share: see stub/gpu_chunks.py.

They stay where they are until no array, capsule or tensor of the model refers to them. Others may read them, too, so
nobody may write to them. A copy in main memory is made once, and the model may write to that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from pyruntime.stub.gpus import gpu_of, opened, unsettled
from pyruntime.stub.pb_utils.dlpack import NO_STREAM, ImportedTensor, as_array
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.gpu_tensor import GpuContents, GpuTensor, OnGpu
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.gpu.driver import GpuError

if TYPE_CHECKING:
    from pyruntime.stub.gpu_chunks import Chunk
    from pyruntime.stub.gpu_memory import GpuMemory
    from pyruntime.utils.request_codec import TensorRef


class PooledContents(GpuContents):
    """See the module."""

    def __init__(self, memory: GpuMemory, ref: TensorRef, hold: Any) -> None:
        """`hold` is kept alive. Raises TritonModelException if this process does not see the GPU."""
        name, datatype, shape, at, _, _, self.gpu = ref
        assert isinstance(at, int)  # the contents of a message are in main memory
        self._name = name
        try:
            self.gpu = memory.chunks.gpu_at(at)
        except GpuError as exc:
            raise self._failure(exc) from exc
        super().__init__(name, ImportedTensor(0, tuple(shape), datatype, hold, self.gpu, True))
        self._place = OnGpu(at, ref[6])
        self._memory = memory
        # Opened when the process first uses the GPU for it.
        self._opened: Optional[Tuple[Chunk, int]] = None
        # They are written once. An event cannot be waited for when the process that wrote them has ended.
        self._is_ordered = False
        self._in_main_memory: Optional[Any] = None

    @property
    def pointer(self) -> int:
        """See GpuContents. Raises TritonModelException."""
        chunk, offset = self._open()
        return chunk.at(offset)

    def _open(self) -> Tuple[Chunk, int]:
        if self._opened is None:
            try:
                self._opened = self._memory.chunks.find(self._place.address)
            except GpuError as exc:
                raise self._failure(exc) from exc
        return self._opened

    @property
    def _chunk(self) -> Chunk:
        return self._open()[0]

    @property
    def place(self) -> OnGpu:
        """See GpuContents. Raises TritonModelException if the memory is gone."""
        if self._opened is not None:
            self._opened[0].at(0)
        else:
            try:
                self._memory.chunks.gpu_at(self._place.address)
            except GpuError as exc:
                raise self._failure(exc) from exc
        return self._place

    def settle(self) -> None:
        """See GpuContents. A framework may read them from now on, until they are let go of."""
        self._let_read(self._complete)

    def ready(self, stream: Optional[int]) -> None:
        """See GpuContents. Work of the stream comes behind the event, and this process does not wait for it."""
        if stream is None:
            self.settle()
        elif stream != NO_STREAM:
            self._let_read(self._order)
            self._let_read(partial(gpu_of(self.gpu).order, stream))

    def _let_read(self, order: Callable[[], None]) -> None:
        self._chunk.at(0)
        unsettled.add(self.gpu)
        try:
            order()
        except GpuError as exc:
            raise self._failure(exc) from exc

    def _order(self) -> None:
        if not self._is_ordered:
            self._chunk.order()
            self._is_ordered = True

    def _complete(self) -> None:
        if self._is_ordered:
            gpu_of(self.gpu).settle()
        else:
            self._chunk.complete()
            self._is_ordered = True

    def copy_to(self, target: Any) -> None:
        """See GpuContents."""
        try:
            with self._chunk.lock:
                self._order()
                gpu_of(self.gpu).read(self.pointer, target)
        except GpuError as exc:
            raise self._failure(exc) from exc

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        if self._in_main_memory is None:
            self._in_main_memory = self._fetched() if self.gpu not in opened and self.nbytes else super().__array__()
        array = self._in_main_memory
        return array if dtype is None else array.astype(dtype, copy=False)

    def _fetched(self) -> Any:
        """A copy by the broker: this process has not used the GPU, and need not, which would cost it a context."""
        try:
            loan = self._memory.fetch(self._place.address, self.nbytes)
        except OutOfMemoryError as exc:
            raise TritonModelException(f"no room for {self.nbytes} bytes of tensor '{self._name}': {exc}") from exc
        return as_array(loan, loan.pointer, self.shape, self.dtype)

    def copy_on_gpu(self, target: int) -> None:
        """See GpuContents."""
        with self._chunk.lock:
            self._order()
            unsettled.add(self.gpu)
            gpu_of(self.gpu).copy(target, self.pointer, self.nbytes)


def pooled_tensor(memory: GpuMemory, ref: TensorRef, hold: Any) -> Tensor:
    """The tensor that a reference to a GPU stands for. Raises TritonModelException."""
    tensor = GpuTensor.__new__(GpuTensor)
    tensor._name, tensor._datatype, shape = ref[:3]
    tensor._shape = list(shape)
    tensor._region = None
    tensor._array = PooledContents(memory, ref, hold)
    return tensor
