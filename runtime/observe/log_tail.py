# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the last lines of the log in memory, for the page.

They are kept as they are logged, whether a page is open or not: that costs two microseconds for each line, and lines
that nobody keeps cannot be shown later. The log itself is written by the handler of logging.py.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

from pyruntime.runtime.observe.log_text import letter, place
from pyruntime.runtime.observe.logging import LOGGER_NAMES, LevelFilter
from pyruntime.runtime.settings import ServerSettings

# Some minutes of a busy server, and a traceback or two. With the length of a line this is 4 MiB at most.
LINES_KEPT_MAX = 500
LINE_CHARS_KEPT_MAX = 2000


class LogLine(NamedTuple):
    """One record. Numbers count from 1 on; `time_ms` is since the epoch; `level` is one of E, W, I and V."""

    number: int
    time_ms: int
    level: str
    file: str
    line: int
    message: str


class LogTail(logging.Handler):
    """See the module. The settings say which levels are logged."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=LINES_KEPT_MAX)
        self._count = 0
        self.adjust(settings)

    def adjust(self, settings: ServerSettings) -> None:
        """Keep the levels that are logged from now on."""
        self.filters[:] = [LevelFilter.of(settings)]

    def attach(self) -> None:
        """Begin to keep lines."""
        for name in LOGGER_NAMES:
            logging.getLogger(name).addHandler(self)

    def detach(self) -> None:
        """Keep no more lines."""
        for name in LOGGER_NAMES:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler. A record that cannot be formatted is reported by the handler that writes the log."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            return
        if record.exc_info:
            text = f"{text}\n{_FORMATTER.formatException(record.exc_info)}"
        table = getattr(record, "table", None)
        if table is not None:
            text = f"{text}\n{table}"
        if len(text) > LINE_CHARS_KEPT_MAX:
            text = f"{text[:LINE_CHARS_KEPT_MAX]} ..."
        self._count += 1
        file, line = place(record)
        self._lines.append(
            LogLine(self._count, int(record.created * 1000), letter(record.levelno), file, line, text.rstrip("\n"))
        )

    def after(self, number: int) -> list[LogLine]:
        """The lines that are kept and came after the one with this number; all for a number that there is not yet."""
        self.acquire()  # any thread may log
        try:
            if number > self._count:
                number = 0
            return [line for line in self._lines if line.number > number]
        finally:
            self.release()


_FORMATTER = logging.Formatter()
