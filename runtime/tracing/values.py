# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses the values of trace settings, from the command line and from clients. (pure)

Every function raises ValueError with Triton's message for an invalid text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyruntime.runtime.settings import TRACE_LEVELS, TRACE_TIMESTAMPS

OFF = "OFF"
# Triton's type for these numbers is uint32.
UINT32_MAX = 2**32 - 1
COUNT_MAX = 2**31 - 1
UNLIMITED = -1

# The former names of Triton's levels.
_OLD_LEVELS = {"MIN": TRACE_TIMESTAMPS, "MAX": TRACE_TIMESTAMPS}
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")


def read_levels(texts: Sequence[str]) -> tuple[str, ...]:
    """The named levels, in order and without duplicates; () for OFF, which must be the only one."""
    names = [_OLD_LEVELS.get(text.upper(), text.upper()) for text in texts]
    for name, text in zip(names, texts, strict=True):
        if name != OFF and name not in TRACE_LEVELS:
            raise ValueError(f"Unknown trace level '{text}': expecting OFF, {' or '.join(TRACE_LEVELS)}")
    if OFF in names and len(names) > 1:
        raise ValueError("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in TRACE_LEVELS if level in names)


def read_rate(text: str) -> int:
    """The rate: every n-th request is traced."""
    rate = _integer("trace_rate", text, 0, UINT32_MAX)
    if not rate:
        raise ValueError("Attempting to set invalid trace setting :sample rate must be non-zero")
    return rate


def read_count(text: str) -> int:
    """The number of requests to trace, UNLIMITED for all."""
    if _INTEGER.fullmatch(text) and int(text) < UNLIMITED:
        raise ValueError(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{text}")
    return _integer("trace_count", text, UNLIMITED, COUNT_MAX)


def read_log_frequency(text: str) -> int:
    """The number of traces per file; 0 if all go to one file."""
    return _integer("log_frequency", text, 0, UINT32_MAX)


def _integer(name: str, text: str, least: int, most: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"Unable to parse '{name}', got: {text}")
    if not least <= int(text) <= most:
        raise ValueError(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    return int(text)
