# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.Logger`: lines for the server's log, with the model's own file and line."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import ClassVar

_LOG = logging.getLogger("triton_python_backend_utils")
_LOG.setLevel(logging.DEBUG)


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
        _LOG.log(_LEVELS[level], "%s", message, stacklevel=2)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        _LOG.info("%s", message, stacklevel=2)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        _LOG.warning("%s", message, stacklevel=2)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        _LOG.error("%s", message, stacklevel=2)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level VERBOSE."""
        _LOG.debug("%s", message, stacklevel=2)
