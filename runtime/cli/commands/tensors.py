# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts values that users write to tensors of the protocol, and back. (pure)

The model's metadata gives datatypes and shapes, so that users need not. A value with too few dimensions gets leading
dimensions of size 1. A flat list gets the model's shape, if there is only one way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyruntime.runtime.cli.commands.client import TensorMetadata
from pyruntime.runtime.json_types import JsonValue
from pyruntime.utils.byte_tensors import deserialize_bytes_tensor, serialize_byte_tensor
from pyruntime.utils.dtypes import BY_NAME

Array = NDArray[Any]


class TensorError(ValueError):
    """A value does not fit its tensor; the message is the end of a sentence about the value."""


class TensorSpec(NamedTuple):
    """An input or output in a model's metadata; -1 in `shape` is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, document: TensorMetadata) -> TensorSpec:
        """From a model's metadata, or from an output of a response, which has the same members."""
        return cls(document["name"], document["datatype"], tuple(map(int, document["shape"])))


def to_array(spec: TensorSpec, value: object) -> Array:
    """A JSON value as an array for `spec`. Raises TensorError."""
    try:
        array = np.array(value, dtype=object if spec.datatype == "BYTES" else None)
    except (ValueError, OverflowError) as exc:
        raise TensorError("its lists are not all of one length") from exc
    flat = array.ndim == 1
    if spec.datatype == "BYTES":
        if not all(isinstance(each, (str, bytes)) for each in array.ravel().tolist()):
            raise TensorError("it must hold texts, in lists that are all of one length")
    else:
        array = _cast_numbers(spec.datatype, array)
    return _fit(spec, array, flat)


def fit_array(spec: TensorSpec, array: Array) -> Array:
    """An array from a file, for `spec`. Raises TensorError."""
    if spec.datatype == "BYTES":
        if array.dtype.kind not in "OSU":
            raise TensorError(f"an array of {array.dtype} is none of texts")
        return _fit(spec, array.astype(object), flat=False)
    return _fit(spec, _cast_numbers(spec.datatype, array), flat=False)


def encode(datatype: str, array: Array) -> bytes:
    """The tensor's bytes."""
    if datatype == "BYTES":
        return bytes(serialize_byte_tensor(array) or b"")
    if datatype == "BF16":
        bits = array.astype("<f4").view("<u4").astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(array), 0x7FC0, rounded).astype("<u2").tobytes()
    return array.astype(BY_NAME[datatype].numpy).tobytes()


def decode(spec: TensorSpec, data: bytes | memoryview) -> Array:
    """The array with a tensor's bytes; `spec` has its shape. Raises TensorError."""
    try:
        if spec.datatype == "BYTES":
            return deserialize_bytes_tensor(data).reshape(spec.shape)
        if spec.datatype == "BF16":
            return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(spec.shape)
        return np.frombuffer(data, BY_NAME[spec.datatype].numpy).reshape(spec.shape)
    except (ValueError, KeyError) as exc:
        raise TensorError(f"its bytes are no {spec.datatype} of shape {list(spec.shape)}") from exc


def decode_file(spec: TensorSpec, data: bytes) -> Array:
    """The array in a file of raw bytes: the tensor's bytes, or one element of BYTES. Raises TensorError."""
    if spec.datatype == "BYTES":
        return _fit(spec, np.array(data, dtype=object), flat=False)
    size = BY_NAME[spec.datatype].size
    if len(data) % size:
        raise TensorError(f"{len(data)} bytes are no whole number of {spec.datatype}")
    shape = _fill(spec.shape, len(data) // size)
    if shape is None:
        raise TensorError(f"{len(data) // size} elements do not say which shape {list(spec.shape)} is; .npy files do")
    return decode(spec._replace(shape=shape), data)


def to_json(array: Array) -> JsonValue:
    """Nested lists. Bytes that are not UTF-8 become backslash escapes."""
    readable = np.array(texts(array), dtype=object).reshape(array.shape) if array.dtype.kind == "O" else array
    nested: JsonValue = readable.tolist()
    return nested


def texts(array: Array) -> list[str]:
    """The elements of a BYTES tensor, flat. Bytes that are not UTF-8 become backslash escapes."""
    return [each.decode(errors="backslashreplace") if isinstance(each, bytes) else each for each in array.ravel()]


def _cast_numbers(datatype: str, array: Array) -> Array:
    wanted = np.dtype(BY_NAME[datatype].numpy or "<f4")
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[wanted.kind]
    if array.size and array.dtype.kind not in kinds:
        raise TensorError(f"it must hold {_NOUNS[wanted.kind]} for {datatype}")
    if wanted.kind in "iu" and array.size:
        info = np.iinfo(wanted)
        for extreme in (int(array.min()), int(array.max())):
            if not info.min <= extreme <= info.max:
                raise TensorError(f"it holds {extreme}, which is out of range for {datatype}")
    with np.errstate(over="ignore"):
        return array.astype(wanted)


_NOUNS = {"b": "true and false", "i": "integers", "u": "integers", "f": "numbers"}


def _fit(spec: TensorSpec, array: Array, flat: bool) -> Array:
    missing = len(spec.shape) - array.ndim
    if missing > 0:
        shape = (1,) * missing + array.shape
        if _matches(spec.shape, shape):
            return array.reshape(shape)
        filled = _fill(spec.shape, array.size) if flat else None
        if filled is not None:
            return array.reshape(filled)
    elif _matches(spec.shape, array.shape):
        return array
    raise TensorError(f"its shape is {list(array.shape)}, the model wants {list(spec.shape)}")


def _matches(wanted: Sequence[int], shape: Sequence[int]) -> bool:
    return len(wanted) == len(shape) and all(dim in (-1, size) for dim, size in zip(wanted, shape, strict=True))


def _fill(wanted: Sequence[int], count: int) -> tuple[int, ...] | None:
    """The only shape that `count` elements can have; None if there is none, or more than one."""
    fixed = math.prod(dim for dim in wanted if dim != -1)
    unknown = list(wanted).count(-1)
    if unknown == 0:
        return tuple(wanted) if fixed == count else None
    if unknown > 1 or not fixed or count % fixed:
        return None
    return tuple(count // fixed if dim == -1 else dim for dim in wanted)
