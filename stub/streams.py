# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a request has been answered, and what its sender may still send. (pure)

The request and all senders of it share one stream. When the last of them is gone and nobody has said that it is over,
nobody ever can: so a stream that is forgotten ends by itself, and its client does not wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Set

if TYPE_CHECKING:
    from pyruntime.stub.host import Host

FINAL = 1


class Stream:
    """See the module. Methods may be called from any thread, as long as each sender's calls are in order."""

    __slots__ = ("_awaited", "_closed", "_decoupled", "_host", "_lock", "_sent", "_serial", "_wanted")

    _awaited: bool

    def __init__(self, host: Host, serial: int, wanted: Set[str], decoupled: bool, lock: Any) -> None:
        """`lock` guards what happens between a look at the state and its change."""
        self._host = host
        self._serial = serial
        self._wanted = wanted
        self._decoupled = decoupled
        self._lock = lock
        self._sent = False
        self._closed = False
        self._awaited = False

    @property
    def closed(self) -> bool:
        """Whether the request has its last response."""
        return self._closed

    def begin(self) -> bool:
        """Execute has returned without a response: the stream is what answers. False if it has done so already."""
        with self._lock:
            self._awaited = not self._closed
        return self._awaited

    def end(self) -> bool:
        """The request is answered by other means. False if the stream has done so already."""
        with self._lock:
            open, self._closed = not self._closed, True
        return open

    def send(self, response: Any, flags: int) -> None:
        """What a sender's `send` does. Raises TritonModelException, in Triton's words, and changes nothing."""
        from pyruntime.stub.pb_utils.errors import TritonModelException  # whose package imports this module

        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not flags:
            self._host.wait_for_room(self._serial)  # not with the lock, which others need who have not to wait
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
            # Still with the lock: nothing may come behind the last response, whichever thread sends it.
            self._host.respond(self._serial, response, self._wanted, bool(flags))

    def fail(self, message: str) -> None:
        """End an open stream with an error."""
        if self.end():
            self._end(message)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the request any longer."""
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
        self._host.forgotten(self._serial)
        self._end("the model has let go of the request without a response" if forgotten else None)
