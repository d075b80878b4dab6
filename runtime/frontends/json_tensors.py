# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The contents of a tensor as JSON, both ways. (pure)

Clients that do not use the binary data extension write an input's contents into the JSON document, and read an output's
from it. It is the rare way and a slow one, so nothing here is on the path of a binary request. The standard library's
`array` and `memoryview` convert as fast as numpy does at these sizes, and spare the host from importing it.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from itertools import chain
from typing import Any

import orjson

from pyruntime.runtime.frontends.json_document import invalid, json_name
from pyruntime.runtime.inference import OutputTensor
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import InferenceError

# The letter that `memoryview.cast` has for each datatype of a fixed size that has a JSON form; `array` has all but "?".
_LETTERS: dict[str, Any] = {
    "BOOL": "?",
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

# Triton has no JSON form for these.
_BINARY_ONLY = ("FP16", "BF16")

_PREFIX = struct.Struct("<I")
assert _PREFIX.size == BYTES_PREFIX_SIZE


def pack(name: str, datatype: str, shape: list[int], contents: Any) -> bytes:
    """The tensor bytes of input `name`, from the JSON value of its "data": a list, flat or nested, in row-major order.

    How the list nests is not compared with `shape`, only how many elements it has. As in Triton, a number that is too
    large for FP32 becomes infinity. Raises InferenceError (INVALID_ARG) where an element is of the wrong kind or out
    of range, the number of elements is not that of `shape`, or `datatype` has no JSON form.
    """
    if datatype in _BINARY_ONLY:
        raise invalid(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input '{name}'"
        )
    elements = flatten(name, contents)
    expected = math.prod(shape)
    if len(elements) != expected:
        raise invalid(f"unexpected number of elements for input '{name}': expected {expected}, got {len(elements)}")
    _check_kinds(name, datatype, elements)
    if datatype == "BYTES":
        return _pack_strings(elements)
    if datatype == "BOOL":
        return bytes(elements)
    try:
        return array(_LETTERS[datatype], elements).tobytes()
    except OverflowError:
        low, high = _bounds(datatype)
        culprit = next(element for element in elements if not low <= element <= high)
        raise invalid(f"input '{name}' holds {culprit}, which is out of range for {datatype}") from None


def flatten(name: str, contents: Any) -> list[Any]:
    """The elements of the JSON list `contents`, in row-major order. Raises InferenceError (INVALID_ARG)."""
    if type(contents) is not list:
        raise invalid(f"'data' of input '{name}' must be a list, got {json_name(contents)}")
    elements: list[Any] = contents
    # As deep as the document at most, whose depth has been checked.
    while set(map(type, elements)) == {list}:
        elements = list(chain.from_iterable(elements))
    return elements


def unpack(output: OutputTensor, *, unwrap: bool = False) -> Any:
    """The contents of `output` as a flat, row-major value that orjson can write; with `unwrap` one element is no list.

    Numbers that are not finite come out as NaN, Infinity and -Infinity, which are not JSON; Triton writes them so, and
    its clients read them. Raises InferenceError: INVALID_ARG where the contents have no JSON form, INTERNAL where they
    do not fill the output's shape.
    """
    datatype = output.datatype
    if datatype in _BINARY_ONLY:
        raise invalid(
            f"sending {datatype} data via JSON is not supported. "
            f"Please use the binary data format for output '{output.name}'"
        )
    if datatype == "BYTES":
        strings = _unpack_strings(output)
        return strings[0] if unwrap and len(strings) == 1 else strings
    contents = memoryview(output.data).cast("B")
    expected = math.prod(output.shape) * BY_NAME[datatype].size
    if len(contents) != expected:
        raise InferenceError(f"output '{output.name}' holds {len(contents)} bytes, expected {expected}")
    values = contents.cast(_LETTERS[datatype]).tolist()
    # One value that is not finite makes the sum so too; a sum that overflows only costs the slower way.
    finite = datatype not in ("FP32", "FP64") or math.isfinite(sum(values))
    value = values[0] if unwrap and len(values) == 1 else values
    return value if finite else orjson.Fragment(json.dumps(value, separators=(",", ":")))


def _check_kinds(name: str, datatype: str, elements: list[Any]) -> None:
    allowed: set[type]
    if datatype == "BYTES":
        allowed, wanted = {str}, "strings"
    elif datatype == "BOOL":
        allowed, wanted = {bool}, "true or false"
    elif datatype in ("FP32", "FP64"):
        allowed, wanted = {int, float}, "numbers"
    else:
        allowed, wanted = {int}, "integers"
    if set(map(type, elements)) <= allowed:
        return
    culprit = next(element for element in elements if type(element) not in allowed)
    raise invalid(f"the data of input '{name}' must hold {wanted} for {datatype}, got {json_name(culprit)}")


def _bounds(datatype: str) -> tuple[float, float]:
    if datatype.startswith("FP"):
        return -sys.float_info.max, sys.float_info.max
    bits = 8 * BY_NAME[datatype].size
    if datatype.startswith("U"):
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


def _pack_strings(elements: list[str]) -> bytes:
    encoded = [element.encode() for element in elements]
    return b"".join(chain.from_iterable((_PREFIX.pack(len(element)), element) for element in encoded))


def _unpack_strings(output: OutputTensor) -> list[str]:
    contents = bytes(output.data)
    strings: list[str] = []
    position = 0
    while position < len(contents):
        start = position + BYTES_PREFIX_SIZE
        if start > len(contents):
            raise InferenceError(f"output '{output.name}' ends within the length of element {len(strings)}")
        position = start + _PREFIX.unpack_from(contents, position)[0]
        if position > len(contents):
            raise InferenceError(f"output '{output.name}' ends within element {len(strings)}")
        try:
            strings.append(contents[start:position].decode())
        except UnicodeDecodeError:
            raise invalid(
                f"element {len(strings)} of output '{output.name}' is not UTF-8 and can not be sent via JSON. "
                f"Please use the binary data format for output '{output.name}'"
            ) from None
    expected = math.prod(output.shape)
    if len(strings) != expected:
        raise InferenceError(f"output '{output.name}' holds {len(strings)} elements, expected {expected}")
    return strings
