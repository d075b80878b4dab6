# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what the instances of a group need of the resources that they share. (pure)

need := name, with `count`                   as in Triton
need := name ":" number ("K"|"M"|"G"|"T")    bytes, for example `memory:8G`: `count` has 32 bits only
"""

from __future__ import annotations

import re

from pyruntime.runtime.config.schema import Config
from pyruntime.utils.errors import ConfigError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})([KMGT]?)")
_NEED = re.compile(r"(.+):([0-9]{1,18}[KMGT])", re.DOTALL)


def amount_of(text: str) -> int | None:
    """A count or a size (`8G` is 8 * 2**30) as a number; None if it is neither."""
    found = _SIZE.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def resource_needs(limiter: Config) -> tuple[tuple[str, bool, int], ...]:
    """What an execution needs: see InstanceSpec. A resource of which it needs nothing is left out."""
    needs = []
    for resource in limiter.resources:
        sized = _NEED.fullmatch(resource.name)
        name, count = (resource.name, resource.count) if sized is None else (sized[1], amount_of(sized[2]) or 0)
        if count:
            needs.append((name, getattr(resource, "global"), count))
    return tuple(needs)


def check_rate_limiter(model: str, limiter: Config) -> None:
    """Raise ConfigError for a resource with both a size and a count."""
    for resource in limiter.resources:
        if resource.count and _NEED.fullmatch(resource.name) is not None:
            raise ConfigError(
                f"model '{model}' has a resource '{resource.name}' with a size in its name and with count "
                f"{resource.count}; give one of them"
            )
