# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes quantiles of latencies over the last minute, in microseconds. (pure)

A summary counts values in cells. The width of a cell is a 64th of its values, at least a microsecond, so a quantile has
the exact rank and at most 1 % error, and recording a value costs two dictionary look-ups. The caller must call `turn`
every TURN_S seconds; it forgets the values that are SLICES turns old.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from pyruntime.runtime.observe.exposition import number_text

# A minute in five slices, as in Triton: a value counts for 48 to 60 seconds.
SLICES = 5
TURN_S = 12.0

# Each value below it has its own cell. Above it, there are half as many cells for each doubling.
_EXACT_BELOW = 128
_EXACT_BITS = 7


def cell_of(value: int) -> int:
    """The number of the cell that counts `value`, which is 0 or more. Larger values have larger numbers."""
    if value < _EXACT_BELOW:
        return value
    shift = value.bit_length() - _EXACT_BITS
    return (shift << (_EXACT_BITS - 1)) + (value >> shift)


def value_of(cell: int) -> float:
    """The middle of a cell."""
    if cell < _EXACT_BELOW:
        return float(cell)
    shift = (cell >> (_EXACT_BITS - 1)) - 1
    low = (cell - (shift << (_EXACT_BITS - 1))) << shift
    return low + ((1 << shift) - 1) / 2


class Summary:
    """The count and sum of all values, and the quantiles of the latest ones. Values are in nanoseconds."""

    __slots__ = ("_cells", "_slices", "count", "sum_us")

    def __init__(self) -> None:
        self.count = self.sum_us = 0
        self._cells: dict[int, int] = {}
        self._slices = deque([self._cells], SLICES)

    def observe(self, ns: int) -> None:
        """Record a value. Negative values, which clock readings of two processes may give, count as 0."""
        us = ns // 1000 if ns > 0 else 0
        self.count += 1
        self.sum_us += us
        cell = cell_of(us)
        cells = self._cells
        cells[cell] = cells.get(cell, 0) + 1

    def turn(self) -> None:
        """TURN_S are over."""
        self._cells = {}
        self._slices.append(self._cells)

    def quantiles(self, ranks: Iterable[float]) -> list[float]:
        """The microseconds at each rank, from 0.0 to 1.0, over the last minute; NaN if there are no values."""
        cells: Counter[int] = Counter()
        for part in self._slices:
            cells.update(part)
        total, ordered = cells.total(), sorted(cells.items())
        return [_at(ordered, rank * total) for rank in ranks]

    def lines(self, name: str, labels: str, ranks: Iterable[float]) -> str:
        """Its samples; `labels` precede the label `quantile`."""
        ranks = list(ranks)
        values = zip(ranks, self.quantiles(ranks), strict=True)
        quantiles = [
            f'{name}{{{labels},quantile="{number_text(rank)}"}} {number_text(value)}\n' for rank, value in values
        ]
        return f"{name}_count{{{labels}}} {self.count}\n{name}_sum{{{labels}}} {self.sum_us}\n" + "".join(quantiles)


class Latencies:
    """The summaries of one model version: of whole requests, and of the steps of a request."""

    __slots__ = ("cache_hit", "cache_miss", "infer", "input", "output", "queue", "request")

    def __init__(self) -> None:
        self.request = Summary()
        self.queue = Summary()
        self.input = Summary()
        self.infer = Summary()
        self.output = Summary()
        self.cache_hit = Summary()
        self.cache_miss = Summary()

    def observe_hit(self, total_ns: int, queue_ns: int, hit_ns: int) -> None:
        """One request was answered from the response cache."""
        self.request.observe(total_ns)
        self.queue.observe(queue_ns)
        self.cache_hit.observe(hit_ns)

    def observe(self, total_ns: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """One request was answered."""
        self.request.observe(total_ns)
        self.queue.observe(queue_ns)
        self.input.observe(input_ns)
        self.infer.observe(infer_ns)
        self.output.observe(output_ns)

    def turn(self) -> None:
        """TURN_S are over."""
        for summary in (
            self.request,
            self.queue,
            self.input,
            self.infer,
            self.output,
            self.cache_hit,
            self.cache_miss,
        ):
            summary.turn()


def _at(cells: list[tuple[int, int]], position: float) -> float:
    """The value at a position in the sorted values of all `cells`."""
    seen = 0
    for cell, count in cells:
        seen += count
        if seen >= position:
            return value_of(cell)
    return float("nan")
