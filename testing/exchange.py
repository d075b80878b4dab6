# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One request while a model under test has it: its responses as they come, and who waits for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pyruntime.stub.windows import Windows
from pyruntime.testing.request import Request
from pyruntime.testing.result import Result


class Exchange:
    """See the module. The model's side adds responses, the test's takes them; either from any thread."""

    def __init__(self, request: Request, wire: list[Any], explain: Callable[[], str], timeout_s: float) -> None:
        """`wire` is the request as the model's side reads it. `explain` says what the model does now."""
        self.request = request
        self.wire = wire
        self.serial = 0
        # Execute has returned, and left it to a sender to answer.
        self.is_left_to_sender = False
        self.is_finished = False
        # Nobody takes responses any longer.
        self.is_dropped = False
        self._explain = explain
        self._timeout_s = timeout_s
        self._results: deque[Result] = deque()
        self._windows = Windows()
        # Reentrant, because senders are used by destructors.
        self._changed = threading.Condition(threading.RLock())
        self._wake: Callable[[], None] | None = None

    # The model's side.

    def wait_for_room(self) -> None:
        """Wait while too many responses are there that nobody has taken."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_dropped or self._windows.is_open(0))

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the request any longer."""
        return self.is_dropped or self.request.cancelled

    def add(self, result: Result | None, final: bool) -> None:
        """A response, or None; `final` if no other follows. What comes after that is ignored."""
        with self._changed:
            if self.is_finished:
                return
            self.is_finished = final
            if result is not None and not self.is_dropped:
                self._results.append(result)
                self._windows.sent(0, sum(len(tensor.data) for tensor in result.tensors))
            wake, self._wake = self._wake, None
            self._changed.notify_all()
        if wake is not None:
            wake()

    # The test's side.

    def take(self) -> Result | None:
        """The next response, waiting for it; None after the last one. Raises TimeoutError if it does not come."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, self._timeout_s):
                raise TimeoutError(f"{self._explain()} within {self._timeout_s:g} s")
            if not self._results:
                return None
            self._windows.taken(0, 1)
            self._changed.notify_all()
            return self._results.popleft()

    def when_next(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as `take` would not wait."""
        with self._changed:
            if not self._has_news():
                self._wake = wake
                return
        wake()

    def drop(self) -> None:
        """Nobody waits for the rest of it."""
        with self._changed:
            self.is_dropped = True
            self._results.clear()
            self._changed.notify_all()

    def wait_finished(self, timeout_s: float) -> bool:
        """Wait until the model has answered to the end; False if it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_finished, timeout_s)

    def _has_news(self) -> bool:
        return bool(self._results) or self.is_finished or self.is_dropped


class Responses(Iterator[Result]):
    """The responses to one request, as they come. A decoupled model waits while too many of them are not taken.

    A response that is an error is a Result too: its `error` says so, and others may follow.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __repr__(self) -> str:
        return f"<Responses to {self._exchange.request!r}{' complete' if self.is_complete else ''}>"

    def __next__(self) -> Result:
        """The next response, waiting for it. Raises TimeoutError if the model does not send it in time."""
        result = self._exchange.take()
        if result is None:
            raise StopIteration
        return result

    @property
    def is_complete(self) -> bool:
        """Whether the model has said that no other response follows, though some may not be taken yet."""
        return self._exchange.is_finished

    def cancel(self) -> None:
        """Cancel the request, see `Request.cancel`. What the model sends all the same still comes here."""
        self._exchange.request.cancel()

    def close(self) -> None:
        """Hang up: the model can see it, and what still comes is dropped. Idempotent."""
        self._exchange.drop()
