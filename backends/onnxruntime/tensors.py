# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's names of datatypes, and its messages."""

from __future__ import annotations

import re
from typing import Any, Sequence

from pyruntime.backends.toolkit.settings import TensorSpec
from pyruntime.utils.errors import LoadError

# BF16 is missing, because the Python interface has no arrays of it.
DATATYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
_MESSAGE = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)


def describe(model: str, arguments: Sequence[Any]) -> list[TensorSpec]:
    """The inputs or outputs of a session, with all dimensions. Raises LoadError for what is no tensor of Triton."""
    described = []
    for argument in arguments:
        if argument.type not in DATATYPES:
            raise LoadError(
                f"model '{model}' has '{argument.name}' of the type {argument.type}, which cannot be served: inputs "
                f"and outputs must have one of the types {', '.join(DATATYPES)}"
            )
        # A dimension with a name, or none, may have any size.
        dims = tuple(size if isinstance(size, int) else -1 for size in argument.shape)
        described.append(TensorSpec(argument.name, DATATYPES[argument.type], dims))
    return described


def describe_error(exc: Exception) -> str:
    """An error of ONNX Runtime as Triton's backend words it."""
    found = _MESSAGE.match(str(exc))
    return f"onnx runtime error {found.group(1)}: {found.group(2).strip()}" if found else str(exc)
