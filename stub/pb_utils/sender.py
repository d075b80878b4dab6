# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceResponseSender`: answers a request at any time, from any thread."""

from __future__ import annotations

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

        A decoupled model may send any number of responses; this waits while its client has too many of them to receive.
        Any other model sends exactly one. Raises TritonModelException with Triton's message for an illegal call.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"response must be a pb_utils.InferenceResponse, found {type(response)}")
        if self._stream is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._stream.send(response, flags if type(flags) is int else as_integer(flags, "flags", UINT32))

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request. Very cheap."""
        return self._stream is not None and self._stream.is_cancelled()
