# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Virtual time: one clock in place of all functions of the module `time` that the product reads."""

# The clocks begin here, in nanoseconds: the monotonic one and the one of the wall.
MONOTONIC_BEGIN_NS = 1_000_000_000_000
WALL_BEGIN_NS = 1_700_000_000_000_000_000


class Clock:
    """See the module. `now_ns` is the monotonic time; it moves only by `advance`. `wall_jump_ns` moves the wall's."""

    def __init__(self):
        self.begin()

    def begin(self):
        """Begin another scenario."""
        self.now_ns = MONOTONIC_BEGIN_NS
        self.wall_jump_ns = 0

    def __repr__(self):
        return f"<Clock {(self.now_ns - MONOTONIC_BEGIN_NS) / 1e9:.6f} s>"

    def monotonic_ns(self):
        return self.now_ns

    def monotonic(self):
        return self.now_ns / 1e9

    def time_ns(self):
        return self.now_ns - MONOTONIC_BEGIN_NS + WALL_BEGIN_NS + self.wall_jump_ns

    def time(self):
        return self.time_ns() / 1e9

    def advance(self, seconds):
        """Move on by this time, rounded up, so that a timer that is waited for is due afterwards."""
        self.now_ns += int(seconds * 1e9) + 1
