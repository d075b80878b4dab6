# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What others wrote, as text that can do nothing to a terminal. (pure)"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """`text` with escapes in place of what does not print, line ends among them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """`text`, whose line ends stay, with escapes in place of all else that does not print."""
    return "\n".join(map(printable, text.split("\n")))
