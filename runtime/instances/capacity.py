# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How many batches may be with an executor at a time. (pure)

One batch runs and one waits behind it: without the second, a third of the throughput is lost. Batches that run for
microseconds are worth more: every wake-up of the host or of the executor then serves several of them, which halves the
CPU per request. But what is with one executor cannot move to another that becomes idle first, so no more is given to it
than it works off in AHEAD_NS_MAX.
"""

from __future__ import annotations

CAPACITY_MIN = 2
# How much work may be with an executor, in nanoseconds.
AHEAD_NS_MAX = 500_000
# How much the latest batch counts in the average duration: an eighth.
_AVERAGE_SHIFT = 3
# The fewest batches in a sum that says more than the average until then.
_COUNTED_MIN = 8


class AdaptiveCapacity:
    """Follows the average duration of an executor's batches.

    `total` is how many batches may be with the executor now, and `average_ns` how long they take, in nanoseconds.
    """

    __slots__ = ("_is_fixed", "_max", "average_ns", "makes_calls", "total")

    def __init__(self, capacity_max: int, threads: int, is_batched: bool) -> None:
        """An executor with several `threads` is given no more batches than those can run.

        Requests that are batched had better wait in the queue, where they can still join a larger batch.
        """
        self.average_ns = AHEAD_NS_MAX
        self.makes_calls = False
        self._max = capacity_max
        self._is_fixed = threads > 1 or is_batched
        self.total = threads if self._is_fixed else CAPACITY_MIN

    def observe(self, duration_ns: int) -> None:
        """A batch took so long."""
        average_ns = self.average_ns = self.average_ns + ((duration_ns - self.average_ns) >> _AVERAGE_SHIFT)
        if self._is_fixed:
            return
        if average_ns * self._max <= AHEAD_NS_MAX:
            self.total = self._max
        else:
            self.total = max(CAPACITY_MIN, AHEAD_NS_MAX // average_ns)

    def observe_sum(self, count: int, duration_ns: int) -> None:
        """So many batches took so long in all."""
        mean_ns = duration_ns // count
        if count >= _COUNTED_MIN:
            self.average_ns = mean_ns
        self.observe(mean_ns)

    def expect_calls(self) -> None:
        """The model calls others, and waits for them: what would wait behind its batch had better wait in the queue."""
        self.makes_calls = True
        if not self._is_fixed:
            self._is_fixed = True
            self.total = 1
