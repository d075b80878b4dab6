# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts tensors between a stub and native code. Both use the encoding of the wire. (pure)"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyruntime.runtime.native.parameters import Parameter, as_json, read_parameters
from pyruntime.stub.memory import Source
from pyruntime.stub.pb_utils.leased import Slot, leased_tensor
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, TensorRef

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton


# Name, datatype, shape and contents of an output, or the memory on a GPU that it lies in.
NativeOutput: TypeAlias = "tuple[str, str, Sequence[int], _triton.Buffer | Slot]"


class Inputs:
    """Finds the addresses of inputs for native code: almost all lie in the one region that the host writes to."""

    def __init__(self) -> None:
        self._region: mmap.mmap | None = None
        self._address = 0

    def encode(self, request: InferenceRequest, memory: list[object]) -> list[object]:
        """A request in the form that the extension reads, with addresses of this process.

        `memory` gets the objects that must live as long as the addresses are used. Raises LocalError if a client's
        memory is gone, and TritonModelException if memory on a GPU is.
        """
        tensors: list[TensorRef] = []
        for ref in request._tensors:
            name, datatype, shape, at, size, memory_kind, device_id = ref
            if memory_kind == MEMORY_GPU:
                tensors.append(_on_gpu(request._region, ref, memory))
                continue
            address = self._find(request._region, at, size, memory) if size else 0
            tensors.append((name, datatype, shape, address, size, memory_kind, device_id))
        encoded = request._encode(tensors)
        read_parameters(encoded)
        return encoded

    def _find(self, region: Source, at: int | bytes, size: int, memory: list[object]) -> int:
        buffer, offset = region.buffer(at, size)
        if buffer is self._region:
            return self._address + offset
        address = address_of(buffer)
        if type(buffer) is mmap.mmap:  # the region that stays mapped
            self._region, self._address = buffer, address
        else:
            memory.append(buffer)
        return address + offset


def _on_gpu(region: Source, ref: TensorRef, memory: list[object]) -> TensorRef:
    """A tensor that lies on a GPU, by its pointer and the number of the GPU in this process. It is complete."""
    name, datatype, shape, _, size, memory_kind, _ = ref
    contents: Any = region.on_gpu(ref, None)._array
    contents.settle()
    memory.append(contents)
    return name, datatype, shape, contents.pointer, size, memory_kind, contents.gpu


class NativeMemory(Source):
    """Memory with one tensor: any object with the buffer protocol."""

    __slots__ = ("contents",)

    def __init__(self, contents: Any) -> None:
        self.contents = contents

    def buffer(self, at: Any, size: int) -> tuple[Any, int]:
        """See Source."""
        return self.contents, at

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        return bytes(self.contents)


class NativeTensor(Tensor):
    """A tensor whose contents are sent as native code has encoded them."""

    __slots__ = ()

    def _encoded(self) -> Any:
        region = self._region
        assert isinstance(region, NativeMemory)  # only `native_tensor` creates these
        return np.frombuffer(region.contents, np.uint8) if self._size else b""


def native_tensor(name: str, datatype: str, shape: Sequence[int], contents: Any) -> Tensor:
    """A tensor from native code."""
    ref = (name, datatype, list(shape), 0, len(contents), MEMORY_CPU, 0)
    return NativeTensor._from_region(NativeMemory(contents), ref)


class NativeResponse(InferenceResponse):
    """A response from a backend, which updates states apart from its outputs, also those of the same name."""

    __slots__ = ("_updated",)

    _updated: Sequence[Tensor]

    def update_states(self, states: Sequence[Tensor]) -> None:
        """Have the response bring these states, as outputs unless it has outputs of their names."""
        names = {output.name() for output in self._output_tensors}
        self._output_tensors += [state for state in states if state.name() not in names]
        self._updated = states

    def _states(self, names: Set[str]) -> list[Tensor]:
        """See InferenceResponse."""
        return [*self._updated]


def response_of(outputs: Sequence[NativeOutput], parameters: Mapping[str, Parameter] | None) -> NativeResponse:
    """A response from a backend."""
    response = NativeResponse._from_wire([_output_tensor(*output) for output in outputs], as_json(parameters or {}))
    response._updated = ()
    return response


def _output_tensor(name: str, datatype: str, shape: Sequence[int], contents: _triton.Buffer | Slot) -> Tensor:
    if isinstance(contents, Slot):
        return leased_tensor(name, datatype, shape, contents)
    return native_tensor(name, datatype, shape, contents)


def address_of(buffer: Any) -> int:
    """The address of a buffer that is not empty."""
    address: int = np.frombuffer(buffer, np.uint8, 1).__array_interface__["data"][0]
    return address
