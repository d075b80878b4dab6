# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps responses in the order in which their requests left the queue, for `preserve_ordering`. (pure)

A response that is made too early is held until all responses of the requests before it were given. Requests that are
refused, cancelled or expired while they queue have no place in the order: they are answered at once. As in Triton, a
request that a response cache answers has the place of the moment in which it is found there.

A decoupled model may send its responses from one thread, which must not wait for the client of a later request: it may
be the one that answers the first request. So a response that is held counts as taken, see InferResponse. A request for
which too much is held fails instead, and what is held for it is released. When a request with held responses has its
turn, they are given no faster than its client takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pyruntime.runtime.execution.job import Job, Relay, Respond
from pyruntime.runtime.requests.types import InferResponse, keep_open
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.flow_control import FlowControl

# No further request leaves the queue while so many responses are held: their outputs occupy shared memory.
HELD_MAX = 1024
# The responses that are held while others of their requests follow, and their bytes. Each has a few objects in the
# server, so these are about 200 MB: 32 requests of 4096 responses, while another one comes first.
HELD_STREAM_RESPONSES_MAX = 1 << 17
HELD_STREAM_BYTES_MAX = 1 << 30

_TOO_MUCH = (
    "too many responses are held for the turn of this request, because an earlier request to the model is not answered "
    f"yet and its configuration has 'preserve_ordering': at most {HELD_STREAM_RESPONSES_MAX} responses with "
    f"{HELD_STREAM_BYTES_MAX} bytes"
)

Outcome = InferResponse | InferenceError | None


class ResponseOrder:
    """The responses of one model version, or of one of its instances.

    `on_room` is called when it is no longer full.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        self._turns: deque[_Turn] = deque()
        self._is_giving = False
        self._held = 0
        self._held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether so many responses are held that no further request may begin.

        It is never full while the first request queues again: only its execution makes room.
        """
        return self._held >= HELD_MAX and self._turns[0].executes

    def begin(self, job: Job) -> None:
        """A job leaves the queue. It keeps its place if it queues again and comes back."""
        if job.turn is not None:
            job.turn.executes = True
            return
        respond = job.respond
        if isinstance(respond, Relay):
            # A cache keeps the response before its turn, because that may take any time.
            job.turn = respond.client = self._turn(job, respond.client)
        else:
            job.turn = job.respond = self._turn(job, respond)

    def _turn(self, job: Job, client: Respond) -> _Turn:
        turn = _Turn(self, job, client)
        self._turns.append(turn)
        return turn

    def is_first(self, turn: _Turn) -> bool:
        """Whether the responses of this request may be given."""
        return bool(self._turns) and self._turns[0] is turn

    @property
    def is_giving(self) -> bool:
        """Whether a client gets a response just now."""
        return self._is_giving

    def has_room(self, size: int) -> bool:
        """Whether a response of `size` bytes, which others follow, may be held."""
        return self._held < HELD_STREAM_RESPONSES_MAX and self._held_bytes + size <= HELD_STREAM_BYTES_MAX

    def give(self) -> None:
        """Give the responses whose turn it is, as far as the client takes them."""
        if self._is_giving:  # called by a client that got a response just now
            return
        self._is_giving = True
        was_full = self.is_full
        turns = self._turns
        while turns and turns[0].held and turns[0].may_give():
            turn = turns[0]
            outcome, final, size = turn.held.popleft()
            self._held -= 1
            self._held_bytes -= size
            if final:
                turns.popleft()
            turn.give(outcome, final, size)
        self._is_giving = False
        if was_full and not self.is_full:
            self._on_room()

    def hold(self, size: int) -> None:
        """A response of `size` bytes is there."""
        self._held += 1
        self._held_bytes += size

    def drop(self, turn: _Turn) -> None:
        """Release what is held for a request."""
        was_full = self.is_full
        held, turn.held = turn.held, deque()
        for outcome, _, size in held:
            self._held -= 1
            self._held_bytes -= size
            if isinstance(outcome, InferResponse):
                outcome.release()
        if held and held[-1][1]:
            turn(None, True)
        if was_full and not self.is_full:
            self._on_room()


class _Turn(Relay):
    """The place of one request in the order: takes its responses, and holds those that are early.

    `held` has each with whether it is the last, and its size. See execution.job.Turn.
    """

    __slots__ = ("_failure", "_job", "_order", "_window", "executes", "held")

    def __init__(self, order: ResponseOrder, job: Job, client: Respond) -> None:
        super().__init__(client)
        self._order = order
        self._job = job
        self.executes = True
        self.held: deque[tuple[Outcome, bool, int]] = deque()
        # How far its client is behind, once a response was held.
        self._window: FlowControl | None = None
        # Its last response, if nothing else is given any more.
        self._failure: InferenceError | None = None

    def __call__(self, outcome: Outcome, final: bool) -> None:
        """See execution.job.Respond."""
        order, size = self._order, 0
        if self._failure is not None:
            if isinstance(outcome, InferResponse):
                outcome.release()
            if not final:
                return
            outcome = self._failure
        elif isinstance(outcome, InferResponse):
            is_first = order.is_first(self)
            if not is_first or self.held or self._window is not None or order.is_giving:
                size = sum(output.byte_size for output in outcome.outputs)
                keep_open(outcome)
                if not is_first and not final:
                    if not order.has_room(size):
                        outcome.release()
                        self._fail()
                        return
                    self._window = self._window or FlowControl()
                    outcome.take()
        self.held.append((outcome, final, size))
        order.hold(size)
        order.give()

    def may_give(self) -> bool:
        """Whether the client takes another response. It takes the last one in any case."""
        return self._window is None or self.held[0][1] or self._window.may_send(0)

    def give(self, outcome: Outcome, final: bool, size: int) -> None:
        """Give a response to the client."""
        if self._window is not None and not final and isinstance(outcome, InferResponse):
            self._window.sent(0, size)
            taking = _Taking(self, outcome)
            outcome.take, outcome.release = taking.take, taking.release
        self.client(outcome, final)

    def _fail(self) -> None:
        """Fail the request, and cancel it, because too much is held."""
        self._failure = InferenceError(_TOO_MUCH, Code.UNAVAILABLE)
        self._order.drop(self)
        if self._job.instance is not None:
            self._job.instance.cancel(self._job)

    def taken(self) -> None:
        """The client has taken a response that had been given with others."""
        assert self._window is not None  # it is why the response has a `take` of its own
        self._window.credit(0, 1)
        self._order.give()

    def drop(self) -> None:
        """See execution.job.Turn."""
        if self._failure is None and (self.held or not self._order.is_first(self)):
            self._failure = InferenceError("", Code.CANCELLED)
            self._order.drop(self)


class _Taking:
    """The `take` and `release` of one response: the first call counts."""

    __slots__ = ("_is_taken", "_response_release", "_response_take", "_turn")

    def __init__(self, turn: _Turn, response: InferResponse) -> None:
        self._turn = turn
        self._response_take = response.take
        self._response_release = response.release
        self._is_taken = False

    def take(self) -> None:
        """See InferResponse."""
        if not self._is_taken:
            self._is_taken = True
            self._response_take()
            self._turn.taken()

    def release(self) -> None:
        """See InferResponse."""
        self._response_release()
        self.take()
