# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceResponseSender`: answers a request at any time, from any thread."""

from __future__ import annotations

from typing import Optional

from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.streams import Stream


class InferenceResponseSender:
    """What `request.get_response_sender()` returns; models do not make one themselves.

    When the last sender of a request is gone, and the request too, the request ends: nothing waits for it for ever.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: Optional[Stream]) -> None:
        """`stream` is None for a request that the model made itself."""
        self._stream = stream

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, and with TRITONSERVER_RESPONSE_COMPLETE_FINAL say that no other follows; either is optional.

        A decoupled model may send any number of responses; it waits here while its client has too many of them to take.
        Any other model sends exactly one. Raises TritonModelException, in Triton's words, for what is not allowed.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"response must be a pb_utils.InferenceResponse, found {type(response)}")
        if self._stream is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._stream.send(response, flags)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the request any longer. Costs next to nothing."""
        return self._stream is not None and self._stream.is_cancelled()
