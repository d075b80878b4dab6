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
import re
import struct
import sys
from array import array
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import orjson

from pyruntime.runtime.config.inputs import SIZE_MAX
from pyruntime.runtime.frontends.common.json_document import invalid, json_name, parse_elements, parse_string
from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code, InferenceError

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
NO_JSON = ("FP16", "BF16")

# Elements that are put into words at a time: a few milliseconds' work.
SLICE_ELEMENTS = 16 << 10

_PREFIX = struct.Struct("<I")
assert _PREFIX.size == BYTES_PREFIX_SIZE

# Elements of a tensor, flat. Their Python type depends on the datatype, which is known at run time only.
Elements: TypeAlias = list[Any]


# The bytes of a long string that are decoded at a time.
STRING_BYTES = 64 << 10
# Whole characters of a string: none of them is a half of a surrogate pair.
_HEX = rb"[0-9a-fA-F]"
_PAIR = rb"\\u[dD][89abAB]%b{2}\\u%b{4}" % (_HEX, _HEX)
_WHOLE = re.compile(rb'(?:[^"\\]++|\\u(?![dD][89abAB])%b{4}|%b|\\[^u])*+' % (_HEX, _PAIR), re.DOTALL)


class PackedElements(NamedTuple):
    """The tensor bytes of a list, how many elements it has, and their offset in the request region, or -1."""

    contents: memoryview
    length: int
    offset: int


def pack(name: str, datatype: str, shape: list[int], contents: Any) -> bytes | memoryview:
    """The tensor bytes of input `name`, from the JSON value of its "data": a list, flat or nested, in row-major order.

    Or that value is PackedElements already.

    How the list nests is not compared with `shape`, only how many elements it has. As in Triton, a number that is too
    large for FP32 becomes infinity. Raises InferenceError (INVALID_ARG) where an element is of the wrong kind or out
    of range, the number of elements is not that of `shape`, or `datatype` has no JSON form.
    """
    if datatype in NO_JSON:
        raise invalid(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input '{name}'"
        )
    packed = type(contents) is PackedElements
    elements = [] if packed else flatten(name, contents)
    expected, count = math.prod(shape), contents.length if packed else len(elements)
    if count != expected:
        raise _wrong_number(name, datatype, shape, count)
    packed_contents: bytes | memoryview = contents.contents if packed else _pack_elements(name, datatype, elements)
    return packed_contents


def _wrong_number(name: str, datatype: str, shape: list[int], count: int) -> InferenceError:
    expected, size = math.prod(shape), BY_NAME[datatype].size
    if expected > SIZE_MAX:
        return invalid(
            f"invalid shape for input '{name}': shape [{','.join(map(str, shape))}] causes total element count to "
            f"exceed maximum size of {SIZE_MAX}"
        )
    if expected * size > SIZE_MAX:
        return invalid(
            f"byte size overflow for input '{name}': element count ({expected}) * data type size ({size}) exceeds "
            f"maximum allowed size ({SIZE_MAX})"
        )
    return invalid(f"unexpected number of elements for input '{name}': expected {expected}, got {count}")


def pack_slice(name: str, datatype: str, text: bytes | bytearray, at: int, memory: memoryview) -> tuple[int, int]:
    """Write the tensor bytes of some elements of input `name` to the beginning of `memory`.

    `text` is the inside of a list, and begins `at` bytes into a document. Returns the number of elements and of their
    bytes. They are checked but not written if there is too little memory. Raises InferenceError (INVALID_ARG) if they
    are not JSON, of the wrong kind, or out of range.
    """
    elements = flatten(name, parse_elements(text, at))
    contents = _pack_elements(name, datatype, elements)
    if len(contents) <= len(memory):
        memory[: len(contents)] = contents
    return len(elements), len(contents)


def pack_long_string(
    name: str, datatype: str, text: bytes | bytearray, start: int, end: int, memory: memoryview
) -> int:
    """As pack_slice for one element: a string whose contents lie between `start` and `end` in the document `text`.

    It is decoded piece by piece. `memory` has as many bytes as the contents and the prefix. Returns its bytes.
    """
    _check_kinds(name, datatype, [""])
    position = BYTES_PREFIX_SIZE
    for piece in string_pieces(text, start, end):
        encoded = piece.encode()
        memory[position : position + len(encoded)] = encoded
        position += len(encoded)
    _PREFIX.pack_into(memory, 0, position - BYTES_PREFIX_SIZE)
    return position


def string_pieces(text: bytes | bytearray, start: int, end: int) -> Iterator[str]:
    """The string whose contents lie between `start` and `end` in the document `text`, decoded piece by piece.

    Raises InferenceError (INVALID_ARG).
    """
    at = start
    while at < end:
        stop = _piece_end(text, at, end)
        yield parse_string(text[at:stop], at)
        at = stop


def pack_string(name: str, datatype: str, element: object, memory: memoryview) -> int:
    """As pack_slice for one element of BYTES. Returns its bytes."""
    contents = _pack_elements(name, datatype, [element])
    memory[: len(contents)] = contents
    return len(contents)


def _piece_end(text: bytes | bytearray, at: int, end: int) -> int:
    """The end of a piece of a string that begins at `at`; `end` is that of the string."""
    if end - at <= STRING_BYTES:
        return end
    found = _WHOLE.match(text, at, at + STRING_BYTES)
    assert found is not None  # it matches the empty string as well
    stop = found.end()
    while stop > at and text[stop] & 0xC0 == 0x80:  # within a character of UTF-8
        stop -= 1
    return stop if stop > at else min(at + STRING_BYTES, end)  # the parser finds what is wrong


