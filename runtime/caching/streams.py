# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a stream of responses while it passes, and replays a kept one as fast as its client takes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.caching.entry import encode
from pyruntime.runtime.caching.local import AT_ONCE_MAX
from pyruntime.runtime.execution.job import Job, Relay, Respond
from pyruntime.runtime.requests.types import InferResponse, OutputTensor, keep_open
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.flow_control import FlowControl

# A longer stream is not kept: the responses, and their bytes. They are in memory until the stream ends.
STREAM_RESPONSES_MAX = 10_000
STREAM_BYTES_MAX = 16 << 20
# The bytes of all streams of a model that are under way. A stream that finds no room is not kept.
STREAMS_BYTES_MAX = 256 << 20
# The responses that are replayed in one turn of the event loop.
REPLAYED_AT_ONCE = 32

Outcome = InferResponse | InferenceError | None
# The outputs of one response, None for the end of a stream without a further response.
Outputs = list[OutputTensor] | None


class StreamRoom:
    """The room for streams of one model that are under way."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, size: int) -> bool:
        """Take room for so many bytes; False if there is not enough."""
        if self.used + size > STREAMS_BYTES_MAX:
            return False
        self.used += size
        return True


class StreamKeeper(Relay):
    """Passes the responses of a stream on, in their order, and keeps a copy of them.

    `on_end` is called before the last one, with the entry, or None for a stream that is not to be kept: it is too long,
    has failed, was cancelled, or lies in the memory of its client. It calls its second argument when that is done.
    """

    __slots__ = ("_cache", "_is_copying", "_job", "_on_end", "_parts", "_room", "_used", "_waiting")

    def __init__(
        self,
        client: Respond,
        job: Job,
        cache: ResponseCache,
        room: StreamRoom,
        on_end: Callable[[bytes | None, Callable[[], None]], None],
    ) -> None:
        super().__init__(client)
        self._job = job
        self._cache = cache
        self._room = room
        self._on_end = on_end
        self._parts: list[bytes] | None = []
        self._used = 0
        # A thread copies a large response; those that come meanwhile wait.
        self._is_copying = False
        self._waiting: deque[tuple[Outcome, bool]] = deque()

    def __call__(self, outcome: Outcome, final: bool) -> None:
        """See execution.job.Respond."""
        if self._is_copying:
            if isinstance(outcome, InferResponse):
                keep_open(outcome)
            self._waiting.append((outcome, final))
        else:
            self._take(outcome, final)

    def _take(self, outcome: Outcome, final: bool) -> None:
        if self._parts is None:
            self._pass(outcome, final)
        elif outcome is None:
            self._keep(encode(None), outcome, final)
        elif isinstance(outcome, InferenceError) or not self._has_room(outcome, self._parts):
            self._give_up()
            self._pass(outcome, final)
        elif (size := sum(output.byte_size for output in outcome.outputs)) <= AT_ONCE_MAX:
            self._keep(encode(outcome.outputs), outcome, final)
        else:
            response = outcome
            keep_open(response)
            self._is_copying = True
            self._cache.post(
                lambda: encode(response.outputs), lambda done: self._copied(done, response, final), size
            )  # fmt: skip

    def _has_room(self, response: InferResponse, parts: list[bytes]) -> bool:
        if any(output.place is not None for output in response.outputs):  # the client may change it at any time
            return False
        size = sum(output.byte_size for output in response.outputs)
        if len(parts) >= STREAM_RESPONSES_MAX or self._used + size > STREAM_BYTES_MAX or not self._room.take(size):
            return False
        self._used += size
        return True

    def _copied(self, done: asyncio.Future[bytes], response: InferResponse, final: bool) -> None:
        self._is_copying = False
        if done.exception() is None:
            self._keep(done.result(), response, final)
        else:
            self._give_up()
            self._pass(response, final)
        while self._waiting and not self._is_copying:
            self._take(*self._waiting.popleft())

    def _keep(self, part: bytes, outcome: Outcome, final: bool) -> None:
        assert self._parts is not None  # the caller looks
        self._parts.append(part)
        self._pass(outcome, final)

    def _pass(self, outcome: Outcome, final: bool) -> None:
        if not final:
            self.client(outcome, False)
            return
        if self._job.cancelled:  # its model may have ended early
            self._give_up()
        entry = None if self._parts is None else b"".join(self._parts)
        self._give_up()
        if entry is not None and isinstance(outcome, InferResponse):
            keep_open(outcome)
        self._on_end(entry, lambda: self.client(outcome, True))

    def _give_up(self) -> None:
        """Keep nothing of the stream."""
        self._parts = None
        self._room.used -= self._used
        self._used = 0


class Replay:
    """Answers a job with the responses of a stream: no further ahead of its client than a model may be.

    `respond` makes a response of outputs. `on_end` is called before the last one, with the failure, None for none.
    """

    def __init__(
        self,
        job: Job,
        stream: Sequence[Outputs],
        response: Callable[[list[OutputTensor]], InferResponse],
        on_end: Callable[[InferenceError | None], None],
    ) -> None:
        self._job = job
        self._stream = deque(stream)
        self._response = response
        self._on_end = on_end
        self._window = FlowControl()
        self._is_sending = self._is_over = False
        self._failure: InferenceError | None = None

    def go_on(self) -> None:
        """Send the next responses, as far as the client has taken those before."""
        if self._is_sending:  # called by a client that took a response just now
            return
        self._is_sending = True
        left = REPLAYED_AT_ONCE
        while self._stream and left and self._failure is None and self._window.may_send(0):
            self._send(self._stream.popleft())
            left -= 1
        self._is_sending = False
        if self._failure is not None:
            self._end(self._failure)
        elif self._stream and not left:
            asyncio.get_running_loop().call_soon(self.go_on)

    def fail(self, failure: InferenceError) -> None:
        """End with a failure. Does nothing if the replay has ended."""
        if self._failure is None and not self._is_over:
            self._failure = failure
            self.go_on()

    def _send(self, outputs: Outputs) -> None:
        """Send a response; the last one as the last."""
        try:
            response = None if outputs is None else self._response(outputs)
        except InferenceError as exc:
            self._failure = exc
            return
        if not self._stream:
            self._is_over = True
            self._on_end(None)
            self._job.respond(response, True)
            return
        assert response is not None  # by the format of entries
        self._window.sent(0, sum(output.byte_size for output in response.outputs))
        response.take = response.release = _Take(self._taken).take
        self._job.respond(response, False)

    def _taken(self) -> None:
        self._window.credit(0, 1)
        self.go_on()

    def _end(self, failure: InferenceError) -> None:
        if not self._is_over:
            self._is_over = True
            self._stream.clear()
            self._on_end(failure)
            self._job.respond(failure, True)


class _Take:
    """The `take` and `release` of one response: the first call counts."""

    __slots__ = ("_call_back",)

    def __init__(self, call_back: Callable[[], None]) -> None:
        self._call_back: Callable[[], None] | None = call_back

    def take(self) -> None:
        """See InferResponse."""
        call_back, self._call_back = self._call_back, None
        if call_back is not None:
            call_back()
