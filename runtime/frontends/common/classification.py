# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs as classes: the largest elements with their indexes and labels, in place of the contents. (pure)

class := value ":" index [":" label]

numpy is imported where it is first needed, as most servers never need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code, InferenceError

if TYPE_CHECKING:
    import numpy as np

# Triton's limit. An output with more elements does not hold scores of classes.
ELEMENTS_MAX = 1_000_000

# How values are written, by datatype. Values of other datatypes have no useful order.
_INTEGER, _FLOAT = "%d", "%f"
_FORMS = dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"), _INTEGER)
_FORMS |= dict.fromkeys(("FP32", "FP64"), _FLOAT)


def classified(response: InferResponse, classes: Mapping[str, int], spec: ModelSpec) -> InferResponse:
    """The response with the classes of those outputs that `classes` names. Raises InferenceError as `classify`."""
    outputs = [
        classify(output, classes[output.name], spec.labels.get(output.name, ()), spec.max_batch_size > 0)
        if output.name in classes
        else output
        for output in response.outputs
    ]
    return replace(response, outputs=outputs)


def classify(output: OutputTensor, count: int, labels: Sequence[str], batched: bool) -> OutputTensor:
    """The `count` largest elements of `output`, or all if it has fewer: of all of it, or of each row of a batch.

    The largest come first, NaN comes last, and equal ones come in the order of their indexes. Empty labels are left
    out. Raises InferenceError: INVALID_ARG for a datatype without an order and for too many elements,
    INTERNAL where the contents do not fill the output's shape.
    """
    if output.datatype not in _FORMS:
        raise _invalid(f"class result not available for output due to unsupported type '{output.datatype}'")
    elements = math.prod(output.shape)
    if elements > ELEMENTS_MAX:
        raise _invalid("classification output tensor too large")
    datatype = BY_NAME[output.datatype]
    size = elements * datatype.size
    if len(output.data) != size:
        raise InferenceError(f"output '{output.name}' holds {len(output.data)} bytes, expected {size}")

    import numpy as np

    rows = output.shape[0] if batched else 1
    width = elements // rows if rows else 0
    form = _FORMS[output.datatype] + ":%d"
    strings: list[str] = []
    for row in np.frombuffer(output.data, datatype.numpy).reshape(rows, width):
        top = _largest(np, row, count)
        for value, index in zip(row[top].tolist(), top.tolist(), strict=True):
            text = form % (value, index)
            label = labels[index] if index < len(labels) else ""
            strings.append(f"{text}:{label}" if label else text)
    found = min(count, width)
    return OutputTensor(output.name, "BYTES", [rows, found] if batched else [found], _join(strings))


def _largest(np: ModuleType, row: np.ndarray, count: int) -> np.ndarray:
    """The indexes of the largest elements of a row, in order."""
    # Ascending keys give the largest first. `-` would overflow for integers, so they use `~`.
    keys = -row if row.dtype.kind == "f" else ~row
    if count >= len(keys):
        return np.argsort(keys, kind="stable")  # type: ignore[no-any-return]
    # NaN sorts last and compares false, so `~(keys > last)` keeps it among the candidates.
    last = np.partition(keys, count - 1)[count - 1]
    candidates = np.flatnonzero(~(keys > last))
    return candidates[np.argsort(keys[candidates], kind="stable")[:count]]  # type: ignore[no-any-return]


def _join(strings: list[str]) -> bytes:
    # Labels keep the bytes of the model's file, whatever their encoding.
    encoded = [string.encode(errors="surrogateescape") for string in strings]
    return b"".join([len(each).to_bytes(BYTES_PREFIX_SIZE, "little") + each for each in encoded])


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, Code.INVALID_ARG)
