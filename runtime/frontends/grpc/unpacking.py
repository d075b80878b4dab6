# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Unpacks inference requests that take long: compressed ones, and large ones whose contents do not arrive in place.

The messages of one call are unpacked one after the other, so that the order of a stream stays. Threads decompress a
message, read it on the wire and pack its contents; the event loop's thread takes the steps in between. All bytes of a
message count as pending until it is unpacked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from pyruntime.runtime.frontends.common.compression import DECOMPRESSED_BYTES_MAX
from pyruntime.runtime.frontends.common.decompression import Decompression
from pyruntime.runtime.inference.pending_bytes import Claim, Share
from pyruntime.runtime.inference.threads import in_thread
from pyruntime.runtime.inference.turns import Turns
from pyruntime.runtime.memory.requests import CountedSlot, RequestSlot
from pyruntime.utils.errors import Code, InferenceError

# An uncompressed message up to this size, in bytes, is unpacked at once: at most some milliseconds of work. One with a
# tensor of 64 KiB is among them, for which threads cost more than they save. Larger ones go to shared memory as they
# arrive, or are unpacked in a thread.
LARGE_BYTES = 128 << 10


# Counts what a slot has more than was received of its message, until the slot that it returns is freed. Raises
# PendingBytesError if there is no room for it.
Count = Callable[[RequestSlot], RequestSlot]


class LongRequest(Protocol):
    """A request that is unpacked step by step, in this order. `read` and `fill` may run in any thread.

    After an InferenceError of a step, and instead of each step, `refuse` may be called; nothing is called after it.
    """

    @property
    def size(self) -> int:
        """The bytes of its tensors, once it is read."""

    def read(self) -> None:
        """Read the message on the wire. Raises InferenceError."""

    def allocate(self) -> None:
        """Allocate memory for the tensors. Raises InferenceError."""

    def fill(self) -> None:
        """Commit that memory, and write the tensors into it. Raises InferenceError."""

    def submit(self, count: Count) -> None:
        """Submit the request, with the slot that `count` returns for its own. Does not raise."""

    def refuse(self, failure: InferenceError) -> None:
        """Free the memory, and tell the client unless the call is over."""


class UnpackingCall(Protocol):
    """The call whose messages are unpacked."""

    @property
    def is_over(self) -> bool: ...

    def receive(self, message: bytes, count: Count) -> None:
        """Submit the request of a message that is not long: see LongRequest.submit."""

    def long_request(self, message: bytes | bytearray) -> LongRequest:
        """The request of a long message."""

    def refuse_message(self, failure: InferenceError) -> None:
        """End the call: a message cannot be decompressed, or there is no room for it."""

    def all_unpacked(self) -> None:
        """No message waits any more. The call may be over."""


class _Message(NamedTuple):
    data: bytes
    encoding: str
    claim: Claim


