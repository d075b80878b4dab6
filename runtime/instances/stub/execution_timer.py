# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds executions of a stub that take longer than their model permits: see repository/execution_timeout.py. (pure)

An execution is a batch from its begin until `execute` has returned and all of its requests have their last responses.
One timer looks after all executions of a stub: it is set with the first of them, and then for the moment when the
oldest may be overdue. So most executions cost nothing but a comparison.

The server itself may stand still, and then find the timer before the answers that came meanwhile. So an execution that
is overdue is looked at once more, after what has arrived is read.

While a stream waits for its client the model may wait for it, in any of its executions. A client that does not read
must not end a process that others use: after such a wait all executions have the whole time again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

# The parameter of a model that sets the limit, in milliseconds.
PARAMETER = "EXECUTION_TIMEOUT_MS"
NS_PER_MS = 1_000_000
# The shortest time that the timer is set for, in seconds: event loops round times to milliseconds.
_WAIT_S_MIN = 0.001


class Timer(Protocol):
    """What `later` returns."""

    def cancel(self) -> None: ...


class Watched(Protocol):
    """The executions of a stub."""

    def executions(self) -> Iterable[tuple[int, int]]:
        """Those that have begun and not ended: each one's number, and when it began, in nanoseconds."""

    def last_wait_ns(self, now_ns: int) -> int:
        """When a stream last waited for its client, 0 if none did."""

    def expire(self, numbers: frozenset[int], limit_ms: int) -> None:
        """These executions are overdue. Called at most once: the stub is killed then."""


class ExecutionTimer:
    """See the module. `later` calls back after so many seconds, and `clock` returns the time in nanoseconds."""

    def __init__(
        self,
        limit_ms: int,
        watched: Watched,
        later: Callable[[float, Callable[[], None]], Timer],
        clock: Callable[[], int],
    ) -> None:
        self._limit_ms = limit_ms
        self._watched = watched
        self._later = later
        self._clock = clock
        self._timer: Timer | None = None
        self._is_over = False
        # Executions that were overdue when it last looked.
        self._suspects: frozenset[int] = frozenset()

    def begin(self) -> None:
        """An execution begins, or will begin when the one before it ends."""
        if self._timer is None and not self._is_over:
            self._set(self._limit_ms * NS_PER_MS)

    def stop(self) -> None:
        """The stub has ended."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, wait_ns: int) -> None:
        self._timer = self._later(max(wait_ns / 1e9, _WAIT_S_MIN), self._look)

    def _look(self) -> None:
        self._timer = None
        now_ns, limit_ns = self._clock(), self._limit_ms * NS_PER_MS
        since_ns = self._watched.last_wait_ns(now_ns)
        begins = {number: max(begin_ns, since_ns) for number, begin_ns in self._watched.executions()}
        overdue = frozenset(number for number, begin_ns in begins.items() if now_ns - begin_ns >= limit_ns)
        suspects, self._suspects = self._suspects, overdue
        if overdue & suspects:
            self._is_over = True
            self._watched.expire(overdue & suspects, self._limit_ms)
        elif begins:
            self._set(min(begins.values()) + limit_ns - now_ns)
