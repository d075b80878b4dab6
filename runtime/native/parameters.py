# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts request parameters to the types of native code: text, bool, double, and signed 64-bit integer. (pure)"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TypeAlias

import orjson

from pyruntime.utils.request_codec import PARAMETERS

Parameter: TypeAlias = str | bool | int | float

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1


def as_native(parameters: Mapping[str, Parameter | None]) -> dict[str, Parameter]:
    """Convert parameters from JSON to values that the extension accepts.

    An integer beyond a signed 64-bit one becomes a double, as it does over HTTP. None becomes NaN, because JSON writes
    null for a double that is not finite.
    """
    return {name: _value(value) for name, value in parameters.items()}


def read_parameters(wire: list[object]) -> None:
    """Replace the JSON text of the parameters in an encoded request by the values for the extension."""
    text = wire[PARAMETERS]
    if text and isinstance(text, str):
        wire[PARAMETERS] = as_native(orjson.loads(text))


def as_json(parameters: Mapping[str, Parameter]) -> str:
    """Encode parameters from native code as JSON, "" for none. A double that is not finite becomes a string."""
    if not parameters:
        return ""
    finite = {
        name: str(value) if type(value) is float and not math.isfinite(value) else value
        for name, value in parameters.items()
    }
    return json.dumps(finite, ensure_ascii=False)


def _value(value: Parameter | None) -> Parameter:
    if value is None:
        return math.nan
    if type(value) is int and not _INT64_MIN <= value <= _INT64_MAX:
        return float(value)
    return value
