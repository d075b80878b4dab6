# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions of shared memory on the heap, with a budget, so that memory can run out where a scenario wants it to.

Both ends of a connection are in this process, so a stub finds a region by its number.
"""

from pyruntime.runtime.regions import SharedRegion, _Counted
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.regions import FLAGS_BYTES, Region

# What is in memory that was released, so that nobody takes it for a tensor.
POISON = b"\xa5"


class HeapRegion(Region):
    """A region in this process's heap."""

    def __init__(self, size, memory):
        # No descriptor: nobody maps it.
        self._fd = -1
        self._memory = memory
        self.limit = size
        self.map = bytearray(size + FLAGS_BYTES)
        self.view = memoryview(self.map)

    def check(self, size):
        self._memory.check(size)

    def commit(self, offset, size):
        self._memory.check(size)

    def decommit(self, offset, size):
        """Pages that are freed are zeros; the heap keeps them."""

    def close(self):
        self._memory.closed(self)


class SimulatedRegion(SharedRegion, HeapRegion):
    """A region of the host's."""

    def __init__(self, size, memory, purpose):
        HeapRegion.__init__(self, size, memory)
        _Counted.__init__(self)
        self.purpose = purpose

    def __repr__(self):
        return f"<SimulatedRegion {self.number} {self.purpose}>"

    def fileno(self):
        return self.number

    @property
    def used_bytes(self):
        return 0


class Memory:
    """All regions of a scenario. While `is_out`, none is made, and none grows."""

    def __init__(self, region_bytes):
        self._region_bytes = region_bytes
        self.is_out = False
        self.open = {}

    def create_region(self, purpose, in_need=False):
        """See runtime/regions.py. One that the simulator is `in_need` of is always made."""
        if not in_need:
            self.check(0)
        region = SimulatedRegion(self._region_bytes, self, purpose)
        self.open[region.number] = region
        return region

    def check(self, size):
        if self.is_out:
            raise OutOfMemoryError("no shared memory left in this simulation")

    def closed(self, region):
        del self.open[region.number]
