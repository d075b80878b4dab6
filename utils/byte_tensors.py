# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts BYTES tensors between the protocol's encoding and numpy. (pure)

tensor := element*        element := length:u32le byte*length

The names and the unusual return types are those of Triton's functions, which models and clients use. The encoding has
no shape: it is in C order, and the caller reshapes a decoded tensor.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from pyruntime.utils.dtypes import BYTES_PREFIX_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PREFIX = struct.Struct("<I")
assert _PREFIX.size == BYTES_PREFIX_SIZE


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> bytes | tuple[()] | None:
    """Encode an array of objects or of fixed-length bytes (numpy's `S`), of any shape, in C order.

    Elements that are `bytes` stay unchanged, others become the UTF-8 of their `str()`. As in Triton, an array without
    elements gives `()` and one of any other dtype gives None. Raises ValueError for an element of 4 GiB or more.
    """
    if input_tensor.size == 0:
        return ()
    kind = input_tensor.dtype.kind
    if kind not in "OS":
        return None
    elements = input_tensor.ravel().tolist()
    if kind == "O":
        elements = [each if isinstance(each, bytes) else str(each).encode() for each in elements]
    # Loops in C only: several times faster than appending element by element.
    pieces: list[Any] = [b""] * (2 * len(elements))
    try:
        pieces[0::2] = map(_PREFIX.pack, map(len, elements))
    except struct.error as exc:
        raise ValueError("an element of a BYTES tensor must be shorter than 4 GiB") from exc
    pieces[1::2] = elements
    return b"".join(pieces)


def deserialize_bytes_tensor(encoded_tensor: bytes | bytearray | memoryview) -> NDArray[np.object_]:
    """Decode into a one-dimensional object array of `bytes`; the caller reshapes it.

    The elements are copies: they outlive the buffer. Raises ValueError when the encoding ends inside an element.
    """
    # Slices of a view, so that large elements are copied only once.
    encoded = memoryview(encoded_tensor)
    size = len(encoded)
    unpack = _PREFIX.unpack_from
    elements = []
    end = 0
    try:
        while end < size:
            start = end + BYTES_PREFIX_SIZE
            end = start + unpack(encoded, end)[0]
            elements.append(encoded[start:end].tobytes())
    except struct.error as exc:
        raise ValueError(
            f"BYTES tensor is truncated: element {len(elements)} starts at byte {end} of {size} "
            f"and needs {BYTES_PREFIX_SIZE} bytes for its length"
        ) from exc
    if end != size:
        raise ValueError(f"BYTES tensor is truncated: element {len(elements) - 1} ends at byte {end} of {size}")
    return np.array(elements, dtype=np.object_)