def _pack_elements(name: str, datatype: str, elements: Elements) -> bytes:
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


def flatten(name: str, contents: object) -> Elements:
    """The elements of the JSON list `contents`, in row-major order. Raises InferenceError (INVALID_ARG)."""
    if type(contents) is not list:
        raise invalid(f"'data' of input '{name}' must be a list, got {json_name(contents)}")
    elements: Elements = contents
    # As deep as the document at most, whose depth has been checked.
    while list in (types := set(map(type, elements))):
        if len(types) > 1:  # as odd as that is, Triton takes it
            elements = [each if type(each) is list else [each] for each in elements]
        elements = list(chain.from_iterable(elements))
    return elements


def unpack(output: OutputTensor, *, unwrap: bool = False) -> object:
    """The contents of `output` as a flat, row-major value that orjson can write; with `unwrap` one element is no list.

    Numbers that are not finite come out as NaN, Infinity and -Infinity, which are not JSON; Triton writes them so, and
    its clients read them. Raises InferenceError: INVALID_ARG where the contents have no JSON form, INTERNAL where they
    do not fill the output's shape.
    """
    check_form(output)
    datatype = output.datatype
    slices = _slices_of_strings(output) if datatype == "BYTES" else _slices_of_numbers(numbers(output))
    first = next(slices, [])
    second = next(slices, None)
    if second is None:
        return _writable(datatype, first[0] if unwrap and len(first) == 1 else first)
    return orjson.Fragment(b"[%b]" % b",".join(number_words(datatype, each) for each in chain((first, second), slices)))


def _writable(datatype: str, value: Any) -> object:
    """`value`, an element or several, for orjson, which writes no numbers that are not finite."""
    if datatype not in ("FP32", "FP64"):
        return value
    # One value that is not finite makes the sum so too; a sum that overflows only costs the slower way.
    finite = math.isfinite(sum(value) if type(value) is list else value)
    return value if finite else orjson.Fragment(json.dumps(value, separators=(",", ":")))


def check_form(output: OutputTensor) -> None:
    """Raises InferenceError (INVALID_ARG) for an output whose datatype has no JSON form."""
    if output.datatype in NO_JSON:
        raise invalid(
            f"sending {output.datatype} data via JSON is not supported. "
            f"Please use the binary data format for output '{output.name}'"
        )


def number_words(datatype: str, values: Elements) -> bytes:
    """Elements as they stand in a list, which is written without its brackets."""
    return orjson.dumps(_writable(datatype, values))[1:-1]


def _check_kinds(name: str, datatype: str, elements: Elements) -> None:
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
    encoded = list(map(str.encode, elements))
    parts = [b""] * (2 * len(encoded))
    parts[::2] = map(_PREFIX.pack, map(len, encoded))
    parts[1::2] = encoded
    return b"".join(parts)


def numbers(output: OutputTensor) -> memoryview:
    """The elements of an output of numbers. Raises InferenceError (INTERNAL) if they do not fill its shape."""
    contents = memoryview(output.data).cast("B")
    size = BY_NAME[output.datatype].size
    expected = math.prod(output.shape) * size
    if len(contents) != expected:
        raise InferenceError(f"output '{output.name}' holds {len(contents)} bytes, expected {expected}")
    return contents.cast(_LETTERS[output.datatype])


def _slices_of_numbers(values: memoryview) -> Iterator[Elements]:
    if len(values) <= SLICE_ELEMENTS:  # as most outputs, in particular those of streams: no generator for them
        return iter((values.tolist(),))
    starts = range(0, len(values), SLICE_ELEMENTS)
    return (values[start : start + SLICE_ELEMENTS].tolist() for start in starts)


def _slices_of_strings(output: OutputTensor) -> Iterator[Elements]:
    contents = bytes(output.data)
    strings: list[str] = []
    position = count = 0
    while position < len(contents):
        start = position + BYTES_PREFIX_SIZE
        position = start + string_length(output.name, contents, position, count)
        try:
            strings.append(contents[start:position].decode())
        except UnicodeDecodeError:
            raise StringError(output.name, count) from None
        count += 1
        if len(strings) == SLICE_ELEMENTS:
            yield strings
            strings = []
    if count != math.prod(output.shape):
        raise wrong_count(output, count)
    if strings:
        yield strings


class StringError(InferenceError):
    """Element number `count` of output `name` is no text."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(
            f"element {count} of output '{name}' is not UTF-8 and can not be sent via JSON. "
            f"Please use the binary data format for output '{name}'",
            Code.INVALID_ARG,
        )


def string_length(name: str, contents: bytes | memoryview, position: int, count: int) -> int:
    """The length of element number `count` of output `name`, whose prefix is at `position`.

    Raises InferenceError (INTERNAL) if the contents end before it does.
    """
    start = position + BYTES_PREFIX_SIZE
    if start > len(contents):
        raise InferenceError(f"output '{name}' ends within the length of element {count}")
    length: int = _PREFIX.unpack_from(contents, position)[0]
    if start + length > len(contents):
        raise InferenceError(f"output '{name}' ends within element {count}")
    return length


def wrong_count(output: OutputTensor, count: int) -> InferenceError:
    """The error of an output of strings that has not as many elements as its shape."""
    return InferenceError(f"output '{output.name}' holds {count} elements, expected {math.prod(output.shape)}")
