# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Formats the contents of a tensor as in Triton's trace files: elements separated by commas. (pure)"""

from __future__ import annotations

import json
import struct
from array import array
from typing import Literal

from pyruntime.runtime.tracing.trace import TensorNote
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE

# Follows the elements if the tensor has more of them than were kept.
CUT = "..."

# The format of `memoryview.cast` for each datatype of fixed size, except BF16, which Python does not support.
_LETTERS: dict[str, Literal["B", "H", "I", "Q", "b", "h", "i", "q", "f", "d"]] = {
    "BOOL": "B",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}


def tensor_text(tensor: TensorNote) -> str:
    """The elements of a tensor. Floating-point numbers have six significant digits, strings are quoted."""
    elements = _strings(tensor.data) if tensor.datatype == "BYTES" else _numbers(tensor)
    if len(tensor.data) < tensor.size:
        elements.append(CUT)
    return ",".join(elements)


def _numbers(tensor: TensorNote) -> list[str]:
    size = BY_NAME[tensor.datatype].size
    data = memoryview(tensor.data)[: len(tensor.data) // size * size]
    values: list[int] | list[float]
    if tensor.datatype == "BF16":  # the upper half of an FP32
        values = array("f", b"".join(b"\0\0" + data[at : at + size] for at in range(0, len(data), size))).tolist()
    elif tensor.datatype == "FP16":
        values = list(struct.unpack(f"<{len(data) // size}e", data))
    else:
        values = data.cast(_LETTERS[tensor.datatype]).tolist()
    return [f"{value:g}" for value in values] if "F" in tensor.datatype else [str(value) for value in values]


def _strings(data: bytes) -> list[str]:
    strings = []
    at = 0
    while at + BYTES_PREFIX_SIZE <= len(data):
        start = at + BYTES_PREFIX_SIZE
        at = start + int.from_bytes(data[at:start], "little")
        if at > len(data):
            break
        strings.append(json.dumps(data[start:at].decode(errors="backslashreplace"), ensure_ascii=False))
    return strings
