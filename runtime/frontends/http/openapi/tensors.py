# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors of models as JSON schemas: their elements, their shapes, and their contents in each form. (pure)"""

from __future__ import annotations

import math

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.utils.dtypes import BY_NAME

Schema = dict[str, object]

# How many elements an example has at most: it is for people.
EXAMPLE_ELEMENTS_MAX = 64

_FORMATS = {"FP32": "float", "FP64": "double"}
# These travel as binary data only.
_BINARY_ONLY = ("FP16", "BF16")


def has_json(tensor: TensorSpec) -> bool:
    """Whether the contents of a tensor can be written as JSON."""
    return tensor.datatype not in _BINARY_ONLY


def element(datatype: str) -> Schema:
    """One element of a datatype that has a JSON form."""
    if datatype == "BOOL":
        return {"type": "boolean"}
    if datatype == "BYTES":
        return {"type": "string"}
    if datatype in _FORMATS:
        return {"type": "number", "format": _FORMATS[datatype]}
    bits = 8 * BY_NAME[datatype].size
    if datatype.startswith("U"):
        return {"type": "integer", "minimum": 0, "maximum": (1 << bits) - 1}
    return {"type": "integer", "minimum": -(1 << bits - 1), "maximum": (1 << bits - 1) - 1}


def shape(tensor: TensorSpec, max_batch_size: int) -> Schema:
    """The list that is the shape of a tensor; of a model that batches, if `max_batch_size` is not 0."""
    # Generators of clients make one type of all dimensions, so none is a "const".
    dims = [_dimension(dim, dim) if dim != -1 else _dimension(0) for dim in tensor.shape]
    if max_batch_size and dims:
        dims[0] = _dimension(0, max_batch_size) | {"description": "the size of the batch"}
    sizes = {"minItems": len(dims), "maxItems": len(dims)}
    return {"type": "array", **({"prefixItems": dims} if dims else {}), **sizes}


def _dimension(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def flat(tensor: TensorSpec) -> Schema:
    """The elements of a tensor in one list, in row-major order."""
    return _list(element(tensor.datatype), math.prod(tensor.shape) if -1 not in tensor.shape else -1)


def contents(tensor: TensorSpec) -> Schema:
    """The elements of a tensor as clients may send them: in one list, or in lists of lists."""
    if len(tensor.shape) < 2:
        return flat(tensor)
    nested = element(tensor.datatype)
    for dim in reversed(tensor.shape):
        nested = _list(nested, dim)
    return {"anyOf": [flat(tensor), nested]}


def value(tensor: TensorSpec) -> Schema:
    """An input of generate: its contents, or the bare element if there may be one only."""
    if all(dim in (-1, 1) for dim in tensor.shape):
        return {"anyOf": [element(tensor.datatype), contents(tensor)]}
    return contents(tensor)


def bare_value(tensor: TensorSpec) -> Schema:
    """An output of generate: all of its elements in one list, or the bare element if there is one only."""
    return {"anyOf": [element(tensor.datatype), flat(tensor)]}


def example_shape(tensor: TensorSpec) -> list[int]:
    """The smallest shape of a tensor that holds anything."""
    return [1 if dim == -1 else dim for dim in tensor.shape]


def example_data(tensor: TensorSpec) -> list[object] | None:
    """Contents for that shape, None if they are too many to be read or have no JSON form."""
    count = math.prod(example_shape(tensor))
    if count > EXAMPLE_ELEMENTS_MAX or not has_json(tensor):
        return None
    of = {"BOOL": True, "BYTES": "text", "FP32": 1.5, "FP64": 1.5}
    return [of.get(tensor.datatype, 1)] * count


def _list(items: Schema, count: int) -> Schema:
    sizes = {} if count == -1 else {"minItems": count, "maxItems": count}
    return {"type": "array", "items": items, **sizes}
