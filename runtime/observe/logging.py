# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes log lines in Triton's format, through the standard library's logging.

line    := default | iso8601
default := letter month day " " time_us " " pid " " file ":" line "] " message      I1120 12:34:56.123456
iso8601 := date "T" time_s "Z " letter " " pid " " file ":" line "] " message       2026-11-20T12:34:56Z I
letter  := "E" | "W" | "I" | "V"

Times are UTC. A message is a JSON string with quotes, so that one record is one line without control characters. With
TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 in the environment it is written unchanged. A record's extras:

    stub_file, stub_line    the file and line of the model, which replace those of the call
    in_traceback            whether the message is a line of a traceback, which is written without quotes; what does not
                            print is escaped
    table                   a text table, written below the line unchanged, because tables.py has escaped its text

The format `json` is for machines, too: each line is an object with time, level, process, file, line and message, and
the table if there is one. At a terminal, unless a format is asked for, lines are those of console.py.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

from pyruntime.runtime.observe.console import ConsoleFormatter, is_for_people
from pyruntime.runtime.observe.log_text import cut, letter, place, printable, quote
from pyruntime.runtime.settings import DEFAULT_LOG_FORMAT, ServerSettings, SettingsError

ESCAPE_VARIABLE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
# The loggers whose records are written: ours, and asyncio's reports about our tasks.
LOGGER_NAMES = ("pyruntime", "asyncio")


# The names of levels in JSON, by Triton's letters.
_LEVELS = {"E": "error", "W": "warning", "I": "info", "V": "verbose"}


class TritonFormatter(logging.Formatter):
    """Formats a record as one line. `log_format` is one of LOG_FORMATS; without `escape` messages are unchanged."""

    def __init__(self, log_format: str = "default", escape: bool = True) -> None:
        super().__init__()
        self._format = log_format
        self._escape = escape

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        message = cut(message)
        table = getattr(record, "table", None)
        if self._format == "json":
            return _json(record, message, table)
        # As in Triton, a table without a message follows a bare heading rather than `""`.
        text = self._quoted(record, message) if message or table is None else ""
        line = f"{self._heading(record)}] {text}"
        return line if table is None else f"{line}\n{table}"

    def _quoted(self, record: logging.LogRecord, message: str) -> str:
        if not self._escape:
            return message
        return printable(message) if getattr(record, "in_traceback", False) else quote(message)

    def _heading(self, record: logging.LogRecord) -> str:
        level = letter(record.levelno)
        moment = datetime.fromtimestamp(record.created, UTC)
        is_iso8601 = self._format == "ISO8601"
        start = f"{moment:%Y-%m-%dT%H:%M:%SZ} {level}" if is_iso8601 else f"{level}{moment:%m%d %H:%M:%S.%f}"
        file, line = place(record)
        # The model gives the name of its file, which is as untrusted as its messages.
        return f"{start} {record.process} {quote(file)[1:-1]}:{line}"


class LevelFilter(logging.Filter):
    """Passes a record if its level is switched on. The four switches are independent, as in Triton."""

    def __init__(self, *, verbose: bool, info: bool, warning: bool, error: bool) -> None:
        super().__init__()
        self._enabled = {"V": verbose, "I": info, "W": warning, "E": error}

    @classmethod
    def of(cls, settings: ServerSettings) -> LevelFilter:
        """The filter that these settings ask for."""
        return cls(
            verbose=settings.log_verbose > 0,
            info=settings.log_info,
            warning=settings.log_warning,
            error=settings.log_error,
        )

    def filter(self, record: logging.LogRecord) -> bool:
        return self._enabled[letter(record.levelno)]

    def level(self) -> int:
        """The lowest level that passes, for the logger itself, so that it creates no records that are then dropped."""
        levels = {"V": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR}
        return min((levels[name] for name, on in self._enabled.items() if on), default=logging.CRITICAL + 1)


def set_up_logging(settings: ServerSettings) -> None:
    """Send our records to `settings.log_file`, or to standard error, in the format asked for.

    A second call replaces what the first one set up. Raises SettingsError for a file that cannot be opened.
    """
    handler = _open_handler(settings.log_file)
    handler.setFormatter(TritonFormatter())
    for name in LOGGER_NAMES:
        logger = logging.getLogger(name)
        for old in _handlers(logger):
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.propagate = False
    adjust_logging(settings)


def adjust_logging(settings: ServerSettings) -> None:
    """Apply changed levels and format to the handlers of `set_up_logging`; the file does not change."""
    switches = LevelFilter.of(settings)
    escape = os.environ.get(ESCAPE_VARIABLE, "1") != "0"
    is_verbose = settings.log_verbose > 0
    for name in LOGGER_NAMES:
        logger = logging.getLogger(name)
        for handler in _handlers(logger):
            for_people = escape and not settings.log_format and _is_at_terminal(handler)
            triton = TritonFormatter(settings.log_format or DEFAULT_LOG_FORMAT, escape)
            handler.setFormatter(_console(is_verbose) if for_people else triton)
            handler.filters[:] = [switches, is_for_people] if for_people and not is_verbose else [switches]
            logger.setLevel(switches.level())


def _console(is_verbose: bool) -> ConsoleFormatter:
    return ConsoleFormatter(colored=not os.environ.get("NO_COLOR"), is_verbose=is_verbose)  # see https://no-color.org


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    """The handlers of `logger` that this module added."""
    return [one for one in logger.handlers if isinstance(one.formatter, TritonFormatter | ConsoleFormatter)]


def _json(record: logging.LogRecord, message: str, table: str | None) -> str:
    """A record as a JSON object in ASCII, without line ends."""
    file, line = place(record)
    fields = {
        "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        "level": _LEVELS[letter(record.levelno)],
        "process": record.process,
        "file": file,
        "line": line,
        "message": message,
    }
    return json.dumps(fields if table is None else {**fields, "table": table})


def _is_at_terminal(handler: logging.Handler) -> bool:
    """Whether a handler writes to a terminal."""
    if isinstance(handler, logging.FileHandler) or not isinstance(handler, logging.StreamHandler):
        return False
    return bool(handler.stream.isatty())


def _open_handler(log_file: str) -> logging.Handler:
    if not log_file:
        return logging.StreamHandler(sys.stderr)
    try:
        return logging.FileHandler(log_file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise SettingsError(f"--log-file {log_file!r} cannot be opened: {error.strerror}") from error
