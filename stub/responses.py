# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Checks what `execute` returned and writes its outputs into the response region, once.

One slot holds all the outputs of one response, so that the host gives it back with one number.
"""

from __future__ import annotations

from typing import Any, List, Set

import numpy as np

from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.utils.arena import ALIGNMENT, Arena
from pyruntime.utils.errors import Code, OutOfMemoryError, PyruntimeError
from pyruntime.utils.messages import NO_SLOT, OK
from pyruntime.utils.regions import Region

# Up to here one tobytes() and a slice assignment beat making an array over the region.
SMALL_BYTES = 16 << 10
# Longer error messages are cut: they are for people.
MESSAGE_CHARS_MAX = 64 << 10


class WrongResponses(PyruntimeError):
    """`execute` returned something else than it has to. The message is Triton's, for the clients of the batch."""


def check_responses(responses: Any, requests: List[InferenceRequest]) -> None:
    """Raise WrongResponses unless `responses` is one InferenceResponse for each request."""
    if not isinstance(responses, list):
        raise WrongResponses(f"Expected a list in the execute return, found type '{type(responses)}'.")
    if len(responses) != len(requests):
        raise WrongResponses(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(responses)}\n"
        )
    for response in responses:
        if not isinstance(response, InferenceResponse):
            raise WrongResponses(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(response)}'."
            )


class ResponseWriter:
    """Turns responses into the arrays of a Result message."""

    def __init__(self, region: Region, growth_bytes: int, model_name: str, outputs: Set[str]) -> None:
        self.arena = Arena(region, growth_bytes)
        self._map = region.map
        self._model_name = model_name
        self._outputs = outputs

    def write(self, response: InferenceResponse, request: InferenceRequest) -> List[Any]:
        """The wire form of `response` (see utils/messages.py), its outputs in shared memory.

        A response that cannot be written is a failure of its own request, and of no other.
        """
        try:
            error = response._error
            if error is not None:
                return _failure(int(error.code()), error.message()[:MESSAGE_CHARS_MAX])
            return self._write(response, request)
        except Exception as exc:
            return _failure(Code.INTERNAL, f"a response of model '{self._model_name}' cannot be sent: {exc!r}")

    def _write(self, response: InferenceResponse, request: InferenceRequest) -> List[Any]:
        wanted = request._outputs
        tensors = []
        size = 0
        for tensor in response._output_tensors:
            name = tensor._name
            if name not in wanted:
                if name not in self._outputs:
                    return _failure(
                        Code.INVALID_ARG, f"unexpected inference output '{name}' for model '{self._model_name}'"
                    )
                continue
            contents = tensor._encoded()
            n = len(contents) if type(contents) is bytes else contents.nbytes
            tensors.append((name, tensor._datatype, tensor._shape, size, n, contents))
            size += -(-n // ALIGNMENT) * ALIGNMENT
        if not size:
            return [OK, "", NO_SLOT, [(*tensor[:3], 0, 0) for tensor in tensors], response._parameters]
        try:
            slot = self.arena.allocate(size)
        except OutOfMemoryError as exc:
            return _failure(Code.UNAVAILABLE, f"no room for a response of {size} bytes: {exc}")
        wire = []
        for name, datatype, shape, at, n, contents in tensors:
            self._copy(contents, slot + at, n)
            wire.append((name, datatype, shape, slot + at, n))
        return [OK, "", slot, wire, response._parameters]

    def _copy(self, contents: Any, offset: int, size: int) -> None:
        if type(contents) is bytes:
            self._map[offset : offset + size] = contents
        elif size <= SMALL_BYTES:
            self._map[offset : offset + size] = contents.tobytes()
        else:
            np.ndarray(contents.shape, contents.dtype, self._map, offset)[...] = contents


def _failure(code: int, message: str) -> List[Any]:
    return [code, message, NO_SLOT, [], ""]
