# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Guesses which name was meant by one that is not known. (pure)"""

from __future__ import annotations

from collections.abc import Iterable

# A hint of more names is none.
SUGGESTIONS_MAX = 3
# From 0 to 1, as difflib counts. Chosen so that typing errors are similar, and other names of a family are not.
LIKENESS_MIN = 0.8
# Longer ones are no names, and comparing them takes long.
NAME_CHARS_MAX = 128


def similar(name: str, known: Iterable[str], count_max: int = SUGGESTIONS_MAX) -> list[str]:
    """The names that are most like `name`, the best first."""
    from difflib import get_close_matches  # imported late: only errors need it, and the server must start fast

    if len(name) > NAME_CHARS_MAX:
        return []
    return get_close_matches(name, list(known), n=count_max, cutoff=LIKENESS_MIN)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a sentence, `; did you mean a or b?`, or "" if none of `known` is similar."""
    near = similar(name, known)
    return f"; did you mean {' or '.join(prefix + match for match in near)}?" if near else ""
