# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The plain functions and constants of `triton_python_backend_utils`. (pure)

They accept any object with the methods that they call, and do not import the classes of requests and tensors.

Functions that return None for an unknown name have a return type without None: nearly every model reads required inputs
and its own outputs, and would otherwise need a check for None after each call to satisfy its type checker.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Dict, Optional, Protocol, Sequence, Type, TypeVar, Union, cast

import numpy as np

from pyruntime.utils.dtypes import BY_NAME, DATATYPES

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class MemoryType(IntEnum):
    """The place of a tensor's memory."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

# All but BF16, which numpy lacks. The values are scalar types (`np.float32`), as Triton's are.
TRITON_STRING_TO_NUMPY: Dict[str, Type[np.generic]] = {
    datatype.config_name: np.dtype(datatype.numpy).type for datatype in DATATYPES if datatype.numpy
}
_NUMPY_BY_NUMBER = {datatype.number: np.dtype(datatype.numpy).type for datatype in DATATYPES if datatype.numpy}
# By dtype string, because numpy has two types of the same width for some: `longlong` is an INT64 too.
_NUMBER_BY_DTYPE_STRING = {np.dtype(datatype.numpy).str: datatype.number for datatype in DATATYPES if datatype.numpy}


class _Named(Protocol):
    def name(self) -> str: ...


_Tensor = TypeVar("_Tensor", bound=_Named)
_Tensor_co = TypeVar("_Tensor_co", bound=_Named, covariant=True)


class _HasInputs(Protocol[_Tensor_co]):
    def inputs(self) -> Sequence[_Tensor_co]: ...


class _HasOutputTensors(Protocol[_Tensor_co]):
    def output_tensors(self) -> Sequence[_Tensor_co]: ...


def get_input_tensor_by_name(inference_request: _HasInputs[_Tensor], name: str) -> Union[_Tensor, Any]:
    """The request's input of that name; None if the client did not send it."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: _HasOutputTensors[_Tensor], name: str) -> Union[_Tensor, Any]:
    """The response's output of that name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Union[Dict[str, Any], Any]:
    """The model's configuration of the input of that name, or None."""
    return _config_by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Union[Dict[str, Any], Any]:
    """The model's configuration of the output of that name, or None."""
    return _config_by_name(model_config.get("output", ()), name)


def _config_by_name(tensors: Sequence[Dict[str, Any]], name: str) -> Optional[Dict[str, Any]]:
    return next((tensor for tensor in tensors if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Whether the model may answer a request with any number of responses."""
    return cast(bool, model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> Optional[Type[np.generic]]:
    """numpy's scalar type for a number of Triton's DataType enum; None for BF16 and for unknown numbers."""
    return _NUMPY_BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int:
    """The number in Triton's DataType enum of a numpy scalar type or dtype. Raises KeyError if there is none."""
    dtype = np.dtype(data_type)
    if dtype.kind == "S":
        return BY_NAME["BYTES"].number
    return _NUMBER_BY_DTYPE_STRING[dtype.str]


def triton_string_to_numpy(triton_type_string: str) -> Type[np.generic]:
    """numpy's scalar type for a config name such as `TYPE_FP32`. Raises KeyError for TYPE_BF16 and unknown names."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]
