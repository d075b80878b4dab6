# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the custom calls of an exported JAX function. Its other operations are in a form that only XLA reads.

The file is a flatbuffer: a table begins with the distance back to its list of fields, which has the place of each in
the table, after two sizes. The numbers of the fields are those of jax's serialization.fbs.
"""

from __future__ import annotations

import mmap
import struct
from typing import Iterator, Tuple

from pyruntime.backends.toolkit.contents import Contents

_EXPORTED_CHECKS = 12
_CHECK_TARGET = 1


def read_contents(path: str) -> Contents:
    """The contents of a file. Raises OSError and ValueError."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        try:
            return Contents(custom=list(dict.fromkeys(_targets(data))))
        except (struct.error, IndexError) as exc:
            raise ValueError(f"the file is no flatbuffer: {exc}") from exc


def _targets(data: mmap.mmap) -> Iterator[str]:
    """The targets of the custom calls for which the export has no check: those of operations that jax does not have."""
    for check in _tables(data, _number("I", data, 0), _EXPORTED_CHECKS):
        at = _field(data, check, _CHECK_TARGET)
        if at:
            start, size = _sequence(data, at)
            yield data[start : start + size].decode("utf-8", "replace")


def _tables(data: mmap.mmap, table: int, number: int) -> Iterator[int]:
    """The tables in a field."""
    at = _field(data, table, number)
    if at:
        start, size = _sequence(data, at)
        for entry in range(start, start + 4 * size, 4):
            yield entry + _number("I", data, entry)


def _field(data: mmap.mmap, table: int, number: int) -> int:
    """Where the field of a table is, 0 if it is absent."""
    fields = table - _number("i", data, table)
    entry = 4 + 2 * number
    offset = _number("H", data, fields + entry) if entry < _number("H", data, fields) else 0
    return table + offset if offset else 0


def _sequence(data: mmap.mmap, at: int) -> Tuple[int, int]:
    """Where the elements of a vector or a text begin, and how many they are."""
    start = at + _number("I", data, at)
    return start + 4, _number("I", data, start)


def _number(kind: str, data: mmap.mmap, at: int) -> int:
    if at < 0:
        raise IndexError(at)
    value: int = struct.unpack_from(f"<{kind}", data, at)[0]
    return value
