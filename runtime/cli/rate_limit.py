# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads `--rate-limit` and `--rate-limit-resource`. (pure)"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.config.rate_limits import amount_of
from pyruntime.runtime.settings import ResourceLimit, SettingsError

_MODES = {"off": False, "execution_count": True}
# As in Triton, which reads ints.
DEVICE_MAX = (1 << 31) - 1


def read_rate_limit(text: str) -> bool:
    """Whether executions are limited. Raises SettingsError."""
    if text.lower() not in _MODES:
        raise SettingsError(f"invalid argument for --rate-limit: {text!r}; it is off or execution_count")
    return _MODES[text.lower()]


def read_rate_limit_resources(texts: Iterable[str]) -> tuple[ResourceLimit, ...]:
    """`["R1:4", "R2:8G:0"]` -> the limits; of a resource that is given twice, the smaller. Raises SettingsError."""
    limits: dict[tuple[str, int | None], int] = {}
    for text in texts:
        name, *numbers = text.split(":")
        if not name or not 1 <= len(numbers) <= 2:
            raise SettingsError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                f"'<resource_name>:<count>'. Got {text}"
            )
        count = amount_of(numbers[0])
        if count is None:
            raise _invalid(numbers[0], "a count, or a size as in 8G")
        device = _device(numbers[1]) if numbers[1:] else None
        key = name, device
        limits[key] = min(count, limits.get(key, count))
    return tuple(ResourceLimit(name, count, device) for (name, device), count in limits.items())


def _device(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _invalid(text, "the number of a device")
    if len(text) > len(str(DEVICE_MAX)) or int(text) > DEVICE_MAX:
        raise SettingsError(f"--rate-limit-resource: Provided option value is out of bound. Got {text}")
    return int(text)


def _invalid(text: str, expected: str) -> SettingsError:
    return SettingsError(f"--rate-limit-resource: Invalid option value. Got {text}; it must be {expected}")