class Unpacking:
    """See the module. `share` is that of the connection among the pending bytes.

    Threads work on a message when it has its turn among `turns`. `soon` calls back in the next turn of the event loop.
    """

    def __init__(
        self,
        call: UnpackingCall,
        tasks: asyncio.TaskGroup,
        share: Share,
        turns: Turns,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._call = call
        self._tasks = tasks
        self._share = share
        self._turn = turns.turn()
        self._soon = soon
        self._in_thread = False
        self._waiting: deque[_Message] = deque()
        self._current: _Message | None = None
        self._decompression: Decompression | None = None
        self._working = False
        self._paused = False

    def add(self, data: bytes, encoding: str) -> None:
        """Unpack a message, once those before it are unpacked. `encoding` is "" for one that is not compressed.

        Raises PendingBytesError if there is no room for it.
        """
        claim = self._share.claim()
        claim.take(len(data))
        self._waiting.append(_Message(data, encoding, claim))
        self._work()

    def pause(self) -> None:
        """Begin with no other message until `resume`: the last request is checked in a thread."""
        self._paused = True

    def resume(self) -> None:
        """Go on after `pause`, also if the call is over meanwhile."""
        self._paused = False
        self._work()

    def end(self) -> None:
        """The call is over. A thread that works on a message ends its step."""
        if self._decompression is not None:
            self._decompression.end()
            self._decompression = None
        if not self._in_thread:
            self._end_current()
        while self._waiting:
            self._waiting.popleft().claim.end()

    def _work(self) -> None:
        """Begin with one message after the other, as long as each is done at once."""
        if self._working:
            return
        self._working = True
        while self._waiting and self._current is None and not self._paused:
            self._begin(self._waiting.popleft())
        self._working = False
        if self._current is None and not self._paused:
            self._call.all_unpacked()

    def _begin(self, message: _Message) -> None:
        self._current = message
        if message.encoding:
            self._decompression = Decompression(
                self._tasks,
                message.claim,
                partial(self._turn.take, message.claim),
                message.data,
                message.encoding,
                DECOMPRESSED_BYTES_MAX,
                self._decompressed,
            )
            self._decompression.begin()
        else:
            self._read(message.data)

    def _decompressed(self, data: bytearray | InferenceError) -> None:
        self._decompression = None
        if isinstance(data, InferenceError):
            self._call.refuse_message(data)
            self._done()
        else:
            self._read(data)

    def _read(self, data: bytes | bytearray) -> None:
        if len(data) <= LARGE_BYTES:
            self._call.receive(bytes(data), self._count)
            self._done()
            return
        assert self._current is not None  # it is being read
        if self._turn.take(self._current.claim, partial(self._begin_read, data)):
            self._begin_read(data)

    def _begin_read(self, data: bytes | bytearray) -> None:
        request = self._call.long_request(data)
        self._in_thread = True
        in_thread(self._tasks, request.read, partial(self._has_read, request), "read a request")

    def _has_read(self, request: LongRequest, failure: InferenceError | None) -> None:
        self._in_thread = False
        if failure is None and self._call.is_over:
            failure = _over()
        if failure is None:
            assert self._current is not None  # it was read
            # What tensors have more than was received is memory that the client has not sent.
            grown = max(request.size - len(self._current.data), 0)
            try:
                if grown and not self._current.claim.take_or_wait(grown, partial(self._fill, request)):
                    return
            except InferenceError as exc:
                failure = exc
        self._fill(request, failure)

    def _fill(self, request: LongRequest, failure: InferenceError | None) -> None:
        """Allocate memory for a request, once there is room for it, and fill it."""
        if failure is None:
            try:
                request.allocate()
            except InferenceError as exc:
                failure = exc
        if failure is None:
            self._in_thread = True
            in_thread(self._tasks, request.fill, partial(self._filled, request), "pack a request")
            return
        # Its traceback refers to the message, and would keep that until the next garbage collection.
        request.refuse(failure.with_traceback(None))
        self._done()

    def _filled(self, request: LongRequest, failure: InferenceError | None) -> None:
        if failure is None and self._call.is_over:
            failure = _over()
        if failure is not None:
            request.refuse(failure)
        else:
            request.submit(self._count)
        self._done()

    def _count(self, slot: RequestSlot) -> RequestSlot:
        message = self._current
        assert message is not None  # it is being submitted
        claim, grown = message.claim, slot.size - len(message.data)
        if grown <= 0:
            return slot
        if claim.held < grown:
            claim.take(grown - claim.held)
        self._current = message._replace(claim=self._share.claim())  # the other one is the slot's
        claim.give_back(claim.held - grown)
        return CountedSlot(slot, partial(self._soon, claim.end))

    def _done(self) -> None:
        self._end_current()
        self._work()

    def _end_current(self) -> None:
        self._in_thread = False
        self._turn.end()
        message, self._current = self._current, None
        if message is not None:
            message.claim.end()


def _over() -> InferenceError:
    return InferenceError("the call is over", Code.CANCELLED)
