# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Escapes text of models and servers, so that it cannot send control sequences to a terminal. (pure)"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """`text` with escapes in place of characters that do not print, including line ends."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """`text` with escapes in place of characters that do not print, except line ends."""
    return "\n".join(map(printable, text.split("\n")))
