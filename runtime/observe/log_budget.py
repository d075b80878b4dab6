# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Limits the bytes that a model may log: a token bucket. (pure)

A model may log a burst, and on average so many bytes a second. A model that exceeds this is silenced until it has
tokens for a while again, so that what is logged are some pieces of its output, and not single lines of it.
"""

from __future__ import annotations

# On average, for each instance: 22 GB a day.
LOG_BYTES_PER_S = 256 << 10
# At once. Enough for a model that describes all its layers when it loads.
LOG_BURST_BYTES = 1 << 20
# How long a model is silenced.
SILENCE_S = 1.0


class LogBudget:
    """The budget of one instance. Times are in seconds, of any clock that does not go back."""

    def __init__(self, now_s: float) -> None:
        self._left = float(LOG_BURST_BYTES)
        self._seen_s = now_s
        self._is_spent = False
        self._dropped = 0

    def is_spent(self, now_s: float) -> bool:
        """Whether nothing may be logged now."""
        self._left = min(self._left + (now_s - self._seen_s) * LOG_BYTES_PER_S, LOG_BURST_BYTES)
        self._seen_s = now_s
        if self._left >= SILENCE_S * LOG_BYTES_PER_S:
            self._is_spent = False
        return self._is_spent

    def spend(self, size: int, now_s: float) -> bool:
        """Whether `size` bytes may be logged now: they are counted as logged, or as dropped."""
        if self.is_spent(now_s):
            self._dropped += size
            return False
        self._left -= size
        self._is_spent = self._left <= 0
        return True

    def drop(self, size: int) -> None:
        """Count `size` bytes that are not logged."""
        self._dropped += size

    def take_dropped(self) -> int:
        """How many bytes were dropped since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped
