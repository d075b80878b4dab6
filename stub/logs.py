# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends records of Python's `logging` and of `pb_utils.Logger` to the server's log, with level, file and line.

Printed text is not handled here: stdout and stderr are a pipe that the host reads. A model may reconfigure Python's
`logging` for its own records; `pb_utils.Logger` and the tracebacks of its methods still reach the server's log.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Callable

from pyruntime.utils.errors import LocalError
from pyruntime.utils.messages import Log

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
            if os.getpid() != self._pid or not self._sent(Log(record.levelno, message, record.pathname, record.lineno)):
                print(message, file=sys.stderr)
        except Exception:
            self.handleError(record)

    def _sent(self, log: Log) -> bool:
        """Send it, unless the channel is closed."""
        try:
            self._send(log)
        except (LocalError, OSError):
            return False
        return True


def install(send: Callable[[Log], None]) -> None:
    """Route LOGGER and the root logger to the host. A model may replace the root logger's handlers as usual."""
    handler = HostHandler(send)
    LOGGER.addHandler(handler)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
