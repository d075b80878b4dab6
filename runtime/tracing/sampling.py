# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which requests are traced, by settings in layers: command line, server, model. (pure)

A setting of a model overrides the server's, which overrides the command line's, until a client clears it. Models
without settings of their own share the server's count of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyruntime.runtime.settings import TRACE_TENSORS, TRACE_TIMESTAMPS

# The key of the server's layer; no model has an empty name.
GLOBAL = ""


@dataclass(frozen=True, slots=True)
class Values:
    """One complete set of the settings that can change at run time."""

    levels: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int


class Sampler:
    """Picks every n-th request. `left` counts the requests that it may still pick, -1 for any number.

    `under_way` counts the picked requests whose traces are not complete; `Buckets.add` decrements it.
    """

    __slots__ = ("_seen", "left", "tensors", "timestamps", "under_way", "values")

    def __init__(self, values: Values) -> None:
        self.under_way = 0
        self._seen = 0
        self.values = values
        self.left = values.count
        self._apply(values)

    @property
    def is_on(self) -> bool:
        """Whether it may still pick a request."""
        return (self.timestamps or self.tensors) and self.left != 0

    def pick(self) -> bool:
        """Whether this request is to be traced."""
        if not self.is_on:
            return False
        self._seen += 1
        if self._seen < self.values.rate:
            return False
        self._seen = 0
        if self.left > 0:
            self.left -= 1
        self.under_way += 1
        return True

    def force(self) -> bool:
        """Whether to trace a request that another service has picked. It does not count for the rate."""
        if not (self.timestamps or self.tensors):
            return False
        self.under_way += 1
        return True

    def change(self, values: Values, recount: bool) -> None:
        """Use other values; `recount` restarts the count."""
        if recount or values.count != self.values.count:
            self.left = values.count
        if values.rate != self.values.rate:
            self._seen = 0
        self._apply(values)

    def _apply(self, values: Values) -> None:
        self.values = values
        self.timestamps = TRACE_TIMESTAMPS in values.levels
        self.tensors = TRACE_TENSORS in values.levels


class Layers:
    """See the module."""

    def __init__(self, base: Values) -> None:
        self._base = base
        self._settings: dict[str, dict[str, Any]] = {GLOBAL: {}}
        self._samplers = {GLOBAL: Sampler(base)}

    def sampler(self, model: str) -> Sampler:
        """The sampler for requests to a model."""
        return self._samplers.get(model) or self._samplers[GLOBAL]

    def samplers(self) -> list[Sampler]:
        """All samplers."""
        return list(self._samplers.values())

    def change(self, layer: str, changes: Mapping[str, Any]) -> None:
        """Set some of the fields of Values for a model, or for GLOBAL; None clears one."""
        settings = {**self._settings.get(layer, {}), **changes}
        self._settings[layer] = {name: value for name, value in settings.items() if value is not None}
        if layer != GLOBAL and not self._settings[layer]:
            del self._settings[layer]
            self._samplers.pop(layer, None)
        elif layer not in self._samplers:
            self._samplers[layer] = Sampler(self._values(layer))
        for name, sampler in self._samplers.items():
            sampler.change(self._values(name), recount=name == layer and "count" in changes)

    def _values(self, layer: str) -> Values:
        return replace(self._base, **self._settings[GLOBAL] | self._settings[layer])
