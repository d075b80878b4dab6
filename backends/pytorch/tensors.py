# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors: inputs as views of request memory, outputs, texts, and the datatypes of exported programs."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.batching import Arrays
from pyruntime.backends.toolkit.exported import describe_value
from pyruntime.backends.toolkit.settings import TensorSpec

# TYPE_BF16 and TYPE_STRING as Tensor.triton_dtype() has them.
_BF16, _STRING = 14, 13


class TorchArrays(Arrays):
    """Tensors of torch on the device of an instance. BYTES are arrays of numpy, and lists of str for the model."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """See Arrays. A tensor on the CPU is a view of request memory."""
        kind = tensor.triton_dtype()
        if kind == _STRING:
            return tensor.as_numpy()
        made = self._torch.from_dlpack(tensor) if kind == _BF16 else self._torch.from_numpy(tensor.as_numpy())
        return made if self._device is None else made.to(self._device)

    def join(self, arrays: List[Any]) -> Any:
        """See Arrays."""
        return super().join(arrays) if isinstance(arrays[0], np.ndarray) else self._torch.cat(arrays)

    def write(self, name: str, array: Any) -> pb_utils.Tensor:
        """See Arrays."""
        if isinstance(array, np.ndarray):
            return super().write(name, array)
        on_cpu = array.detach().cpu()
        if on_cpu.dtype == self._torch.bfloat16:
            return pb_utils.Tensor.from_dlpack(name, on_cpu.contiguous())
        return super().write(name, on_cpu.numpy())


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


def from_model(value: Any, name: str, tensor_class: Any) -> Any:
    """An output as an array: a list of str as BYTES. Raises ValueError for other values."""
    if isinstance(value, tensor_class):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return np.array(value, object)
    raise ValueError(f"the model returned {type(value).__name__} as '{name}', which must be a tensor or a list of str")


def describe_exported(program: Any, model: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    """The inputs and outputs of an exported program. Results without names are OUTPUT__0, OUTPUT__1 and so on."""
    signature = program.graph_signature
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    result_spec = program.call_spec.out_spec
    if result_spec.type is dict:
        names = list(map(str, result_spec.context))
    else:
        names = [f"OUTPUT__{index}" for index in range(len(signature.user_outputs))]
    inputs = [describe_value(model, name, values[name]) for name in signature.user_inputs]
    return inputs, [describe_value(model, told, values[name]) for name, told in zip(signature.user_outputs, names)]
