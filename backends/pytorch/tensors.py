# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors: inputs in request memory, outputs and texts."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.batching import Arrays
from pyruntime.backends.toolkit.exported import datatype_of
from pyruntime.backends.toolkit.settings import TensorSpec

# TYPE_BF16 as Tensor.triton_dtype() has it.
_BF16 = 14


class TorchArrays(Arrays):
    """Tensors of torch on the device of an instance. BYTES are arrays of numpy, and lists of str for the model.

    The inputs and outputs of single requests are arrays of numpy, which are cheaper to make than tensors, and so those
    of a batch go to the device and come from it at once. Only BF16, which numpy lacks, and what lies on the GPU are in
    tensors throughout.
    """

    def __init__(self, torch: Any, device: Any, states_stay: bool = False) -> None:
        """`states_stay`: see Arrays."""
        self._torch = torch
        self._device = device
        self.states_stay = states_stay

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """See Arrays. A view of request memory, but for BYTES, or of memory of the GPU."""
        is_array = tensor.is_cpu() and tensor.triton_dtype() != _BF16
        return tensor.as_numpy() if is_array else self._torch.from_dlpack(tensor)

    def join(self, arrays: List[Any]) -> Any:
        """See Arrays. The first state of a sequence is in main memory, and may be joined with others on the GPU."""
        if any(not isinstance(array, np.ndarray) for array in arrays):
            joined = self._join_tensors(arrays)
        else:
            array = super().join(arrays)
            if array.dtype == object:
                return array
            joined = self._torch.from_numpy(array)
        return joined if self._device is None else joined.to(self._device)

    def _join_tensors(self, arrays: List[Any]) -> Any:
        """Tensors and arrays as one tensor. It is the model's own if any lies on a GPU: others read what lies there."""
        from_numpy = self._torch.from_numpy
        tensors = [from_numpy(array) if isinstance(array, np.ndarray) else array for array in arrays]
        if not any(tensor.is_cuda for tensor in tensors):
            return self._torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        if len(tensors) == 1:
            return tensors[0].clone()
        return self._torch.cat([tensor.to(self._device) for tensor in tensors])

    def finish(self, array: Any) -> Any:
        """See Arrays."""
        if isinstance(array, np.ndarray):
            return array
        on_cpu = array.detach().cpu()
        return on_cpu if on_cpu.dtype == self._torch.bfloat16 else on_cpu.numpy()

    def write(self, name: str, array: Any) -> pb_utils.Tensor:
        """See Arrays."""
        if isinstance(array, np.ndarray):
            return super().write(name, array)
        return pb_utils.Tensor.from_dlpack(
            name, (array.detach() if array.shape else array.detach().reshape(1)).contiguous()
        )


def to_model(value: Any, name: str) -> Any:
    """An input as a model takes it: BYTES as a list of str. Raises ValueError if they are not UTF-8."""
    if not isinstance(value, np.ndarray):
        return value
    try:
        return [element.decode() for element in value.ravel()]
    except UnicodeDecodeError:
        raise ValueError(
            f"input '{name}' has an element that is not valid UTF-8, which str of Python must be"
        ) from None


def from_model(value: Any, output: TensorSpec, tensor_class: Any) -> Any:
    """An output as an array: a list of str as BYTES. Raises ValueError for other values, and other datatypes."""
    if isinstance(value, tensor_class):
        found = datatype_of(value.dtype)
    elif _is_texts(value, output):
        found = "TYPE_STRING"
        value = np.array(value, object)
    else:
        kind = type(value).__name__
        raise ValueError(f"the model returned {kind} as '{output.name}', which must be a tensor or a list of str")
    if found != output.datatype:  # in Triton's words
        raise ValueError(
            f"configuration expects datatype {output.datatype} for output '{output.name}', model provides {found}"
        )
    return value


def _is_texts(value: Any, output: TensorSpec) -> bool:
    """Whether a value is a list of str. Only the configuration tells what one without elements is a list of."""
    return isinstance(value, list) and (
        all(isinstance(each, str) for each in value) if value else output.datatype == "TYPE_STRING"
    )
