# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of frameworks whose strings are texts: BYTES that they get must be UTF-8."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.batching import Arrays


class TextArrays(Arrays):
    """Arrays of numpy, with BYTES as str. `owner` is the framework, for messages."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """See Arrays. Raises ValueError for BYTES that are not UTF-8."""
        array = tensor.as_numpy()
        if array.dtype != object:
            return array
        try:
            texts = [element.decode() for element in array.ravel().tolist()]
        except UnicodeDecodeError:
            raise ValueError(
                f"input '{tensor.name()}' has an element that is not valid UTF-8, which strings of {self._owner} "
                "must be"
            ) from None
        return np.array(texts, object).reshape(array.shape)

    def finish(self, array: Any) -> Any:
        """See Arrays."""
        return array.astype(object) if array.dtype.kind == "U" else array
