# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps responses in the order in which their requests left the queue, for `preserve_ordering`. (pure)

A response that is made too early is held until all responses of the requests before it were given. Requests that are
refused, cancelled or expired while they queue have no place in the order: they are answered at once. As in Triton, a
request that a response cache answers has the place of the moment in which it is found there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pyruntime.runtime.execution.job import Job, Relay, Respond
from pyruntime.runtime.requests.types import InferResponse, keep_open
from pyruntime.utils.errors import InferenceError

# No further request leaves the queue while so many responses are held: their outputs occupy shared memory.
HELD_MAX = 1024


class ResponseOrder:
    """The responses of one model version, or of one of its instances.

    `on_room` is called when it is no longer full.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        self._turns: deque[_Turn] = deque()
        self._is_giving = False
        self._held = 0

    @property
    def is_full(self) -> bool:
        """Whether so many responses are held that no further request may begin."""
        return self._held >= HELD_MAX

    def begin(self, job: Job) -> None:
        """A job leaves the queue. It keeps its place if it queues again and comes back."""
        respond = job.respond
        if not isinstance(respond, Relay):
            job.respond = self._turn(respond)
        elif not isinstance(respond, _Turn) and not isinstance(respond.client, _Turn):
            # A cache keeps the response before its turn, because that may take any time.
            respond.client = self._turn(respond.client)

    def _turn(self, client: Respond) -> _Turn:
        turn = _Turn(self, client)
        self._turns.append(turn)
        return turn

    def is_early(self, turn: _Turn) -> bool:
        """Whether a response of this request has to wait."""
        return self._is_giving or self._turns[0] is not turn

    def give(self) -> None:
        """Give the responses whose turn it is."""
        if self._is_giving:  # called by a client that got a response just now
            return
        self._is_giving = True
        was_full = self.is_full
        turns = self._turns
        while turns and turns[0].held:
            turn = turns[0]
            outcome, final = turn.held.popleft()
            self._held -= 1
            if final:
                turns.popleft()
            turn.client(outcome, final)
        self._is_giving = False
        if was_full and not self.is_full:
            self._on_room()

    def hold(self) -> None:
        """A response is there."""
        self._held += 1


class _Turn(Relay):
    """The place of one request in the order: takes its responses, and holds those that are early."""

    __slots__ = ("_order", "held")

    def __init__(self, order: ResponseOrder, client: Respond) -> None:
        super().__init__(client)
        self._order = order
        self.held: deque[tuple[InferResponse | InferenceError | None, bool]] = deque()

    def __call__(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""
        if isinstance(outcome, InferResponse) and self._order.is_early(self):
            keep_open(outcome)
        self.held.append((outcome, final))
        self._order.hold()
        self._order.give()
