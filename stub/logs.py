# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends records of Python's `logging` and of `pb_utils.Logger` to the server's log, with level, file and line.

Printed text is not handled here: stdout and stderr are a pipe that the host reads. What a model configures with
Python's `logging` happens, and replaces that for the records that it is about; `pb_utils.Logger` and the tracebacks of
its methods still reach the server's log.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Callable, Optional

from pyruntime.utils.errors import LocalError
from pyruntime.utils.messages import Log
from pyruntime.utils.paths import authors_path

# Longer messages are cut, because people read the log.
MESSAGE_CHARS_MAX = 64 << 10


class _OwnLogger(logging.Logger):
    """A logger outside the hierarchy, which `logging.config` and `logging.disable` do not affect."""

    def isEnabledFor(self, level: int) -> bool:
        return True


LOGGER = _OwnLogger("triton_python_backend_utils")


class HostHandler(logging.Handler):
    """Sends records to the host. After the model's end, and in a child that it forked, it prints them."""

    def __init__(self, send: Callable[[Log], None]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)[:MESSAGE_CHARS_MAX]
            if os.getpid() != self._pid or not self._sent(self._log(record, message)):
                print(message, file=sys.stderr)
        except Exception:
            self.handleError(record)

    def _log(self, record: logging.LogRecord, message: str) -> Log:
        return Log(record.levelno, message, authors_path(record.pathname), record.lineno)

    def _sent(self, log: Log) -> bool:
        """Send it, unless the channel is closed."""
        try:
            self._send(log)
        except (LocalError, OSError):
            return False
        return True


class _Root(logging.RootLogger):
    """The root logger of a model: from INFO on, until the model gives it a handler or a level."""

    chosen: bool

    def addHandler(self, hdlr: logging.Handler) -> None:
        if not self.chosen and not _is_null(hdlr):
            self.setLevel(logging.WARNING)  # as in every Python program
        super().addHandler(hdlr)

    def setLevel(self, level: Any) -> None:
        self.chosen = True
        super().setLevel(level)


def install(send: Callable[[Log], None]) -> None:
    """Route LOGGER to the host, and the records of all other loggers for which the model has configured no handler.

    No handler is added to them: `logging.basicConfig` does nothing if it finds one, and a logger that has its own would
    write its records twice. A logger with a handler of the model has the levels of Python: INFO is only ours.
    """
    handler = HostHandler(send)
    LOGGER.addHandler(handler)
    root: Any = logging.getLogger()
    root.setLevel(logging.INFO)
    root.__class__ = _Root
    root.chosen = False
    call_of_python, configure_of_python = logging.Logger.callHandlers, logging.basicConfig

    def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        if not _is_configured(logger):
            handler.handle(record)
        elif root.chosen or record.levelno >= logging.WARNING or _has_level(logger):
            call_of_python(logger, record)

    def basic_config(**options: Any) -> None:
        # `logging.info` and its like call it first where there is no handler, and configure nothing.
        if options or sys._getframe(1).f_globals is not vars(logging):
            configure_of_python(**options)

    logging.Logger.callHandlers = call_handlers  # type: ignore[assignment]
    logging.basicConfig = basic_config


def _is_configured(logger: logging.Logger) -> bool:
    """Whether a record of this logger reaches a handler. Libraries give theirs one that does nothing."""
    at: Optional[logging.Logger] = logger
    while at is not None:
        if not all(map(_is_null, at.handlers)):
            return True
        at = at.parent if at.propagate else None
    return False


def _has_level(logger: logging.Logger) -> bool:
    """Whether the level of a logger is not that of the root: it, or one above it, has one, or it is none of its."""
    at: Optional[logging.Logger] = logger
    while at is not None and not isinstance(at, logging.RootLogger):
        if at.level:
            return True
        at = at.parent
    return at is None


def _is_null(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.NullHandler)
