# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Patterns of the headers that models get: --http-header-forward-pattern and --grpc-header-forward-pattern. (pure)

A pattern may match any part of a name, in any case; the model gets the names as the client wrote them. Its syntax is
RE2's, as in Triton, which differs from Python's, `(?-i)` for example, and takes time in proportion to the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# The names and values of headers.
Forwarded = tuple[tuple[str, str], ...]

# The longest name that is matched: real names are shorter.
NAME_LENGTH_MAX = 256
# The names of which it is remembered whether they match: those of one request fit, and a client cannot fill memory.
NAMES_KEPT_MAX = 256


class HeaderPattern:
    """Selects the headers to forward by their names."""

    def __init__(self, pattern: str) -> None:
        """`pattern` is a regular expression; "" selects no headers. Raises ValueError with the reason if it is none."""
        self._text = pattern
        self._pattern = _compiled(pattern) if pattern else None
        # Whether names match: clients send the same few, and each search takes longer than the rest of reading a head.
        self._matches: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<HeaderPattern {self._text!r}>"

    def select(self, headers: Iterable[tuple[str, str]]) -> Forwarded:
        """The headers to forward, in order."""
        if self._pattern is None:
            return ()
        matches, forwarded = self._matches, []
        for each in headers:
            is_match = matches.get(each[0])
            if is_match is None:
                is_match = self._match(each[0])
            if is_match:
                forwarded.append(each)
        return tuple(forwarded)

    def _match(self, name: str) -> bool:
        if self._pattern is None or len(name) > NAME_LENGTH_MAX:
            return False
        if len(self._matches) >= NAMES_KEPT_MAX:
            self._matches.clear()
        is_match = self._matches[name] = self._pattern.search(name) is not None
        return is_match


def _compiled(pattern: str) -> Any:
    import re2  # only a server with a pattern pays for it

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as exc:
        raise ValueError(exc.args[0].decode(errors="replace")) from exc
