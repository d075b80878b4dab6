# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses `--metrics-config=<key>=<value>`, which may be repeated; the last value of a key wins. (pure)"""

from __future__ import annotations

from typing import Any

from pyruntime.runtime.cli.options import Kind
from pyruntime.runtime.cli.parse import Value, convert
from pyruntime.runtime.settings import MetricsSettings, SettingsError
from pyruntime.runtime.suggestions import did_you_mean

_SWITCHES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_QUANTILES = "summary_quantiles"
KEYS = (*_SWITCHES, _QUANTILES)


def read_metrics_config(texts: Value) -> MetricsSettings:
    """The settings in `texts`. Raises SettingsError for any other form, unknown keys and values out of range."""
    assert isinstance(texts, list)
    fields: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise SettingsError(f"--metrics-config needs <key>=<value>, not {text!r}")
        if key not in KEYS:
            raise SettingsError(f"--metrics-config={key} is not known{did_you_mean(key, KEYS)}")
        fields[key] = _quantiles(value) if key == _QUANTILES else _switch(key, value)
    return MetricsSettings(**fields)


def _switch(key: str, text: str) -> Value:
    return convert(Kind.BOOL, text, f"--metrics-config={key}")


def _quantiles(text: str) -> tuple[tuple[float, float], ...]:
    """`0.5:0.05,0.9:0.01` -> `((0.5, 0.05), (0.9, 0.01))`."""
    pairs = []
    for pair in text.split(","):
        rank, _, error = pair.partition(":")
        try:
            pairs.append((float(rank), float(error)))
        except ValueError:
            raise SettingsError(
                f"--metrics-config=summary_quantiles needs <quantile>:<error>[,<quantile>:<error>...], not {text!r}"
            ) from None
    return tuple(pairs)
