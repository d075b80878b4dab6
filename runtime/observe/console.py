# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes log lines for people, who read them at a terminal. logging.py has the formats for machines. (pure)

line    := time_s " " letter " " [file ":" line " "] message             12:34:56 E m_0: execute failed
further := "  " text                    what follows in the same record, or in one that continues the one before

Times are local. What does not print is escaped, so that nothing drives the terminal. The letters of errors and warnings
have colours, unless NO_COLOR is in the environment. A record's extras, beside those of logging.py:

    people          the text in place of the message
    people_table    the table in place of that
    continues       the record stands below the one before, without a heading
    only_verbose    another line says it, or it is a frame of pyruntime: it is not shown unless lines are verbose

With --log-verbose each line also has the file and the line that it comes from.
"""

from __future__ import annotations

import logging
from datetime import datetime

from pyruntime.runtime.observe.log_text import cut, letter, place, printable

# Red and yellow, by the escape sequences of ECMA-48; the time is faint.
_COLORS = {"E": "\x1b[31m", "W": "\x1b[33m"}
_FAINT, _PLAIN = "\x1b[2m", "\x1b[0m"


class ConsoleFormatter(logging.Formatter):
    """See the module."""

    def __init__(self, *, colored: bool = False, is_verbose: bool = False) -> None:
        super().__init__()
        self._colored = colored
        self._is_verbose = is_verbose

    def format(self, record: logging.LogRecord) -> str:
        people = getattr(record, "people", None)
        text = record.getMessage() if people is None else str(people)
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        shown = "\n  ".join(map(printable, cut(text).rstrip("\n").split("\n")))
        heading = "  " if getattr(record, "continues", False) else f"{self._heading(record)} "
        table = getattr(record, "table", None)
        if table is not None and not self._is_verbose:
            table = getattr(record, "people_table", table)
        return f"{heading}{shown}" if table is None else f"{heading}{shown}\n{table}"

    def _heading(self, record: logging.LogRecord) -> str:
        time = f"{datetime.fromtimestamp(record.created):%H:%M:%S}"
        level = letter(record.levelno)
        if self._colored:
            time = f"{_FAINT}{time}{_PLAIN}"
            level = f"{_COLORS[level]}{level}{_PLAIN}" if level in _COLORS else level
        if not self._is_verbose:
            return f"{time} {level}"
        file, line = place(record)
        return f"{time} {level} {printable(file)}:{line}"


def is_for_people(record: logging.LogRecord) -> bool:
    """Whether a record is shown to people who have not asked for verbose lines."""
    return not getattr(record, "only_verbose", False)
