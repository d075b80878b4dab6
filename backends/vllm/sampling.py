# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts the sampling parameters of a request to the types of vLLM's SamplingParams. (pure)

Parameters of requests are numbers, booleans and texts only. As in Triton's backend a text is converted where another
type is expected, and a list or an object may be given as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

LORA_NAME = "lora_name"
STRUCTURED_OUTPUTS = "structured_outputs"


def convert_parameters(parameters: Mapping[str, Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of SamplingParams, without `lora_name`. Raises ValueError for a name that it does not have."""
    given = {name: value for name, value in parameters.items() if name != LORA_NAME}
    unknown = sorted(given.keys() - annotations.keys())
    if unknown:
        raise ValueError(
            f"unknown sampling parameter '{unknown[0]}'; this version of vLLM has: {', '.join(sorted(annotations))}"
        )
    return {name: _converted(name, value, annotations[name]) for name, value in given.items()}


def choose_adapter(parameters: Mapping[str, Any], adapters: Mapping[str, str] | None) -> str | None:
    """The LoRA adapter of a request, None for the model itself. Raises ValueError with Triton's messages."""
    name = parameters.get(LORA_NAME)
    if name is None:
        return None
    if adapters is None:
        raise ValueError("LoRA feature is not enabled.")
    if name not in adapters:
        raise ValueError(f"LoRA {name} is not supported, we currently support {list(adapters)}")
    return str(name)


def _converted(name: str, value: Any, annotation: Any) -> Any:
    kinds = set(get_args(annotation) or (annotation,)) - {NoneType}
    if isinstance(value, str) and (str not in kinds or value[:1] in ("[", "{")):
        try:
            value = json.loads(value)
        except ValueError:
            if str not in kinds:
                raise ValueError(f"sampling parameter '{name}' is '{value}', expected {_names(kinds)}") from None
    if int in kinds and float not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _names(kinds: set[Any]) -> str:
    return " or ".join(sorted(getattr(kind, "__name__", str(kind)) for kind in kinds))
