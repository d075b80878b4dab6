# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes what a model logs to the server's log, within a budget: see log_budget.py.

A model that exceeds its budget never waits: the rest is dropped. A line says so at once, the first time, and others say
how much it was.
"""

from __future__ import annotations

import asyncio
import logging
import time

from pyruntime.runtime.observe.log_budget import LOG_BURST_BYTES, LOG_BYTES_PER_S, SILENCE_S, LogBudget

# How a traceback of Python begins, or a syntax error. Their lines are written without quotes, because people read them.
TRACEBACK = ("Traceback (most recent call last):", '  File "')
# At most so many lines of a model are logged at once: a flood must not keep the server from its requests.
LINES_AT_ONCE_MAX = 500
# The heading of a line, which counts besides its text.
LINE_BYTES = 100


class ModelLog:
    """The log of one model instance, or of all C++ backends in the server. `prefix` precedes each line.

    All methods belong to the event loop's thread.
    """

    def __init__(self, logger: logging.Logger, prefix: str) -> None:
        self._logger = logger
        self._prefix = prefix
        self._budget = LogBudget(time.monotonic())
        self._report: asyncio.TimerHandle | None = None
        self._has_dropped = False

    def is_silenced(self) -> bool:
        """Whether what is written now would be dropped."""
        return self._budget.is_spent(time.monotonic())

    def write(self, level: int, text: str, file: str, line: int) -> None:
        """Log a record of the model, which has its own file and line: a line for each line of `text`.

        The lines of a traceback are written without quotes: see logging.py.
        """
        if not self._logger.isEnabledFor(level):
            return
        lines = text.splitlines() or [""]
        in_traceback = False
        for number, each in enumerate(lines[:LINES_AT_ONCE_MAX]):
            in_traceback = in_traceback or each.startswith(TRACEBACK)
            extra = {"stub_file": file, "stub_line": line, "in_traceback": in_traceback}
            self._write(level, each, extra | _below(each) if number else extra)
        self.drop(sum(map(len, lines[LINES_AT_ONCE_MAX:])))

    def write_line(self, level: int, line: str) -> None:
        """Log a line that the model printed."""
        if self._logger.isEnabledFor(level):
            self._write(level, line, None)

    def write_crash(self, line: str, is_first: bool, is_detail: bool) -> None:
        """Log a line of a crash report. A detail is one that says nothing of the model, but of pyruntime."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, line, None if is_first else {**_below(line), "only_verbose": is_detail})

    def drop(self, size: int) -> None:
        """Count `size` bytes of the model that are not logged."""
        if size:
            self._budget.drop(size)
            self._report_later()

    def close(self) -> None:
        """Report what was dropped now, and not later."""
        if self._report is not None:
            self._report.cancel()
            self._report_now()

    def _write(self, level: int, line: str, extra: dict[str, object] | None) -> None:
        if self._budget.spend(len(line) + LINE_BYTES, time.monotonic()):
            self._logger.log(level, "%s%s", self._prefix, line, extra=extra)
        else:
            self._report_later()

    def _report_later(self) -> None:
        if not self._has_dropped:
            self._has_dropped = True
            self._logger.warning(
                "%soutput is dropped for a while: %d bytes may be logged at once, and %d a second",
                self._prefix,
                LOG_BURST_BYTES,
                LOG_BYTES_PER_S,
            )
        if self._report is None:
            self._report = asyncio.get_running_loop().call_later(SILENCE_S, self._report_now)

    def _report_now(self) -> None:
        self._report = None
        self._logger.warning(
            "%s%d bytes of output were dropped: on average, %d bytes a second are logged",
            self._prefix,
            self._budget.take_dropped(),
            LOG_BYTES_PER_S,
        )


def _below(line: str) -> dict[str, object]:
    """What has a line stand below the one before, where people read it: see console.py."""
    return {"continues": True, "people": line}
