# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The regions that one stub may use: its own two, those that it was granted, and memory on GPUs that it leases. (pure)

A region is granted before a message refers to it, and revoked when it is closed. The stub says when it has closed
memory on a GPU; only then may that be used again, or given back to the driver.
"""

from __future__ import annotations

from typing import Protocol

from pyruntime.runtime.regions import ClientRegion, GpuRegion, GrantedRegion, SharedRegion
from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.messages import MapGpu, Message, Unmap, UnmapGpu

# The regions on GPUs that are known after their loss: twice what a stub may lease at a time.
LOST_MAX = 512


class Link(Protocol):
    """What this needs of StubLink."""

    @property
    def is_listening(self) -> bool: ...

    def send(self, *messages: Message) -> None: ...

    def hand_over(self, region: SharedRegion | ClientRegion) -> None: ...


class StubRegions:
    """See the module, and regions.Holder. `find`, `leased`, `give_back` and `closed` raise PeerError."""

    def __init__(self, link: Link, requests: SharedRegion, responses: SharedRegion) -> None:
        """`requests` and `responses` are the stub's own."""
        self._link = link
        self._requests = requests
        self._responses = responses
        self._granted: dict[int, GrantedRegion] = {}
        # Memory on GPUs that the stub leases, and memory there that it has not closed yet.
        self._leased: dict[int, GpuRegion] = {}
        self._closing: dict[int, GpuRegion] = {}
        # Memory that was lost, LOST_MAX regions: another thread of the stub may have spoken of it meanwhile.
        self._lost: dict[int, GpuRegion] = {}
        self._ended = False

    def find(self, number: int) -> SharedRegion | GpuRegion:
        """The region that the stub knows by this number, 0 for its own."""
        if number == 0:
            return self._responses
        if number == self._requests.number:
            return self._requests
        region = self._granted.get(number) or self._closing.get(number) or self._lost.get(number)
        if not isinstance(region, (SharedRegion, GpuRegion)):  # a stub must not pass on a client's memory
            raise PeerError(f"there is no region {number}, or it is none of the stub's business")
        return region

    def grant(self, region: GrantedRegion) -> None:
        """Grant the stub a region, if it does not have it, before it reads there. Raises LocalError if that fails."""
        if region is self._requests or region.number in self._granted or self._ended:
            return
        if isinstance(region, GpuRegion):
            if region.loss:
                raise LocalError(region.loss)
            if not self._link.is_listening:
                return
            self._hold(region)
            self._announce(region)
        else:
            self._link.hand_over(region)
            self._hold(region)

    def revoke(self, region: GrantedRegion) -> None:
        """See regions.Holder."""
        if self._granted.pop(region.number, None) is None:
            return
        unmap: Message = Unmap([region.number])
        if isinstance(region, GpuRegion):
            self._closing[region.number] = region
            unmap = UnmapGpu(region.number)
        if self._link.is_listening:
            self._link.send(unmap)

    def writer_ended(self, region: GpuRegion) -> None:
        """See regions.Holder."""
        if region.number in self._granted and self._link.is_listening:
            self._announce(region)

    @property
    def leases(self) -> int:
        """How many chunks of memory on GPUs the stub leases."""
        return len(self._leased)

    def leased(self, number: int) -> GpuRegion:
        """The memory on a GPU in which the stub writes its tensors, by its number."""
        region = self._leased.get(number) or self._lost.get(number)
        if region is None:
            raise PeerError(f"region {number} is not memory on a GPU that the stub leases")
        return region

    def lease(self, region: GpuRegion) -> None:
        """The stub writes to this memory from now on, until `give_back` or its end."""
        if self._ended:
            region.close()
            return
        self._leased[region.number] = region
        self._hold(region)

    def give_back(self, number: object) -> None:
        """The stub has closed memory that it leases, and keeps no tensors there."""
        region = self._leased.pop(number, None) if type(number) is int else None
        if region is None:
            if type(number) is int and number in self._lost:
                return  # `closed` has ended the lease
            raise PeerError(f"region {number!r} on a GPU is given back and was not leased")
        if self._granted.pop(region.number, None) is not None:
            region.left(self)
        region.close()

    def closed(self, number: object) -> None:
        """The stub has closed memory after an UnmapGpu."""
        region = self._closing.pop(number, None) if type(number) is int else None
        if region is None:
            raise PeerError(f"region {number!r} on a GPU is closed and was not to be closed")
        region.left(self)
        if region.loss:
            self._lost[region.number] = region
            if len(self._lost) > LOST_MAX:
                del self._lost[next(iter(self._lost))]
            if self._leased.pop(region.number, None) is not None:
                region.close()

    def end(self) -> None:
        """The process has ended, and has no regions any more."""
        self._ended = True
        granted, self._granted = self._granted, {}
        for region in (*granted.values(), *self._closing.values()):
            if isinstance(region, GpuRegion):
                region.left(self)
            else:
                region.holders.discard(self)
        for lease in self._leased.values():
            lease.writer_ended()
            lease.close()
        self._leased.clear()
        self._closing.clear()

    def _announce(self, region: GpuRegion) -> None:
        self._link.send(MapGpu(region.number, region.gpu.uuid, region.handle, region.event, region.limit))

    def _hold(self, region: GrantedRegion) -> None:
        self._granted[region.number] = region
        region.holders.add(self)
