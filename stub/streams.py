# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tracks whether a request is answered, and what its senders may still send. (pure)

A request and all its senders share one stream. If all of them are deleted before the final response, none can be sent
any more; so the stream then ends by itself, and the client does not wait forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Set

if TYPE_CHECKING:
    from pyruntime.stub.host import Host

FINAL = 1

# What the client is told of a request that is never answered, and what the log says of one that has a sender.
LET_GO = "the model has let go of the request without a response"
RETURNED_NONE = "execute returned None; is `return responses` missing?"
UNFINISHED = "the model let go of a request, and of its response senders, that it had not finished"


class Stream:
    """The stream of one request. Any thread may call methods, if the calls of each sender are in order."""

    __slots__ = ("_awaited", "_closed", "_decoupled", "_host", "_lock", "_loss", "_sent", "_serial", "_wanted")

    _awaited: bool

    def __init__(self, host: Host, serial: int, wanted: Set[str], decoupled: bool, lock: Any) -> None:
        """`lock` makes each test and change of the state atomic."""
        self._host = host
        self._serial = serial
        self._wanted = wanted
        self._decoupled = decoupled
        self._lock = lock
        self._sent = False
        self._closed = False
        self._awaited = False
        self._loss = LET_GO

    @property
    def closed(self) -> bool:
        """Whether the final response was sent."""
        return self._closed

    def begin(self, loss: str = LET_GO) -> bool:
        """Execute has returned without a response, so the stream answers. False if it has answered already.

        `loss` is what the client is told if nothing does.
        """
        self._loss = loss
        with self._lock:
            self._awaited = not self._closed
        return self._awaited

    def end(self) -> bool:
        """Execute has answered the request. False if the stream has answered it already."""
        with self._lock:
            open, self._closed = not self._closed, True
        return open

    def send(self, response: Any, flags: int) -> None:
        """Send a response, for a sender. Raises TritonModelException with Triton's message, and then sends nothing."""
        from pyruntime.stub.pb_utils.errors import TritonModelException  # whose package imports this module

        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not flags:
            self._host.wait_for_room(self._serial)  # without the lock, so that other threads need not wait for it
        with self._lock:
            if self._closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if not self._decoupled:
                if response is not None and self._sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if response is None and not self._sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
            self._sent = self._sent or response is not None
            self._closed = bool(flags)
            # With the lock, so that no other thread sends a response after the final one.
            self._host.respond(self._serial, response, self._wanted, bool(flags))

    def has_room(self) -> bool:
        """Whether the client has room for another response."""
        return self._closed or not self._decoupled or self._host.has_room(self._serial)

    def when_room(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, from any thread or at once, as soon as there is room."""
        self._host.when_room(self._serial, wake)

    def fail(self, message: str) -> None:
        """End an open stream with an error."""
        if self.end():
            self._end(message)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        return self._host.is_cancelled(self._serial)

    def _end(self, message: Optional[str]) -> None:
        from pyruntime.stub.pb_utils.errors import TritonError
        from pyruntime.stub.pb_utils.response import InferenceResponse

        error = None if message is None else InferenceResponse(error=TritonError(message))
        self._host.respond(self._serial, error, self._wanted, True)

    def __del__(self) -> None:
        if not self._awaited or self._closed:
            return
        self._closed = True
        forgotten = not self._decoupled and not self._sent
        self._host.forgotten(self._serial, UNFINISHED if self._loss is LET_GO else self._loss)
        self._end(self._loss if forgotten else None)
