# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Logs the output and the log records of a stub in the server's log, under the stub's name."""

from __future__ import annotations

import asyncio
import logging

from pyruntime.runtime.observe.crashes import CrashReport
from pyruntime.runtime.observe.lines import LineSplitter

_LOG = logging.getLogger("pyruntime.instances")

# At most so many lines of a model's output are logged at once: a flood must not keep the server from its requests.
LINES_AT_ONCE_MAX = 500


class OutputLog(asyncio.Protocol):
    """Logs what a stub writes to stdout and stderr, line by line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines = LineSplitter()
        self._crash = CrashReport()

    def data_received(self, data: bytes) -> None:
        for line in _bounded(self._lines.feed(data)):
            _LOG.log(logging.ERROR if self._crash.has(line) else logging.INFO, "%s: %s", self._name, line)

    def connection_lost(self, exc: Exception | None) -> None:
        for line in self._lines.end():
            _LOG.log(logging.ERROR if self._crash.has(line) else logging.INFO, "%s: %s", self._name, line)


def log_for_stub(name: str, level: int, text: str, file: str, line: int) -> None:
    """Log a log record of the model, which has its own file and line."""
    for part in _bounded(text.splitlines() or [""]):
        _LOG.log(level, "%s: %s", name, part, extra={"stub_file": file, "stub_line": line})


def _bounded(lines: list[str]) -> list[str]:
    """The first LINES_AT_ONCE_MAX of `lines`, and a line with the number of the others."""
    if len(lines) <= LINES_AT_ONCE_MAX:
        return lines
    return [*lines[:LINES_AT_ONCE_MAX], f"... and {len(lines) - LINES_AT_ONCE_MAX} more lines at once"]
