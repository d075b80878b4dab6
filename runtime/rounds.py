# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Round-robin scheduling of connections whose requests wait: bounds the work of one turn of the event loop. (pure)

The connections are those of clients, or the links of stubs, whose messages wait; each kind has rounds of its own.

A read may bring thousands of requests, and one turn of the loop may bring reads of thousands of connections. In each
turn the first `AT_ONCE_MAX` reads cost no look at the clock: a connection handles the first request of such a read at
once, if requests of its kind take little time. With every other request a connection goes on only as long as the
current turn has time; then it stops reading, and waits for its slices of later turns. Questions about the server's
health are answered at once in any case.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

# The time that all connections together may take in one turn for requests that can wait, in seconds. Other clients, who
# ask for one thing at a time, are delayed by about as much; it is enough for dozens of inference requests.
TURN_S = 0.005
# The reads of one turn whose first request is handled without a look at the clock. Together they take about as long as
# `TURN_S`, and a server with fewer concurrent requests looks at the clock with one read in so many.
AT_ONCE_MAX = 50
# The time that a connection may go on when it is served in a later turn, in seconds, so that each turn serves several.
SLICE_S = 0.001


class WaitingConnection(Protocol):
    """A connection whose requests wait."""

    def take_slice(self) -> None:
        """Handle requests that wait, at least one, until `admits` says no. It must not raise."""


class Rounds:
    """See the module. `clock` returns the time in seconds; `soon` calls back in the next turn of the event loop. All
    connections together have `turn_s` seconds of each turn.

    A connection may go on without a call until the time `until`, and, which it counts itself, with the first request of
    a read as long as `at_once` is positive.
    """

    def __init__(
        self, clock: Callable[[], float], soon: Callable[[Callable[[], None]], object], turn_s: float = TURN_S
    ) -> None:
        self.until = -math.inf
        self.at_once = AT_ONCE_MAX
        self._clock = clock
        self._soon = soon
        self._turn_s = turn_s
        self._waiting: deque[WaitingConnection] = deque()
        # Whether the time of the current turn has begun; and the connection whose slice begins when it asks.
        self._is_begun = False
        self._served: WaitingConnection | None = None

    def __repr__(self) -> str:
        return f"<Rounds: {len(self._waiting)} connections wait>"

    def admits(self, connection: WaitingConnection) -> bool:
        """Whether `connection` may go on although `until` is over. If not, its `take_slice` is called in a later turn.

        It may be lost meanwhile, but must not ask again.
        """
        if connection is self._served:
            self._served = None
            self.until = self._clock() + SLICE_S
            return True
        if self._is_begun:
            self._waiting.append(connection)
            return False
        self._is_begun = True
        self.until = self._clock() + self._turn_s
        self._soon(self._serve)
        return True

    def _serve(self) -> None:
        """Begin a turn: serve connections that wait, in order, each for a slice."""
        waiting = self._waiting
        self._is_begun = bool(waiting)
        if not waiting:
            self.at_once = AT_ONCE_MAX
            return
        self._soon(self._serve)
        # Those that wait have slices. What else arrives in this turn is handled at once as in any turn.
        self.at_once = 0
        now = self._clock()
        end = now + self._turn_s
        while waiting and now < end:
            self._served = connection = waiting.popleft()
            self.until = -math.inf
            connection.take_slice()
            now = self._clock()
        self._served = None
        self.at_once = AT_ONCE_MAX
