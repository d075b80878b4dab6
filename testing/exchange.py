# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One request to a model under test, with its responses as they arrive."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator

from pyruntime.stub.loader import is_own
from pyruntime.testing.contradictions import ContradictionWarning
from pyruntime.testing.request import Request
from pyruntime.testing.result import Result
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.flow_control import FlowControl
from pyruntime.utils.request_codec import WireRequest


class Exchange:
    """See the module. The model's side adds responses, the test's takes them; either from any thread."""

    # As the model's side reads it, unless it is refused.
    encoded: WireRequest

    def __init__(self, request: Request, explain: Callable[[Exchange], str], timeout_s: float) -> None:
        """`explain` describes what the model has not finished; `timeout_s` is the time limit for each response."""
        self.request = request
        self.rows = 1
        self.serial = 0
        # The model has answered to the end.
        self.is_finished = False
        # Execute has returned.
        self.is_executed = False
        # A response did not arrive within the time limit.
        self.has_timed_out = False
        # The test takes no more responses.
        self.is_dropped = False
        # The responses end only when execute has returned, so that a test sees all effects of it.
        self.waits_for_execute = True
        self._explain = explain
        self._timeout_s = timeout_s
        self._results: deque[Result] = deque()
        self._flow = FlowControl()
        # Reentrant, because senders are used by destructors.
        self._changed = threading.Condition(threading.RLock())
        self._wake: Callable[[], None] | None = None
        self._awaiting_room: list[Callable[[], None]] = []

    def refuse(self, error: InferenceError) -> None:
        """Refuse the request, as the server would."""
        self.add(Result(error=error), True)
        self.executed()

    # The model's side.

    def wait_for_room(self) -> None:
        """Wait while the test has not taken too many responses."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_dropped or self._flow.may_send(0))

    def when_room(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as `wait_for_room` would not wait."""
        with self._changed:
            if not self.has_room():
                self._awaiting_room.append(wake)
                return
        wake()

    def has_room(self) -> bool:
        """Whether `wait_for_room` would not wait."""
        with self._changed:
            return self.is_dropped or self._flow.may_send(0)

    def is_cancelled(self) -> bool:
        """Whether the test has cancelled the request."""
        return self.is_dropped or self.request.cancelled

    def add(self, result: Result | None, final: bool) -> bool:
        """A response, or None; `final` if no other follows. False if one was final before: this one is ignored."""
        with self._changed:
            if self.is_finished:
                return False
            self.is_finished = final
            if result is not None and not self.is_dropped:
                self._results.append(result)
                self._flow.sent(0, sum(len(tensor.data) for tensor in result.tensors))
        self._tell()
        return True

    def executed(self) -> None:
        """Execute has returned, or failed."""
        self.is_executed = True
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
            if not self._has_news():
                return
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    # The test's side.

    def take(self) -> Result | None:
        """Wait for the next response; None after the last one. Raises TimeoutError if it does not arrive."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, self._timeout_s):
                self.has_timed_out = True
                raise TimeoutError(
                    f"the model did not finish the request within {self._timeout_s:g} s: {self._explain(self)}"
                )
            if not self._results:
                return None
            self._flow.credit(0, 1)
            self._changed.notify_all()
            result = self._results.popleft()
        self._tell_room()
        return result

    def when_next(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as `take` would not wait."""
        with self._changed:
            if not self._has_news():
                self._wake = wake
                return
        wake()

    def drop(self) -> None:
        """Drop the remaining responses."""
        with self._changed:
            self.is_dropped = True
            self._results.clear()
        self._tell_room()
        self._tell()

    def _tell_room(self) -> None:
        with self._changed:
            waiting: list[Callable[[], None]] = []
            if self.has_room():
                waiting, self._awaiting_room = self._awaiting_room, waiting
        for wake in waiting:
            wake()

    def wait_finished(self, timeout_s: float) -> bool:
        """Wait until the model has sent the last response; False if it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_finished, timeout_s)

    def _has_news(self) -> bool:
        has_ended = self.is_finished and (self.is_executed or not self.waits_for_execute)
        return bool(self._results) or has_ended or self.is_dropped


class Responses(Iterator[Result]):
    """The responses to one request, as they arrive. A decoupled model waits while the test has not taken too many.

    An error is also a Result, with `error` set; others may follow it. An output that contradicts the configuration is
    a ContradictionWarning.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __repr__(self) -> str:
        return f"<Responses to {self._exchange.request!r}{' complete' if self.is_complete else ''}>"

    def __next__(self) -> Result:
        """Wait for the next response. Raises TimeoutError if the model does not send it in time."""
        result = self._exchange.take()
        if result is None:
            raise StopIteration
        for contradiction in result.contradictions:
            warnings.warn(contradiction, ContradictionWarning, _level_of_the_test())
        return result

    @property
    def is_complete(self) -> bool:
        """Whether the model has sent the last response, even if the test has not taken all."""
        return self._exchange.is_finished

    def cancel(self) -> None:
        """Cancel the request, see `Request.cancel`. Responses that the model sends nevertheless still arrive here."""
        self._exchange.request.cancel()

    def close(self) -> None:
        """Disconnect: cancel the request, and drop further responses. Idempotent."""
        self._exchange.drop()


def _level_of_the_test() -> int:
    """The `stacklevel` by which a warning of our caller points to the line of the test."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and not is_own(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level
