# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses `--trace-config` and the older options for traces. (pure)

setting := "mode=" mode | "level=" level | "rate=" number | "count=" number
         | "triton," ("file=" path | "log-frequency=" number)
         | "opentelemetry," ("url=" url | "resource=" name "=" value | "bsp_max_queue_size=" number
                             | "bsp_schedule_delay=" milliseconds | "bsp_max_export_batch_size=" number)

`level` and `resource` may be repeated: all of them count, except levels before an OFF. Of any other setting the last
one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyruntime.runtime.cli.parse import Value
from pyruntime.runtime.settings import TRACE_MODES, TRACE_TRITON, SettingsError, TraceSettings
from pyruntime.runtime.suggestions import did_you_mean
from pyruntime.runtime.tracing.values import UINT32_MAX, read_count, read_levels, read_log_frequency, read_rate

# The older options, and the settings that they are aliases of.
OLDER = {
    "trace-file": "triton,file",
    "trace-level": "level",
    "trace-rate": "rate",
    "trace-count": "count",
    "trace-log-frequency": "triton,log-frequency",
}


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= UINT32_MAX:
        raise ValueError(f"it needs an integer from 1 to {UINT32_MAX}, not {text!r}")
    return int(text)


def _mode(text: str) -> str:
    if text.lower() not in TRACE_MODES:
        raise ValueError(f"it needs {' or '.join(TRACE_MODES)}, not {text!r}")
    return text.lower()


def _some(text: str) -> str:
    if not text:
        raise ValueError("it needs a value")
    return text


# For each setting the field of TraceSettings, and the function that parses its text.
_SETTINGS: dict[str, tuple[str, Callable[[str], object]]] = {
    "mode": ("mode", _mode),
    "rate": ("rate", read_rate),
    "count": ("count", read_count),
    "triton,file": ("file", str),
    "triton,log-frequency": ("log_frequency", read_log_frequency),
    "opentelemetry,url": ("url", _some),
    "opentelemetry,bsp_max_queue_size": ("queue_max", _at_least_one),
    "opentelemetry,bsp_schedule_delay": ("schedule_delay_ms", _at_least_one),
    "opentelemetry,bsp_max_export_batch_size": ("export_batch_max", _at_least_one),
}
_LEVEL, _RESOURCE, _TRIGGER = "level", "opentelemetry,resource", "opentelemetry,trigger"
_KNOWN = (*_SETTINGS, _LEVEL, _RESOURCE)


def read_trace_config(values: Mapping[str, Value], warnings: list[str]) -> TraceSettings:
    """The trace settings in `values`. Adds a message to `warnings` for each setting without effect.

    Raises SettingsError for invalid values.
    """
    fields: dict[str, Any] = {}
    levels: list[str] = []
    resource: dict[str, str] = {}
    for option, setting, text in _given(values):
        try:
            if setting == _LEVEL:
                levels = [*levels, text] if read_levels([text]) else []
            elif setting == _RESOURCE:
                name, equals, value = text.partition("=")
                if not name or not equals:
                    raise ValueError(f"it needs <name>=<value>, not {text!r}")
                resource[name] = value
            elif setting == _TRIGGER:
                warnings.append(f"--{option}={_TRIGGER} has no effect: what a client traces itself is always traced")
            elif setting in _SETTINGS:
                field, read = _SETTINGS[setting]
                fields[field] = read(text)
            else:
                warnings.append(f"--{option}={setting} is not known and has no effect{did_you_mean(setting, _KNOWN)}")
        except ValueError as exc:
            raise SettingsError(f"--{option}{f'={setting}' if option == 'trace-config' else ''}: {exc}") from None
    fields["levels"] = read_levels(levels)
    settings = TraceSettings(**fields, resource=tuple(resource.items()))
    if settings.levels and settings.mode == TRACE_TRITON and not settings.file:
        warnings.append("no request is traced: --trace-config=triton,file=<path> must say where traces go")
    return settings


def _given(values: Mapping[str, Value]) -> list[tuple[str, str, str]]:
    """(option, setting, text) of all given settings; the older options come first, so that --trace-config wins."""
    given = []
    for option, setting in OLDER.items():
        value = values.get(option, [])
        given += [(option, setting, str(each)) for each in (value if isinstance(value, list) else [value])]
    texts = values.get("trace-config", [])
    assert isinstance(texts, list)
    for text in texts:
        setting, _, value = text.partition("=")
        given.append(("trace-config", setting, value))
    return given
