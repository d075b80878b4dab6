# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts the sampling parameters of a request to the types that an engine has for them. (pure)

Parameters of requests are numbers, booleans and texts only. As in Triton's vLLM backend a text is converted where
another type is expected, and a list or an object may be given as JSON.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Set, get_args


def convert_parameters(parameters: Mapping[str, Any], annotations: Mapping[str, Any]) -> Dict[str, Any]:
    """The parameters, each with its annotated type if that is possible. Raises ValueError for an unknown name."""
    unknown = sorted(parameters.keys() - annotations.keys())
    if unknown:
        raise ValueError(f"unknown sampling parameter '{unknown[0]}', known are: {', '.join(sorted(annotations))}")
    return {name: _converted(name, value, annotations[name]) for name, value in parameters.items()}


def _converted(name: str, value: Any, annotation: Any) -> Any:
    kinds = set(get_args(annotation) or (annotation,)) - {type(None)}
    if isinstance(value, str) and (str not in kinds or value[:1] in ("[", "{")):
        try:
            value = json.loads(value)
        except ValueError:
            if str not in kinds:
                raise ValueError(f"sampling parameter '{name}' is '{value}', expected {_names(kinds)}") from None
    if int in kinds and float not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _names(kinds: Set[Any]) -> str:
    return " or ".join(sorted(getattr(kind, "__name__", str(kind)) for kind in kinds))
