# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the use of client shared memory by one request. (pure)

A client may unregister a region while requests use it; it stays open until they end. Inputs count until the request's
memory is freed, because a model may keep them beyond the response; outputs count until the last response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyruntime.runtime.regions import ClientRegion
from pyruntime.runtime.requests.types import InferRequest, InferResponse, OutputPlace, Slot
from pyruntime.utils.errors import InferenceError

_Respond = Callable[[InferResponse | InferenceError | None, bool], None]


class Counted(Protocol):
    """Memory that is counted: see regions.py."""

    def count_on(self) -> None: ...

    def close(self) -> None: ...


class Reading:
    """The memory of inputs, as a slot of their request."""

    offset = 0
    view = memoryview(b"")

    def __init__(self, regions: Sequence[Counted]) -> None:
        self._regions = regions
        for region in regions:
            region.count_on()

    def free(self) -> None:
        """See requests.types.Slot."""
        for region in self._regions:
            region.close()


class ClientUse:
    """See the module. `regions` are all that the request refers to, `places` where its outputs go.

    `inputs` is a slot of the request; `respond` is to be called instead of the request's own.
    """

    __slots__ = ("_respond", "_writing", "inputs", "places", "regions")

    def __init__(self, request: InferRequest, respond: _Respond) -> None:
        self.places: Mapping[str, OutputPlace] = request.output_places
        read = dict.fromkeys(each.client.memory for each in request.inputs if each.client is not None)
        written = dict.fromkeys(place.contents.memory for place in self.places.values())
        self.regions: Sequence[ClientRegion] = list(read | written)
        self.inputs: Slot = Reading(list(read))
        self._writing = list(written)
        for region in self._writing:
            region.count_on()
        self._respond = respond

    @staticmethod
    def of(request: InferRequest, respond: _Respond) -> ClientUse | None:
        """The use by a request; None if it uses no client memory, like nearly all requests."""
        if not request.output_places:
            for tensor in request.inputs:
                if tensor.client is not None:
                    break
            else:
                return None
        return ClientUse(request, respond)

    def respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""
        if final:
            self.end()
        self._respond(outcome, final)

    def end(self) -> None:
        """Release the memory of outputs: no more will be written."""
        writing, self._writing = self._writing, []
        for region in writing:
            region.close()
