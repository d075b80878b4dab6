# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses parameters: those that a model gives to a response or a call, and those of a request. (pure)"""

from __future__ import annotations

import math

import orjson

from pyruntime.runtime.requests.types import Parameter
from pyruntime.utils.errors import PeerError

_SCALARS = (str, int, float, bool)


def parse_parameters(text: str) -> dict[str, Parameter]:
    """Parameters from their JSON text, which may be empty. Raises PeerError."""
    if not text:
        return {}
    try:
        parameters: dict[str, Parameter] = orjson.loads(text)
    except (TypeError, ValueError) as exc:
        raise PeerError("response parameters are not JSON") from exc
    if type(parameters) is not dict or any(type(value) not in _SCALARS for value in parameters.values()):
        raise PeerError("response parameters are not a JSON object of strings, numbers and booleans")
    return parameters


def request_parameters(text: str) -> dict[str, Parameter]:
    """Parameters of a request from the JSON text that the server has made of them.

    NaN for null, with which JSON writes a double that is not finite.
    """
    parameters: dict[str, Parameter | None] = orjson.loads(text)
    return {name: math.nan if value is None else value for name, value in parameters.items()}
