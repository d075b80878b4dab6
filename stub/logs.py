# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Takes what a model logs to the server's log: Python's `logging` and `pb_utils.Logger`, with level, file and line.

What is printed needs no help: stdout and stderr are a pipe that the host reads.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Callable

from pyruntime.utils.messages import Log

# Longer messages are cut; the log is for people.
MESSAGE_CHARS_MAX = 64 << 10


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
    """Route the root logger to the host. A model that configures logging itself replaces this, as it would anywhere."""
    root = logging.getLogger()
    root.addHandler(HostHandler(send))
    root.setLevel(logging.INFO)
