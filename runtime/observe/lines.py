# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Splits the output of a stub into lines for the log. (pure)"""

from __future__ import annotations

# A longer line is logged in pieces: a model that prints without a newline must not fill the host's memory.
LINE_BYTES_MAX = 16 << 10


class LineSplitter:
    """Bytes in, complete lines out, without their newlines. Undecodable bytes become backslash escapes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        *lines, rest = (self._rest + data).split(b"\n")
        pieces = [piece for line in lines for piece in _pieces(line.rstrip(b"\r"))]
        *full, self._rest = _pieces(rest)
        return [piece.decode("utf-8", "backslashreplace") for piece in pieces + full]

    def reset(self) -> None:
        """Forget the line that has begun: what follows it is lost."""
        self._rest = b""

    def end(self) -> list[str]:
        """The last line, if it had no newline."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "backslashreplace")] if rest else []


def _pieces(line: bytes) -> list[bytes]:
    """The line in pieces of at most LINE_BYTES_MAX, none of which ends within a character."""
    pieces = []
    while len(line) > LINE_BYTES_MAX:
        end = LINE_BYTES_MAX
        while end > LINE_BYTES_MAX - 4 and line[end] & 0xC0 == 0x80:  # a continuation byte of UTF-8
            end -= 1
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]
