# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a request, with vLLM's names and defaults. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pyruntime.backends.toolkit.parameters import convert_parameters

# The most tokens, beside the chosen one, of which a client may ask for the log probabilities; as in vLLM.
LOGPROBS_MAX = 20
# Each token is compared with each stop text.
STOP_TEXTS_MAX = 16
STOP_CHARACTERS_MAX = 1024


@dataclass(frozen=True)
class SamplingParameters:
    """See vLLM's SamplingParams. `temperature` 0 takes the most likely token; None leaves out a limit or feature."""

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for a value that is out of range or of another type."""
        for name, kind in _KINDS.items():
            _check(name, getattr(self, name), _is_a(getattr(self, name), kind), _name_of(kind))
        stops = self.stops
        valid = {
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < float("inf"), "0 or more"),
            "top_k": (self.top_k >= -1, "the number of tokens to choose from, or 0 for all"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "presence_penalty": (-2 <= self.presence_penalty <= 2, "from -2 to 2"),
            "frequency_penalty": (-2 <= self.frequency_penalty <= 2, "from -2 to 2"),
            "repetition_penalty": (0 < self.repetition_penalty < float("inf"), "above 0"),
            "seed": (self.seed is None or 0 <= self.seed < 1 << 63, "from 0 to 2**63 - 1"),
            "logprobs": (self.logprobs is None or 0 <= self.logprobs <= LOGPROBS_MAX, f"from 0 to {LOGPROBS_MAX}"),
            "n": (self.n == 1, "1: send a request for each completion"),
            "stop": (
                len(stops) <= STOP_TEXTS_MAX and all(0 < len(each) <= STOP_CHARACTERS_MAX for each in stops),
                f"at most {STOP_TEXTS_MAX} texts of 1 to {STOP_CHARACTERS_MAX} characters",
            ),
        }
        for name, (is_valid, expected) in valid.items():
            _check(name, getattr(self, name), is_valid, expected)

    @property
    def stops(self) -> list[str]:
        """The texts that end a completion."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


_KINDS = get_type_hints(SamplingParameters)


def read_sampling(parameters: Mapping[str, Any]) -> SamplingParameters:
    """The sampling parameters of a request. Raises ValueError that names the wrong one and what it must be."""
    return SamplingParameters(**convert_parameters(parameters, _KINDS))


def _check(name: str, value: object, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise ValueError(f"sampling parameter '{name}' is {value!r}, expected {expected}")


def _is_a(value: Any, kind: Any) -> bool:
    if get_origin(kind) is UnionType:
        return any(_is_a(value, each) for each in get_args(kind))
    if get_origin(kind) is list:
        (element,) = get_args(kind)
        return isinstance(value, list) and all(_is_a(each, element) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _name_of(kind: Any) -> str:
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    return " or ".join(each.__name__ if isinstance(each, type) else str(each) for each in kinds if each is not NoneType)
