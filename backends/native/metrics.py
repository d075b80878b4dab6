# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Shows the metrics of a backend in this process on the server's page, like the metrics of a Python model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyruntime.stub.host import Host
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils import MetricFamily, TritonModelException
from pyruntime.stub.pb_utils.metrics import Metric, MetricKind

# The bounds of the buckets; the cumulative counts of the buckets, the last one for all; the sum; the count.
Histogram = tuple[list[float], list[int], float, int]
_NO_HISTOGRAM: Histogram = ([], [], 0.0, 0)
_BY_NUMBER = (MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM)


class _Shown:
    """A metric of the server, and its value there."""

    __slots__ = ("metric", "value")

    def __init__(self, metric: Metric, value: Any) -> None:
        self.metric = metric
        self.value = value


class NativeMetrics:
    """See the module. `read` returns the metrics of this process."""

    def __init__(self, read: Callable[[], list[tuple[str, int, str, list[tuple[dict[str, str], Any]]]]]) -> None:
        self._read = read
        self._families: dict[str, MetricFamily] = {}
        self._shown: dict[str, dict[tuple[tuple[str, str], ...], _Shown]] = {}
        self._refused: set[str] = set()

    def show(self, host: Host) -> bool:
        """Send the changes since the last call to the server. Returns whether there are metrics."""
        families = self._read()
        for name in self._families.keys() - {name for name, *_ in families}:
            del self._shown[name], self._families[name]
        for name, kind, description, metrics in families:
            if name in self._refused:
                continue
            try:
                self._show_family(host, name, _BY_NUMBER[kind], description, metrics)
            except TritonModelException as exc:
                self._refused.add(name)
                LOGGER.error("metric family '%s' of a native backend cannot be shown: %s", name, exc)
        return bool(families)

    def _show_family(
        self, host: Host, name: str, kind: MetricKind, description: str, metrics: list[tuple[dict[str, str], Any]]
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = MetricFamily(name, description, kind)
            self._shown[name] = {}
        shown = self._shown[name]
        found = {tuple(sorted(labels.items())): value for labels, value in metrics}
        for labels in shown.keys() - found.keys():
            del shown[labels]
        for labels, value in found.items():
            if labels not in shown:
                buckets = list(value[0]) if kind is MetricKind.HISTOGRAM else None
                nothing = _NO_HISTOGRAM if kind is MetricKind.HISTOGRAM else 0.0
                shown[labels] = _Shown(family.Metric(dict(labels), buckets), nothing)
            if (each := shown[labels]).value != value:
                _update(host, each.metric, kind, each.value, value)
                each.value = value


def _update(host: Host, metric: Metric, kind: MetricKind, before: Any, now: Any) -> None:
    if kind is MetricKind.GAUGE:
        metric.set(now)
    elif kind is MetricKind.COUNTER:
        metric.increment(now - before)
    else:
        host.tell("add_observations", [metric._number, *_difference(before, now)])


def _difference(before: Histogram, now: Histogram) -> tuple[list[int], float]:
    """The observations in between: their number in each bucket, and their sum."""
    old = before[1] or [0] * len(now[1])
    rises = [count - less for count, less in zip(now[1], old, strict=True)]
    return [rise - lower for rise, lower in zip(rises, [0, *rises[:-1]], strict=True)], now[2] - before[2]
