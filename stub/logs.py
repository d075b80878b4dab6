# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Takes what a model logs to the server's log: Python's `logging` and `pb_utils.Logger`, with level, file and line.

What is printed needs no help: stdout and stderr are a pipe that the host reads. What a model does to Python's `logging`
concerns its own records; `pb_utils.Logger` and the tracebacks of its methods reach the server's log all the same.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Callable

from pyruntime.utils.messages import Log

# Longer messages are cut; the log is for people.
MESSAGE_CHARS_MAX = 64 << 10


class _OwnLogger(logging.Logger):
    """A logger outside the hierarchy, out of reach of `logging.config` and `logging.disable`."""

    def isEnabledFor(self, level: int) -> bool:
        return True


LOGGER = _OwnLogger("triton_python_backend_utils")


class HostHandler(logging.Handler):
    """Sends records to the host. In a process that a model forked, which must not use our channel, it prints them."""

    def __init__(self, send: Callable[[Log], None]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)[:MESSAGE_CHARS_MAX]
            if os.getpid() == self._pid:
                self._send(Log(record.levelno, message, record.pathname, record.lineno))
            else:
                print(message, file=sys.stderr)
        except Exception:
            self.handleError(record)


def install(send: Callable[[Log], None]) -> None:
    """Route LOGGER and the root logger to the host. A model may replace the latter, as it would anywhere."""
    handler = HostHandler(send)
    LOGGER.addHandler(handler)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
