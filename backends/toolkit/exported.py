# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Describes inputs and outputs of exported programs by their abstract values, which torch and jax have alike. (pure)"""

from __future__ import annotations

from typing import Any

from pyruntime.backends.toolkit.settings import TensorSpec
from pyruntime.utils.errors import LoadError

# By the name of the dtype, which torch has as `torch.<name>`.
DATATYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
}


def datatype_of(dtype: Any) -> str:
    """The name in a configuration of a dtype of torch or jax; TYPE_INVALID for one that no datatype is."""
    return DATATYPES.get(str(dtype).rpartition(".")[2], "TYPE_INVALID")


def describe_value(model: str, name: str, value: Any) -> TensorSpec:
    """The tensor with the `dtype` and `shape` of a value; a size that is a symbol is -1.

    Raises LoadError for a dtype that no datatype is.
    """
    datatype = datatype_of(value.dtype)
    if datatype == "TYPE_INVALID":
        raise LoadError(f"model '{model}' has '{name}' of the type {value.dtype}, which cannot be served")
    return TensorSpec(name, datatype, tuple(size if isinstance(size, int) else -1 for size in value.shape))
