# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the streams of a connection that make no progress. (pure)

A client that stops within a message, or opens no window for its responses, occupies memory, while pings or other calls
keep its connection alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyruntime.runtime.frontends.grpc.keepalive import STALLED_S_MAX

# The longest pause within a message, in seconds.
HALF_MESSAGE_S_MAX = 30.0
# A client that reads so slowly, in bytes a second, is not stuck.
READ_BYTES_PER_S_MIN = 500
# The bytes of a stream that a client may have taken and not read. gRPC's clients open windows of 4 MiB where a response
# begins fast, and open them further only when much of that is read.
TAKEN_BYTES_MAX = 4 << 20

# The streams on which the client stopped sending, and those on which it stopped reading.
Stalled = tuple[list[int], list[int]]


class Stalls:
    """The stalls of one connection. Times are in seconds, on any clock that never goes back."""

    def __init__(self) -> None:
        # By stream: the bytes received or sent, and the time when that count was first seen.
        self._incoming: dict[int, tuple[int, float]] = {}
        self._outgoing: dict[int, tuple[int, float]] = {}

    def look(self, now: float, waiting: Iterable[tuple[int, int, int]], *, moves: bool = False) -> Stalled:
        """The streams that have made no progress for too long. `waiting`: see Session in native/_http2.pyi.

        `moves`: the client reads what lies before all of them, so none of them is stuck.
        """
        rows = list(waiting)
        incoming = ((stream, taken) for stream, taken, _ in rows)
        self._incoming, silent = _compare(now, self._incoming, incoming, lambda _: HALF_MESSAGE_S_MAX)
        if moves:
            self._outgoing.clear()
        outgoing = ((stream, sent) for stream, _, sent in rows)
        self._outgoing, stuck = _compare(now, self._outgoing, outgoing, stuck_after)
        return silent, stuck


def stuck_after(sent: int) -> float:
    """After how many seconds a stream is stuck of which `sent` bytes were sent, while its window stays closed."""
    return max(STALLED_S_MAX, min(sent, TAKEN_BYTES_MAX) / READ_BYTES_PER_S_MIN)


def _compare(
    now: float,
    before: dict[int, tuple[int, float]],
    counts: Iterable[tuple[int, int]],
    limit_s: Callable[[int], float],
) -> tuple[dict[int, tuple[int, float]], list[int]]:
    seen = {}
    stalled = []
    for stream, count in counts:
        if count < 0:
            continue
        last = before.get(stream)
        if last is None or last[0] != count:
            last = (count, now)
        elif now - last[1] >= limit_s(count):
            stalled.append(stream)
        seen[stream] = last
    return seen, stalled
