# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.Logger`: writes lines to the server's log, with the model's file and line."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Any, ClassVar

from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.arguments import as_text


class _Level(IntEnum):
    """Triton's levels."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS = {
    _Level.INFO: logging.INFO,
    _Level.WARNING: logging.WARNING,
    _Level.ERROR: logging.ERROR,
    _Level.VERBOSE: logging.DEBUG,
}


def _text(message: Any) -> Any:
    """Objects are logged as `print` prints them, but not None, which is a forgotten `return`."""
    return as_text(message, "message") if message is None or isinstance(message, (str, bytes, bytearray)) else message


class Logger:
    """Static methods only, as in Triton. Verbose lines appear when the server runs with --log-verbose.

    A message may be bytes in UTF-8.
    """

    LogLevel = _Level
    INFO: ClassVar[_Level] = _Level.INFO
    WARNING: ClassVar[_Level] = _Level.WARNING
    ERROR: ClassVar[_Level] = _Level.ERROR
    VERBOSE: ClassVar[_Level] = _Level.VERBOSE

    @staticmethod
    def log(message: str, level: _Level = _Level.INFO) -> None:
        """Log `message` at `level`. Raises TypeError for another level."""
        if type(level) is not _Level:
            raise TypeError(f"level must be one of the Logger's own, found {level!r}")
        LOGGER.log(_LEVELS[level], "%s", _text(message), stacklevel=2)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        LOGGER.info("%s", _text(message), stacklevel=2)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        LOGGER.warning("%s", _text(message), stacklevel=2)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        LOGGER.error("%s", _text(message), stacklevel=2)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level VERBOSE."""
        LOGGER.debug("%s", _text(message), stacklevel=2)
