# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the streams of a connection that make no progress. (pure)

A client that stops within a message, or opens no window for its responses, occupies memory, while pings or other calls
keep its connection alive.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.frontends.grpc.keepalive import STALLED_S_MAX

# The longest pause within a message, in seconds.
HALF_MESSAGE_S_MAX = 30.0

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
        self._incoming, silent = _compare(now, self._incoming, incoming, HALF_MESSAGE_S_MAX)
        if moves:
            self._outgoing.clear()
        outgoing = ((stream, sent) for stream, _, sent in rows)
        self._outgoing, stuck = _compare(now, self._outgoing, outgoing, STALLED_S_MAX)
        return silent, stuck


def _compare(
    now: float, before: dict[int, tuple[int, float]], counts: Iterable[tuple[int, int]], limit_s: float
) -> tuple[dict[int, tuple[int, float]], list[int]]:
    seen = {}
    stalled = []
    for stream, count in counts:
        if count < 0:
            continue
        last = before.get(stream)
        if last is None or last[0] != count:
            last = (count, now)
        elif now - last[1] >= limit_s:
            stalled.append(stream)
        seen[stream] = last
    return seen, stalled
