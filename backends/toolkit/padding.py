# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Adds rows to a batch for a framework that wants certain batch sizes, and takes them off its outputs."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

import numpy as np


def padded_call(
    call: Callable[[Dict[str, Any]], Mapping[str, Any]], inputs: Mapping[str, Any], size_of: Callable[[int], int]
) -> Dict[str, Any]:
    """`call` with as many rows as `size_of` says for those of `inputs`. Returns the rows of the inputs, as views.

    The rows that are added are copies of the last one, so that they are as valid as the others. Inputs and outputs are
    arrays with one row for each row of the batch; an output with another number of rows stays as it is.
    """
    rows = len(next(iter(inputs.values())))
    size = size_of(rows)
    if size == rows:
        return dict(call(dict(inputs)))
    padded = {name: np.concatenate([array, np.repeat(array[-1:], size - rows, 0)]) for name, array in inputs.items()}
    outputs = call(padded)
    return {name: array[:rows] if array.shape[:1] == (size,) else array for name, array in outputs.items()}


def next_power_of_two(rows: int) -> int:
    """The smallest power of two that is at least `rows`, which is at least 1."""
    return 1 << (rows - 1).bit_length()
