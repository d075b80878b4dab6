# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One request as a custom library sees it, and the outputs that the library has written.

Inputs are not copied: the library reads the request's memory, but for an input on a GPU that it wants in main memory.
The memory that it gets for an output becomes part of the response.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int64, c_size_t
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.custom.abi import CustomPayload
from pyruntime.stub.client_memory import GpuOutputs
from pyruntime.stub.memory import Source
from pyruntime.stub.pb_utils.leased import Slot, leased_tensor, slot_on
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.request_codec import MEMORY_CPU

_LENGTH = struct.Struct("<I")


class Payload:
    """One request during its execution. If `failure` is set, the request fails even if the library reports success."""

    def __init__(self, request: pb_utils.InferenceRequest, datatypes: Mapping[str, str], is_batching: bool) -> None:
        """`datatypes` are those of all outputs of the model."""
        tensors = request.inputs()
        shapes = [tensor.shape() for tensor in tensors]
        requested = request.requested_output_names()
        self.batch_size = max(1, shapes[0][0]) if is_batching and shapes else 1
        self.failure = ""
        self._inputs = {tensor.name().encode(): tensor for tensor in tensors}
        self._shapes = [shape[1:] for shape in shapes] if is_batching else shapes
        self._outputs = {name.encode(): name for name in datatypes if name in requested}
        self._datatypes = datatypes
        self._wanted = request._outputs
        # Objects into which the library has pointers.
        self._memory: list[Any] = []
        self._taken: set[bytes] = set()
        self._written: dict[str, pb_utils.Tensor] = {}

    def describe(self, payload: CustomPayload, context: int) -> None:
        """Fill in the payload of the request; the library calls the callbacks with `context`."""
        names, shapes, outputs = self._inputs, self._shapes, self._outputs
        payload.batch_size = self.batch_size
        payload.input_cnt = len(names)
        payload.input_names = (c_char_p * len(names))(*names)
        payload.input_shape_dim_cnts = (c_size_t * len(shapes))(*map(len, shapes))
        dims: list[Any] = [(c_int64 * len(shape))(*shape) for shape in shapes]
        payload.input_shape_dims = (POINTER(c_int64) * len(shapes))(*dims)
        payload.output_cnt = len(outputs)
        payload.required_output_names = (c_char_p * len(outputs))(*outputs)
        payload.input_context = payload.output_context = context

    def next_input(self, name: bytes, gpu: int | None) -> tuple[int | None, int, int | None]:
        """Address, size and GPU of an input's next block; None, 0 and None after the last one.

        `gpu` is the number of the GPU whose memory is preferred; None, here as well as in the result, stands for main
        memory. KeyError for an unknown input. Raises TritonModelException if it cannot be read from its GPU.
        """
        tensor = self._inputs[name]
        if name in self._taken:
            return None, 0, None
        self._taken.add(name)
        if gpu is not None and not tensor.is_cpu():
            contents: Any = tensor._array
            contents.settle()
            self._memory.append(contents)
            return contents.pointer, contents.nbytes, contents.gpu
        block = _contents(tensor)
        self._memory.append(block)
        return (_address(block), block.nbytes, None) if block.nbytes else (None, 0, None)

    def output(self, name: bytes, shape: list[int], size: int, gpu: int | None) -> tuple[int | None, int | None]:
        """The address of `size` bytes for an output, and its GPU; None if the client did not request it.

        `gpu` is as for inputs. The request fails if the size does not match the shape. The last call for an output
        counts. Raises MemoryError and ValueError.
        """
        output = self._outputs.get(name)
        if output is None:
            return None, None
        datatype = self._datatypes[output]
        expected = math.prod(shape) * BY_NAME[datatype].size
        if min(shape, default=0) < 0 or (expected != size and BY_NAME[datatype].size):
            self.failure = f"output '{output}' has {size} bytes, which are no {datatype} of the shape {shape}"
            raise ValueError(self.failure)
        slot = self._slot(output, gpu, size)
        if slot is not None:
            self._memory.append(slot)
            self._written[output] = leased_tensor(output, datatype, shape, slot)
            return slot.pointer, slot.gpu
        memory = np.empty(size, np.uint8)
        self._memory.append(memory)
        ref = (output, datatype, shape, 0, size, MEMORY_CPU, 0)
        self._written[output] = pb_utils.Tensor._from_region(_Written(memory), ref)
        return _address(memory), None

    def _slot(self, output: str, gpu: int | None, size: int) -> Slot | None:
        """Memory on a GPU for an output that may be there; None for main memory."""
        wanted = self._wanted
        if gpu is None or not size or type(wanted) is not GpuOutputs or output not in wanted.staying:
            return None
        return slot_on(wanted.regions.gpu, gpu, size) if BY_NAME[self._datatypes[output]].size else None

    def response(self) -> pb_utils.InferenceResponse:
        """The response with the outputs that the library has written."""
        for tensor in self._written.values():
            if tensor._datatype == "BYTES" and _count_elements(tensor._encoded()) != math.prod(tensor._shape):
                self.failure = f"output '{tensor.name()}' is no BYTES of the shape {tensor._shape}"
        return failed(self.failure) if self.failure else pb_utils.InferenceResponse(list(self._written.values()))


class _Written(Source):
    """The memory that a library has written an output to."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def buffer(self, at: Any, size: int) -> tuple[Any, int]:
        """See Source."""
        return self._memory, at

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        contents: bytes = self._memory.tobytes()
        return contents


def failed(message: str) -> pb_utils.InferenceResponse:
    """The response to a request that failed; always INTERNAL."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))


def _contents(tensor: pb_utils.Tensor) -> Any:
    """An array of a tensor's contents, not copied; of bytes for BYTES."""
    if tensor._region is not None and tensor._datatype == "BYTES":
        return np.ndarray((tensor._size,), np.uint8, *tensor._region.buffer(tensor._address, tensor._size))
    contents = tensor._encoded()
    return np.frombuffer(contents, np.uint8) if isinstance(contents, bytes) else np.ascontiguousarray(contents)


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _count_elements(encoded: bytes) -> int:
    """The number of elements of a BYTES tensor; -1 if it is malformed."""
    size, end, count = len(encoded), 0, 0
    while end + BYTES_PREFIX_SIZE <= size:
        end += BYTES_PREFIX_SIZE + _LENGTH.unpack_from(encoded, end)[0]
        count += 1
    return count if end == size else -1
