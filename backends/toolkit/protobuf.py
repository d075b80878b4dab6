# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the wire format of protobuf without a schema, so that a model file can be read without its framework. (pure)

Only the tags and lengths are looked at. A field that is not wanted, such as weights of gigabytes, is skipped.
"""

from __future__ import annotations

from typing import Iterator, Tuple, Union

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# A varint has seven bits in each byte, and 64 at most.
_VARINT_BYTES_MAX = 10

Value = Union[int, memoryview]


def fields(message: memoryview) -> Iterator[Tuple[int, Value]]:
    """The number and the value of each field: an integer for a varint, else a view of its bytes.

    Raises ValueError if it is no message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"a field has the wire type {kind}, which does not exist")
        if not number or at + size > len(message):
            raise ValueError("a field is longer than the message that it is in")
        yield number, message[at : at + size]
        at += size


def messages(message: memoryview, number: int) -> Iterator[memoryview]:
    """The values of all fields of this number that are messages or texts. Raises ValueError."""
    for found, value in fields(message):
        if found == number and isinstance(value, memoryview):
            yield value


def text(message: memoryview, number: int) -> str:
    """The last text of this number, "" if there is none. Raises ValueError."""
    found = ""
    for value in messages(message, number):
        found = bytes(value).decode("utf-8", "replace")
    return found


def _varint(message: memoryview, at: int) -> Tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(message):
            break
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number does not end")
