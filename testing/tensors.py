# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts between arrays of a test, tensors of the server, and tensors of a model. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.requests.types import InputTensor, OutputTensor
from pyruntime.stub.memory import Source
from pyruntime.stub.pb_utils import Tensor, TritonModelException
from pyruntime.utils.byte_tensors import deserialize_bytes_tensor
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.request_codec import MEMORY_CPU, TensorRef

# Values of these types have no datatype, so they get that of their input.
_UNTYPED = (list, tuple, str, bytes, bool, int, float)


class OwnMemory(Source):
    """Where a tensor's contents are that lie in no region: its address *is* its memory, which lives as long as it."""

    __slots__ = ()

    def buffer(self, at: Any, size: int) -> tuple[Any, int]:
        """See Source."""
        return at, 0

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        return bytes(at)


_MEMORY = OwnMemory()


def to_input(name: str, value: Any, spec: TensorSpec | None) -> InputTensor:
    """An input as a client sends it. `spec` is the model's, if it has such an input.

    Arrays and `pb_utils.Tensor`s keep their datatype; lists, numbers and texts get the input's. Raises TypeError for
    any other value.
    """
    try:
        tensor = value if isinstance(value, Tensor) else to_tensor(name, _as_array(value, spec))
    except (TritonModelException, TypeError, ValueError, OverflowError) as exc:
        raise TypeError(f"input '{name}' is no tensor: {exc}") from exc
    return InputTensor(name, tensor._datatype, tensor.shape(), contents_of(tensor))


def to_tensor(name: str, value: Any) -> Tensor:
    """A model's tensor of an array, or of a value that numpy converts to one. Raises like `pb_utils.Tensor`."""
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":  # from ml_dtypes; numpy itself has no such type
        return read_tensor(name, "BF16", list(array.shape), array.tobytes())
    if array.dtype.kind == "U":
        array = array.astype(np.object_)
    return Tensor(name, array)


def read_tensor(name: str, datatype: str, shape: list[int], contents: bytes | memoryview) -> Tensor:
    """The tensor that a stub would read from shared memory, with a copy of the contents."""
    return Tensor._from_region(_MEMORY, tensor_ref(name, datatype, shape, contents))


def tensor_ref(name: str, datatype: str, shape: list[int], contents: bytes | memoryview) -> TensorRef:
    """A reference to a tensor for those who read with an OwnMemory: what stands for an address is the memory."""
    return name, datatype, shape, cast("int", bytearray(contents)), len(contents), MEMORY_CPU, 0


def contents_of(tensor: Tensor) -> bytes:
    """The contents of a tensor, in C order."""
    contents = tensor._encoded()
    return contents if isinstance(contents, bytes) else contents.tobytes()


def to_output(tensor: Tensor) -> OutputTensor:
    """A tensor as in a response."""
    return OutputTensor(tensor.name(), tensor._datatype, tensor.shape(), contents_of(tensor))


def to_array(datatype: str, shape: Iterable[int], contents: bytes | memoryview) -> NDArray[Any]:
    """The contents of a tensor as an array of their own.

    BYTES are objects of `bytes`. BF16 is an array of ml_dtypes where that is installed, else of float32, which has
    every number that BF16 has.
    """
    shape = tuple(shape)
    if datatype == "BYTES":
        return deserialize_bytes_tensor(contents).reshape(shape)
    if datatype == "BF16":
        return _bf16(np.frombuffer(bytearray(contents), "<u2")).reshape(shape)
    return np.frombuffer(bytearray(contents), BY_NAME[datatype].numpy).reshape(shape)


def _as_array(value: Any, spec: TensorSpec | None) -> NDArray[Any]:
    if spec is None or not isinstance(value, _UNTYPED):
        return np.asarray(value)
    if spec.datatype == "BF16":
        raise TypeError("BF16 is given as an array of ml_dtypes.bfloat16, or as a pb_utils.Tensor")
    return np.asarray(value, BY_NAME[spec.datatype].numpy)


def _bf16(bits: NDArray[Any]) -> NDArray[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return (bits.astype("<u4") << 16).view("<f4")
    return bits.view(ml_dtypes.bfloat16)
