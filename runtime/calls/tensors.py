# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The lifetime of tensors that models pass to one another by reference.

Inputs stay until the callee has read them: CallInputs, a slot of the callee's job, holds them. Outputs stay until the
caller drops the response: HeldResponse holds them. Memory of a dead caller stays until no callee reads from its region:
see LeftMemory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address
from pyruntime.utils.arena import ALIGNMENT


class CallInputs:
    """The inputs of one call, as a slot of its job (see requests.types). Their regions stay open until it is freed."""

    __slots__ = ("_on_free", "_regions")

    offset = 0
    view = memoryview(b"")

    def __init__(self, regions: Sequence[GrantedRegion], on_free: Callable[[], None]) -> None:
        """`on_free` is called when the inputs are no longer read."""
        self._regions = regions
        self._on_free = on_free
        for region in regions:
            region.count_on()

    def free(self) -> None:
        """See requests.types.Slot."""
        self._on_free()
        for region in self._regions:
            region.close()


class HeldResponse:
    """A response to a call whose outputs other processes may read. Its memory stays, and its region, until `release`.

    `response` has the outputs with their addresses in `regions`.
    """

    __slots__ = ("regions", "response")

    def __init__(self, response: InferResponse, memory: RequestMemory) -> None:
        """`memory` is the callee's: outputs in private memory of the host are copied there.

        Raises InferenceError UNAVAILABLE if there is no room for the copy; the response is not released then.
        """
        for output in response.outputs:
            if not output.address:  # a native model's, or one of a cache
                response = _copied(response, memory)
                break
        self.response = response
        self.regions = response.regions
        for region in self.regions:
            region.count_on()

    def release(self) -> None:
        """Free the outputs, which are no longer read. Call it once."""
        self.response.release()
        for region in self.regions:
            region.close()


class LeftMemory:
    """Memory of a dead stub, in regions that callees may still read. Each piece is freed when no callee does."""

    def __init__(self) -> None:
        # How many calls have inputs in a region that their callees may read.
        self._readers: dict[GrantedRegion, int] = {}
        self._left: list[tuple[Sequence[GrantedRegion], Callable[[], None]]] = []

    def begin_reading(self, regions: Sequence[GrantedRegion]) -> None:
        """A call has inputs in these regions."""
        readers = self._readers
        for region in regions:
            readers[region] = readers.get(region, 0) + 1

    def end_reading(self, regions: Sequence[GrantedRegion]) -> None:
        """The inputs of a call in these regions are no longer read."""
        readers = self._readers
        for region in regions:
            readers[region] -= 1
            if not readers[region]:
                del readers[region]
        if self._left:
            self.free_unread()

    def leave(self, regions: Sequence[GrantedRegion], free: Callable[[], None]) -> None:
        """Have `free_unread` call `free` as soon as no call has inputs in the regions."""
        self._left.append((regions, free))

    def free_unread(self) -> None:
        """Free the memory in regions without readers."""
        left, self._left = self._left, []
        for regions, free in left:
            if any(region in self._readers for region in regions):
                self._left.append((regions, free))
            else:
                free()


def _copied(response: InferResponse, memory: RequestMemory) -> InferResponse:
    """The same response, with those outputs in a slot of `memory` that lie in private memory.

    Raises InferenceError UNAVAILABLE.
    """
    private = [output for output in response.outputs if not output.address]
    slot = memory.allocate(sum(-(-len(output.data) // ALIGNMENT) * ALIGNMENT for output in private))
    view, at = slot.view, 0
    outputs = []
    for output in response.outputs:
        if output.address:
            outputs.append(output)
            continue
        size = len(output.data)
        view[at : at + size] = output.data
        where = address(memory.region.number, slot.offset + at)
        outputs.append(OutputTensor(output.name, output.datatype, output.shape, view[at : at + size], where))
        at += -(-size // ALIGNMENT) * ALIGNMENT

    def release() -> None:
        slot.free()
        response.release()

    return replace(response, outputs=outputs, release=release, regions=(*response.regions, memory.region))
