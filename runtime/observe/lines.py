# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Cuts what a stub prints into lines for the log. (pure)"""

from __future__ import annotations

# A longer line is logged in pieces: a model that prints without a newline must not fill the host's memory.
LINE_BYTES_MAX = 16 << 10


class LineSplitter:
    """Bytes in, complete lines out, without their newlines. Undecodable bytes become backslash escapes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_BYTES_MAX:
            lines.append(self._rest[:LINE_BYTES_MAX])
            self._rest = self._rest[LINE_BYTES_MAX:]
        return [line.rstrip(b"\r").decode("utf-8", "backslashreplace") for line in lines]

    def end(self) -> list[str]:
        """The last line, if it had no newline."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "backslashreplace")] if rest else []
