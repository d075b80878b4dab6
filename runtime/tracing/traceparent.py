# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses and formats the header `traceparent` of W3C Trace Context, level 1. (pure)

traceparent := version "-" trace-id "-" parent-id "-" flags
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16


class Parent(NamedTuple):
    """The span of another service that caused a request; `sampled` if it is recorded. Ids are hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(text: str) -> Parent | None:
    """The parent in a client's header; None if the header is absent or not valid."""
    match = _TRACEPARENT.fullmatch(text.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    # Later versions may append more fields; version 00 has none, and ff is not a valid version.
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def format_traceparent(trace_id: str, span_id: str) -> str:
    """The header for requests that a recorded span causes."""
    return f"00-{trace_id}-{span_id}-01"
