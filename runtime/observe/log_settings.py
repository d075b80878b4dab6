# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The log settings: the command line sets them, and clients may change them at run time. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyruntime.runtime.settings import DEFAULT_LOG_FORMAT, LOG_FORMATS, LOG_VERBOSE_MAX, ServerSettings
from pyruntime.utils.errors import Code, InferenceError

# The number of characters of an invalid value that an error message shows.
SHOWN_LENGTH_MAX = 64

_SWITCHES = ("log_info", "log_warning", "log_error")
_VERBOSE, _FORMAT, _FILE = "log_verbose_level", "log_format", "log_file"


class LogSettings:
    """The current log settings. `verbose` says whether verbose lines are written, so that callers need not build them.

    Each of `appliers` is called with the server's settings whenever they change, and makes them so.
    """

    def __init__(self, settings: ServerSettings, *appliers: Callable[[ServerSettings], None]) -> None:
        self._settings = settings
        self._appliers = appliers
        self.verbose = settings.log_verbose > 0

    def current(self) -> dict[str, bool | int | str]:
        """All settings, by Triton's names."""
        settings = self._settings
        return {
            _FILE: settings.log_file,
            "log_info": settings.log_info,
            "log_warning": settings.log_warning,
            "log_error": settings.log_error,
            _VERBOSE: settings.log_verbose,
            _FORMAT: settings.log_format or DEFAULT_LOG_FORMAT,
        }

    def update(self, values: Mapping[str, object]) -> None:
        """Change the named settings. Ignores unknown names, as Triton does.

        Raises InferenceError, and then changes nothing: UNSUPPORTED for the file, INVALID_ARG for an invalid value.
        """
        if _FILE in values:
            raise InferenceError("log file location can not be updated through network protocol", Code.UNSUPPORTED)
        fields: dict[str, Any] = {name: _switch(name, values[name]) for name in _SWITCHES if name in values}
        if _VERBOSE in values:
            fields["log_verbose"] = _level(values[_VERBOSE])
        if _FORMAT in values:
            fields["log_format"] = _format(values[_FORMAT])
        settings = replace(self._settings, **fields)
        if settings != self._settings:
            self._settings = settings
            self.verbose = settings.log_verbose > 0
            for apply in self._appliers:
                apply(settings)


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _invalid(f"expect boolean for '{name}'")
    return value


def _level(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LOG_VERBOSE_MAX:
        raise _invalid(f"expect int32 for '{_VERBOSE}'")
    return value


def _format(value: object) -> str:
    if not isinstance(value, str):
        raise _invalid(f"expect string for '{_FORMAT}'")
    if value not in LOG_FORMATS:
        raise _invalid(f"invalid argument for log_format, got: {value[:SHOWN_LENGTH_MAX]}")
    return value


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, Code.INVALID_ARG)
