# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The number of batches that an executor may have at a time. (pure)

One batch runs and one waits behind it: without the second, a third of the throughput is lost. Of batches that run for
microseconds an executor gets more: each wake-up of the host or of the executor then serves several of them, which
halves the CPU time per request. But a batch cannot move to another executor that becomes idle first, so an executor
gets at most AHEAD_NS_MAX of work.
"""

from __future__ import annotations

CAPACITY_MIN = 2
# How much work an executor may have, in nanoseconds.
AHEAD_NS_MAX = 500_000
# The weight of the latest batch in the average duration, as a shift: an eighth.
_AVERAGE_SHIFT = 3
# The mean of at least so many batches replaces the average.
_COUNTED_MIN = 8


class AdaptiveCapacity:
    """Follows the average duration of an executor's batches.

    `total` is how many batches the executor may have now; `average_ns` is their average duration, in nanoseconds.
    """

    __slots__ = ("_is_fixed", "_max", "_paused", "average_ns", "makes_calls", "total")

    def __init__(self, capacity_max: int, threads: int, none_ahead: bool) -> None:
        """An executor with several `threads` gets no more batches than those can run.

        Nor does one with `none_ahead`: if its requests are batched, those in the queue can still join a larger batch,
        and if it shares resources with others, a batch must not begin before it is granted them.
        """
        self.average_ns = AHEAD_NS_MAX
        self.makes_calls = False
        self._max = capacity_max
        self._is_fixed = threads > 1 or none_ahead
        self.total = threads if self._is_fixed else CAPACITY_MIN
        # What holds again after a pause.
        self._paused = self._is_fixed, self.total

    def observe(self, duration_ns: int) -> None:
        """Record that a batch took `duration_ns`."""
        average_ns = self.average_ns = self.average_ns + ((duration_ns - self.average_ns) >> _AVERAGE_SHIFT)
        if self._is_fixed:
            return
        if average_ns * self._max <= AHEAD_NS_MAX:
            self.total = self._max
        else:
            self.total = max(CAPACITY_MIN, AHEAD_NS_MAX // average_ns)

    def observe_sum(self, count: int, duration_ns: int) -> None:
        """Record that `count` batches took `duration_ns` in total."""
        mean_ns = duration_ns // count
        if count >= _COUNTED_MIN:
            self.average_ns = mean_ns
        self.observe(mean_ns)

    def expect_calls(self) -> None:
        """The model waits for calls to other models, so no batch may wait behind its batch from now on."""
        self.makes_calls = True
        if not self._is_fixed:
            self._is_fixed = True
            self.total = 1

    def pause(self) -> None:
        """Give the executor no more batches until `resume`."""
        self._paused = self._is_fixed, self.total
        self._is_fixed, self.total = True, 0

    def resume(self) -> None:
        """Give it batches again."""
        self._is_fixed, self.total = self._paused
        if self.makes_calls:
            self.expect_calls()
