# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceResponseSender`: answers a request at any time, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Optional

from pyruntime.stub.pb_utils.arguments import UINT32, as_integer
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.streams import Stream


class InferenceResponseSender:
    """Sends responses to a request. `request.get_response_sender()` creates it.

    If a request and all its senders are deleted before the final response, the request ends with an error, so that its
    client does not wait forever.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: Optional[Stream]) -> None:
        """`stream` is None for a request that the model made itself."""
        self._stream = stream

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, end the request with TRITONSERVER_RESPONSE_COMPLETE_FINAL, or both.

        A decoupled model may send any number of responses; this waits while its client has too many of them to receive,
        but not in a coroutine: see `wait_for_room`. Any other model sends exactly one. Raises TritonModelException with
        Triton's message for an illegal call.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"response must be a pb_utils.InferenceResponse, found {type(response)}")
        if self._stream is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._stream.send(response, flags if type(flags) is int else as_integer(flags, "flags", UINT32))

    async def wait_for_room(self) -> None:
        """Wait until the client has room for another response, while other coroutines go on. Triton has no such method.

        Without it, a response that is sent in a coroutine to a client without room is kept, and so many are at most; a
        request with more ends with an error, and is cancelled for the model.
        """
        if self._stream is None or self._stream.has_room():
            return
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()

        def found() -> None:
            if not room.done():
                room.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no coroutine waits
                loop.call_soon_threadsafe(found)

        self._stream.when_room(wake)
        await room

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request. Very cheap."""
        return self._stream is not None and self._stream.is_cancelled()
