# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Triton's fourteen datatypes, with all their names. (pure)

A datatype has a protocol name (`FP32`, on the wire), a config name (`TYPE_FP32`, in config.pbtxt; BYTES is
`TYPE_STRING` there), the number of the `DataType` enum, a size, and numpy's name. This module does not import numpy:
the host rarely needs it, and its import takes longer than the rest of the host's start.
"""

from __future__ import annotations

from typing import NamedTuple


class Datatype(NamedTuple):
    """One datatype. `size` is bytes per element, 0 for BYTES; `numpy` is a dtype string, "" if numpy has none."""

    name: str
    config_name: str
    number: int
    size: int
    numpy: str


DATATYPES = (
    Datatype("BOOL", "TYPE_BOOL", 1, 1, "?"),
    Datatype("UINT8", "TYPE_UINT8", 2, 1, "u1"),
    Datatype("UINT16", "TYPE_UINT16", 3, 2, "<u2"),
    Datatype("UINT32", "TYPE_UINT32", 4, 4, "<u4"),
    Datatype("UINT64", "TYPE_UINT64", 5, 8, "<u8"),
    Datatype("INT8", "TYPE_INT8", 6, 1, "i1"),
    Datatype("INT16", "TYPE_INT16", 7, 2, "<i2"),
    Datatype("INT32", "TYPE_INT32", 8, 4, "<i4"),
    Datatype("INT64", "TYPE_INT64", 9, 8, "<i8"),
    Datatype("FP16", "TYPE_FP16", 10, 2, "<f2"),
    Datatype("FP32", "TYPE_FP32", 11, 4, "<f4"),
    Datatype("FP64", "TYPE_FP64", 12, 8, "<f8"),
    Datatype("BYTES", "TYPE_STRING", 13, 0, "O"),
    Datatype("BF16", "TYPE_BF16", 14, 2, ""),
)

BY_NAME = {datatype.name: datatype for datatype in DATATYPES}
BY_CONFIG_NAME = {datatype.config_name: datatype for datatype in DATATYPES}
BY_NUMBER = {datatype.number: datatype for datatype in DATATYPES}

# A BYTES element is its length, as 4 bytes in little-endian order, followed by its bytes.
BYTES_PREFIX_SIZE = 4
