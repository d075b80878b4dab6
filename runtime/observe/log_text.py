# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What all formats of the log say of a record: its level, its place, and its text in characters that print. (pure)"""

from __future__ import annotations

import json
import logging

# Enough for a long traceback. Longer messages are tensors that a model prints; they would fill disks.
LINE_CHARS_MAX = 1 << 16


def cut(message: str) -> str:
    """`message`, or its beginning and its length if it is too long."""
    if len(message) <= LINE_CHARS_MAX:
        return message
    return f"{message[:LINE_CHARS_MAX]} ... (cut: {len(message)} characters)"


def quote(message: str) -> str:
    """`message` as a JSON string. Letters of all scripts stay; characters that do not print are escaped."""
    return printable(json.dumps(message, ensure_ascii=False))


def printable(message: str) -> str:
    """`message` with the escapes of JSON in place of characters that do not print."""
    if message.isprintable():
        return message
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in message)


def place(record: logging.LogRecord) -> tuple[str, int]:
    """The file and the line that a record comes from: of the model, or of our own code."""
    return str(getattr(record, "stub_file", record.filename)), getattr(record, "stub_line", record.lineno)


def letter(level: int) -> str:
    """Triton's letter of a level."""
    if level >= logging.ERROR:
        return "E"
    if level >= logging.WARNING:
        return "W"
    return "I" if level >= logging.INFO else "V"
