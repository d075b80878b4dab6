# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.Logger`: writes lines to the server's log, with the model's file and line."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import ClassVar

from pyruntime.stub.logs import LOGGER


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


class Logger:
    """Static methods only, as in Triton. Verbose lines appear when the server runs with --log-verbose."""

    LogLevel = _Level
    INFO: ClassVar[_Level] = _Level.INFO
    WARNING: ClassVar[_Level] = _Level.WARNING
    ERROR: ClassVar[_Level] = _Level.ERROR
    VERBOSE: ClassVar[_Level] = _Level.VERBOSE

    @staticmethod
    def log(message: str, level: _Level = _Level.INFO) -> None:
        """Log `message` at `level`."""
        LOGGER.log(_LEVELS[level], "%s", message, stacklevel=2)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        LOGGER.info("%s", message, stacklevel=2)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        LOGGER.warning("%s", message, stacklevel=2)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        LOGGER.error("%s", message, stacklevel=2)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level VERBOSE."""
        LOGGER.debug("%s", message, stacklevel=2)
