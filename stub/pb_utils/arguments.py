# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts the arguments of models to Python's own types, by the rules of Triton's binding (pybind11). (pure)

A text may be bytes in UTF-8, because tensors of BYTES have those; a number may be numpy's. Each function takes the
argument, and its name for the message of the TypeError. Callers test for the exact type first where speed matters.
"""

from __future__ import annotations

import operator
from typing import Any

INT64 = (-(2**63), 2**63 - 1)
UINT32 = (0, 2**32 - 1)
UINT64 = (0, 2**64 - 1)

# numpy's texts have the methods of numbers, which read them.
_TEXTS = (str, bytes)


def as_text(value: Any, what: str) -> str:
    """A str of any class, bytes or a bytearray, as a str. What is not UTF-8 is escaped."""
    if isinstance(value, str):
        return str.__str__(value)  # not `str(value)`, which is `Name.MEMBER` for a member of an enum of texts
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(f"{what} must be a str, found type {type(value)}")


def as_integer(value: Any, what: str, limits: tuple[int, int]) -> int:
    """A number as an int within `limits`. Floats of Python, and numpy's float64, which is one, are refused."""
    if type(value) is not int:
        if isinstance(value, (float, *_TEXTS)) or not (hasattr(value, "__index__") or hasattr(value, "__int__")):
            raise TypeError(f"{what} must be an int, found type {type(value)}")
        try:
            value = int(value)
        except (TypeError, ValueError, OverflowError) as exc:
            raise TypeError(f"{what} must be an int, found type {type(value)}: {exc}") from exc
    least, most = limits
    if not least <= value <= most:
        raise TypeError(f"{what} must be an int from {least} to {most}, found {str(value)[:40]}")
    return int(value)


def as_bool(value: Any, what: str) -> bool:
    """A bool, or a number of any class, as a bool."""
    if type(value) is bool:
        return value
    if value is None or not hasattr(value, "__bool__"):
        raise TypeError(f"{what} must be a bool, found type {type(value)}")
    return bool(value)


def as_float(value: Any, what: str) -> float:
    """A number as a float. Raises OverflowError for an int that is too large for one."""
    if type(value) is float:
        return value
    if hasattr(value, "__float__") and not isinstance(value, _TEXTS):
        return float(value)
    try:
        return float(operator.index(value))  # float() would read texts as well
    except TypeError:
        raise TypeError(f"{what} must be a number, found type {type(value)}") from None
