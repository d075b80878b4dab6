# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`ResponseIterator`: the responses of a decoupled model to a BLS request."""

from __future__ import annotations

from typing import Iterator, List, Union

from pyruntime.stub.host import Answers
from pyruntime.stub.pb_utils.response import InferenceResponse


class ResponseIterator:
    """Iterates over responses as they arrive, and after the last one over the same ones again.

    The last response has no outputs if the model ended the stream without another response. Deleting the iterator
    before its end cancels the request.
    """

    def __init__(self, response: Union[Answers, InferenceResponse]) -> None:
        """For the answers to a call, or for one available response."""
        self._responses: List[InferenceResponse] = []
        self._answers: Union[Answers, None] = None
        self._next = 0
        if isinstance(response, InferenceResponse):
            self._responses.append(response)
        else:
            self._answers = response

    def __iter__(self) -> Iterator[InferenceResponse]:
        """Restart at the first response, if the iterator has reached its end."""
        if self._answers is None:
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        """Wait for the next response."""
        if self._next < len(self._responses):
            response = self._responses[self._next]
        else:
            if self._answers is None:
                raise StopIteration
            arrived = self._answers.next()
            if arrived is None:
                self._answers = None
                raise StopIteration
            response = arrived
            self._responses.append(response)
        self._next += 1
        return response

    def cancel(self) -> None:
        """Cancel the request on the other model, and drop further responses. Idempotent."""
        if self._answers is not None:
            self._answers.cancel()
