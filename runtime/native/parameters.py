# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters as native code has them: texts, booleans, doubles and integers of 64 bits. (pure)"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

from pyruntime.utils.request_codec import PARAMETERS

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1


def as_native(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters out of JSON, as the extension reads them: each of them has a value that it knows.

    An integer beyond 64 bits with a sign is a double, as one that comes by HTTP. What JSON has no number for (it writes
    null for a double that is not finite) is not a number.
    """
    return {name: _value(value) for name, value in parameters.items()}


def read_parameters(wire: list[object]) -> None:
    """Have an encoded request carry its parameters as the extension reads them, in place of their JSON."""
    text = wire[PARAMETERS]
    if text and isinstance(text, str):
        wire[PARAMETERS] = as_native(orjson.loads(text))


def as_json(parameters: Mapping[str, Any]) -> str:
    """Parameters of native code's as JSON, "" for none; a double that is not finite is a text, as JSON has none."""
    if not parameters:
        return ""
    finite = {
        name: str(value) if type(value) is float and not math.isfinite(value) else value
        for name, value in parameters.items()
    }
    return json.dumps(finite, ensure_ascii=False)


def _value(value: Any) -> Any:
    if value is None:
        return math.nan
    if type(value) is int and not _INT64_MIN <= value <= _INT64_MAX:
        return float(value)
    return value
