# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families and the three kinds of metrics: counter, gauge and histogram. (pure)

Models call their operations. An operation that a kind does not support raises InferenceError (INVALID_ARG) with
Triton's message.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

from pyruntime.runtime.observe.exposition import family_head, number_text
from pyruntime.runtime.observe.metric_checks import invalid
from pyruntime.utils.errors import InferenceError

OPERATIONS = ("increment", "set", "observe")

# The size of a line without its name and labels: a suffix, `le` with its bound, the value.
_REST_OF_LINE_BYTES = 80


class Metric:
    """A counter or a gauge: one number. `references` counts the objects of models that refer to it."""

    __slots__ = ("_kind", "_value", "labels", "references", "size")

    def __init__(self, name: str, kind: str, labels: str) -> None:
        self._kind = kind
        self._value = 0.0
        self.labels = labels
        self.references = 0
        # The most bytes that the metric can have on the page.
        self.size = len(name) + len(labels.encode()) + _REST_OF_LINE_BYTES

    def increment(self, amount: float) -> None:
        """Add `amount`, which must not be negative for a counter."""
        if self._kind == "counter":
            if amount < 0:
                raise invalid(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
                )
            # A counter that is NaN or infinite would stay so forever.
            _require_finite(amount, "a counter can only be incremented by")
        self._value += amount

    def set(self, value: float) -> None:
        """Set it to `value`, which may be infinite or NaN."""
        if self._kind != "gauge":
            raise unsupported(self._kind, "set")
        self._value = value

    def observe(self, value: float) -> None:
        """Not for this kind."""
        raise unsupported(self._kind, "observe")

    def value(self) -> float:
        """The current value."""
        return self._value

    def lines(self, name: str) -> str:
        """Its sample."""
        labels = f"{{{self.labels}}}" if self.labels else ""
        return f"{name}{labels} {number_text(self._value)}\n"


class Histogram(Metric):
    """Counts observations in buckets. `bounds` increase strictly; the last bucket, above them, has no bound."""

    __slots__ = ("_bounds", "_counts", "_les", "_sum")

    def __init__(self, name: str, labels: str, bounds: list[float]) -> None:
        super().__init__(name, "histogram", labels)
        self._bounds = bounds
        self._les = [number_text(bound) for bound in (*bounds, math.inf)]
        self._counts = [0] * len(self._les)
        self._sum = 0.0
        self.size *= len(self._les) + 2

    def increment(self, amount: float) -> None:
        """Not for this kind."""
        raise unsupported("histogram", "increment")

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound is at least `value`."""
        _require_finite(value, "a histogram can only observe")
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add(self, counts: list[int], total: float) -> None:
        """Add observations made elsewhere: their number in each bucket, and their sum."""
        if len(counts) != len(self._counts) or any(count < 0 for count in counts):
            raise invalid("observations are counted by bucket, and none of the counts is negative")
        _require_finite(total, "the sum of observations can only be")
        self._counts = [count + more for count, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    def value(self) -> float:
        """Not for this kind."""
        raise unsupported("histogram", "value")

    def lines(self, name: str) -> str:
        """Its samples."""
        labels = f"{{{self.labels}}}" if self.labels else ""
        before = f"{name}_bucket{{{self.labels}{',' if self.labels else ''}le="
        totals = list(accumulate(self._counts))
        buckets = [f'{before}"{le}"}} {total}\n' for le, total in zip(self._les, totals, strict=True)]
        buckets.append(f"{name}_sum{labels} {number_text(self._sum)}\n{name}_count{labels} {totals[-1]}\n")
        return "".join(buckets)


class Family:
    """Metrics of one name and one kind, distinguished by their labels. `references` is as for a metric."""

    __slots__ = ("_head", "kind", "metrics", "name", "references", "size")

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.metrics: dict[str, Metric] = {}
        self.references = 0
        self._head = family_head(name, description, kind)
        self.size = len(self._head.encode())

    def sample_names(self) -> set[str]:
        """The names of its samples, including its own name."""
        return sample_names(self.name, self.kind)

    def new_metric(self, labels: str, bounds: list[float] | None) -> Metric:
        """A new metric of its kind, not added yet. Raises InferenceError if `bounds` are missing or not allowed."""
        if self.kind != "histogram":
            if bounds is not None:
                raise invalid("Unexpected buckets found.")
            return Metric(self.name, self.kind, labels)
        if bounds is None:
            raise invalid("Missing required buckets.")
        return Histogram(self.name, labels, bounds)

    def lines(self) -> str:
        """All its lines; "" without metrics."""
        if not self.metrics:
            return ""
        return self._head + "".join([metric.lines(self.name) for metric in self.metrics.values()])


def sample_names(name: str, kind: str) -> set[str]:
    """The names of a family's samples."""
    suffixes = ("", "_bucket", "_sum", "_count") if kind == "histogram" else ("",)
    return {name + suffix for suffix in suffixes}


def unsupported(kind: str, operation: str) -> InferenceError:
    """Triton's error for an operation that a kind of metric does not support."""
    return invalid(f"TRITONSERVER_METRIC_KIND_{kind.upper()} does not support {operation.capitalize()}")


def _require_finite(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise invalid(f"{what} a finite number, not {number_text(value)}")
