# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what a stub writes to stdout and stderr, and logs it. It never stops to read: a model does not wait for it."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress

from pyruntime.runtime.observe.crashes import CrashReport
from pyruntime.runtime.observe.lines import LineSplitter
from pyruntime.runtime.observe.model_log import LINES_AT_ONCE_MAX, ModelLog

# No pipe of a stub holds more: it has the size that pipes have by default, or what the model made of it, and only root
# may make it larger than this.
PIPE_BYTES_MAX = 1 << 20


class OutputReader(asyncio.Protocol):
    """Reads the pipe of a stub line by line into `log`."""

    def __init__(self, log: ModelLog) -> None:
        self._log = log
        self._lines = LineSplitter()
        self._crash = CrashReport()

    def data_received(self, data: bytes) -> None:
        if self._log.is_silenced():  # not even split into lines, which takes long where there are many
            self._lines.reset()
            self._log.drop(len(data))
        else:
            self._write(self._lines.feed(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._write(self._lines.end())
        self._log.close()

    def read_rest(self, fd: int) -> None:
        """Read what has come through the pipe and was not read yet, before its transport is closed."""
        with suppress(BlockingIOError):
            data = os.read(fd, PIPE_BYTES_MAX)
            if data:
                self.data_received(data)

    def _write(self, lines: list[str]) -> None:
        for line in lines[:LINES_AT_ONCE_MAX]:
            if self._crash.has(line):
                self._log.write_crash(line, self._crash.is_first, self._crash.is_detail)
            else:
                self._log.write_line(logging.INFO, line)
        self._log.drop(sum(map(len, lines[LINES_AT_ONCE_MAX:])))
