# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`ResponseIterator`: the responses of a decoupled model to a BLS request."""

from __future__ import annotations

from typing import Iterator, List, Union

from pyruntime.stub.host import Answers
from pyruntime.stub.pb_utils.response import InferenceResponse


class ResponseIterator:
    """Iterates over responses as they come, and once they have all come, over the same ones again.

    The last one has no outputs where the model said that it was over without sending another. Dropping the iterator
    before its end cancels the request.
    """

    def __init__(self, response: Union[Answers, InferenceResponse]) -> None:
        """Over the answers to a call, or over one response that is there already."""
        self._responses: List[InferenceResponse] = []
        self._answers: Union[Answers, None] = None
        self._next = 0
        if isinstance(response, InferenceResponse):
            self._responses.append(response)
        else:
            self._answers = response

    def __iter__(self) -> Iterator[InferenceResponse]:
        """From the first response on, once the iterator has been at its end."""
        if self._answers is None:
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        """The next response, waiting for it."""
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
        """Nobody waits for the rest: the other model learns it, and what still comes is dropped. Idempotent."""
        if self._answers is not None:
            self._answers.cancel()
