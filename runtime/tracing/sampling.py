# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which requests are traced: the settings of the server and those of models, one above the other. (pure)

A setting of a model stands above the server's own, and that above what the command line said, until it is cleared.
Models that have no setting of their own share the server's count of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyruntime.runtime.settings import TRACE_TENSORS, TRACE_TIMESTAMPS

# The layer that is no model's.
GLOBAL = ""


@dataclass(frozen=True, slots=True)
class Values:
    """One complete set of what can be changed while the server runs."""

    levels: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int


class Sampler:
    """Picks every so-many-th request, and counts those that it may still pick: `left`, -1 for any number.

    `under_way` are picked ones whose traces are not complete yet; whoever completes them counts them down.
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
        """Whether a request can still be picked."""
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
        """Whether this request may be traced that somebody else has picked, which counts for nothing here."""
        if not (self.timestamps or self.tensors):
            return False
        self.under_way += 1
        return True

    def change(self, values: Values, recount: bool) -> None:
        """Go on with other values; `recount`: begin to count down anew."""
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
        """Who decides about requests to a model."""
        return self._samplers.get(model) or self._samplers[GLOBAL]

    def samplers(self) -> list[Sampler]:
        """All that there are."""
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
