# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the requests of each priority level of a queue. (pure)

Only models with `priority_levels` have levels, and only requests that queue are counted: those that an answer of the
response cache saves from that never have a level.
"""

from __future__ import annotations

from collections.abc import Mapping

# Each level is several time series in Prometheus. A model may have 2**32 levels; those above this one count together.
LEVELS_SHOWN_MAX = 32


class LevelStatistics:
    """The requests of one level, or of several. All but `waiting` only grow.

    `taken_count` requests were given to an instance after they had waited for `wait_s` seconds, all of them together. A
    request that went back to the queue counts again. `rejected_count` requests found the queue full, and
    `timed_out_count` waited longer than the policy of the level permits: they failed, or were put behind the others.
    """

    __slots__ = ("rejected_count", "taken_count", "timed_out_count", "wait_s", "waiting")

    def __init__(self) -> None:
        self.waiting = self.rejected_count = self.taken_count = self.timed_out_count = 0
        self.wait_s = 0.0

    def add(self, other: LevelStatistics) -> None:
        """Add the requests of another level."""
        self.waiting += other.waiting
        self.rejected_count += other.rejected_count
        self.taken_count += other.taken_count
        self.timed_out_count += other.timed_out_count
        self.wait_s += other.wait_s


def shown_levels(levels: int, used: Mapping[int, LevelStatistics]) -> dict[str, LevelStatistics]:
    """What is shown of a queue with `levels` levels, by the names of levels; `used` are those that had a request.

    Levels that had none are shown too, because a rate needs a first sample. Those above LEVELS_SHOWN_MAX are one.
    """
    shown = {str(number): LevelStatistics() for number in range(1, min(levels, LEVELS_SHOWN_MAX) + 1)}
    if levels > LEVELS_SHOWN_MAX:
        shown["more"] = LevelStatistics()
    for number, level in used.items():
        shown.get(str(number), shown.get("more", LevelStatistics())).add(level)
    return shown
