# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Allocates slots in a region of shared memory. (pure)

In each region exactly one process allocates; that process has an arena for it. The arena allocates and frees *slots*.
It does not access the memory itself: it tells its `Backing` which bytes must exist.

    region := slot*            slots never overlap, are never split and never joined
    slot   := 64-byte aligned, so that every dtype and every SIMD load in it can be aligned

Slot sizes are in classes, four per doubling, so at most a fifth of a slot is unused, and a freed slot fits the next
tensor of about that size. Freed slots stay *warm*: their pages remain, because creating a page costs more than copying
into it. If more than KEEP_BYTES of large slots are free, the others become *cold*: their pages return to the kernel,
and only their addresses remain. Addresses cost nothing, because a region is sparse and larger than any memory.

Creating and freeing the pages of a large slot takes milliseconds for every 16 MiB. A *bare* slot has no pages yet: its
owner commits them, in any thread. Where others must not be delayed, the pages of a slot are freed piece by piece.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, List, Optional, Tuple

from pyruntime.utils.errors import LocalError, OutOfMemoryError

ALIGNMENT = 64
SLOT_BYTES_MIN = 256

# Slots of at least this size begin on a page, so that they can become cold.
LARGE_BYTES = 64 << 10
PAGE_BYTES = 4096

# Slots of at least this size may be bare. Committing less takes less than a millisecond.
BARE_BYTES_MIN = 1 << 20
# The pages that are freed at a time, in bytes: some two milliseconds' work.
COOLED_BYTES = 8 << 20

# The most free memory in large slots that stays warm. Enough for a dozen concurrent images of 16 MiB.
KEEP_BYTES = 256 << 20


class Backing:
    """The region as an arena sees it. `limit` is its size in bytes."""

    limit: int

    def check(self, size: int) -> None:
        """Raise OutOfMemoryError if the pages of `size` bytes could not be allocated now."""
        raise NotImplementedError

    def commit(self, offset: int, size: int) -> None:
        """Allocate the pages of `size` bytes at `offset`. Raises OutOfMemoryError."""
        raise NotImplementedError

    def decommit(self, offset: int, size: int) -> None:
        """Free the pages of `size` bytes at `offset`. Their contents are lost."""
        raise NotImplementedError


def slot_bytes(size: int) -> int:
    """The size class of `size` bytes."""
    if size <= SLOT_BYTES_MIN:
        return SLOT_BYTES_MIN
    shift = (size - 1).bit_length() - 3
    return (size + (1 << shift) - 1) >> shift << shift


class Arena:
    """Allocates slots in one region. Not thread-safe: it belongs to one thread of the allocating process.

    `soon` calls back soon in that thread: then the pages of a slot are freed piece by piece. Without it, all at once.
    """

    def __init__(
        self,
        backing: Backing,
        growth_bytes: int,
        keep_bytes: int = KEEP_BYTES,
        soon: Optional[Callable[[Callable[[], None]], object]] = None,
    ) -> None:
        self._backing = backing
        self._growth = growth_bytes
        self._keep = keep_bytes
        self._soon = soon
        self._top = 0
        self._committed = 0
        self._live: Dict[int, int] = {}
        self._warm: Dict[int, List[int]] = {}
        self._cold: Dict[int, List[int]] = {}
        self._idle_large = 0

    def __repr__(self) -> str:
        return f"<Arena [{len(self._live)} slots, {self._committed} bytes committed]>"

    @property
    def live(self) -> int:
        """The number of allocated slots."""
        return len(self._live)

    @property
    def free_bytes(self) -> int:
        """The bytes of the region that are in no slot, committed or not."""
        return self._backing.limit - sum(self._live.values())

    def reserve(self, size: int) -> None:
        """Commit the first `size` bytes in advance. Raises OutOfMemoryError."""
        self._grow(size)

    def allocate(self, size: int) -> int:
        """Allocate a slot of at least `size` bytes, and return its offset. Raises OutOfMemoryError."""
        slot = SLOT_BYTES_MIN if size <= SLOT_BYTES_MIN else slot_bytes(size)
        warm = self._warm.get(slot)
        if warm:
            offset = warm.pop()
            if slot >= LARGE_BYTES:
                self._idle_large -= slot
        else:
            try:
                offset = self._fresh(slot)
            except OutOfMemoryError:
                if not self._trim():
                    raise
                offset = self._fresh(slot)
        self._live[offset] = slot
        return offset

    def allocate_bare(self, size: int, bare_bytes_min: int = BARE_BYTES_MIN) -> Tuple[int, int]:
        """As `allocate`, but the slot may be bare. Returns its offset, and the bytes there that the caller must commit.

        A slot of fewer than `bare_bytes_min` bytes, which are LARGE_BYTES at least, is not bare.

        Raises OutOfMemoryError if the bytes could not be committed now.
        """
        slot = slot_bytes(size)
        if slot < bare_bytes_min or self._warm.get(slot):
            return self.allocate(size), 0
        try:
            self._backing.check(slot)
        except OutOfMemoryError:
            if not self._trim():
                raise
            self._backing.check(slot)
        cold = self._cold.get(slot)
        if cold:
            offset = cold.pop()
        else:
            offset = self._addresses(slot)
            self._committed = max(self._committed, self._top)
        self._live[offset] = slot
        return offset, slot

    def free(self, offset: int, is_bare: bool = False) -> None:
        """Free the slot at `offset`. `is_bare`: not all of its pages are committed.

        Raises LocalError if no slot is allocated there.
        """
        slot = self._live.pop(offset, None)
        if slot is None:
            raise LocalError(f"no slot is allocated at offset {offset}")
        if slot >= LARGE_BYTES:
            if is_bare or self._idle_large + slot > self._keep:
                self._cool(offset, slot, 0)
                return
            self._idle_large += slot
        warm = self._warm.get(slot)
        if warm is None:
            warm = self._warm[slot] = []
        warm.append(offset)

    def reclaim(self) -> None:
        """Free all pages in which no slot lies, whoever allocated them: another process may do that, too."""
        for slot, cold in self._cold.items():
            for offset in cold:
                self._backing.decommit(offset, slot)
        unused = -(-self._committed // PAGE_BYTES) * PAGE_BYTES
        if unused < self._backing.limit:
            self._backing.decommit(unused, self._backing.limit - unused)

    def _fresh(self, slot: int) -> int:
        cold = self._cold.get(slot)
        if cold:
            self._backing.commit(cold[-1], slot)
            return cold.pop()
        before = self._top
        offset = self._addresses(slot)
        try:
            self._grow(self._top)
        except OutOfMemoryError:
            self._top = before
            raise
        return offset

    def _addresses(self, slot: int) -> int:
        """The offset of a new slot behind all others. Raises OutOfMemoryError if the region has no more addresses."""
        alignment = PAGE_BYTES if slot >= LARGE_BYTES else ALIGNMENT
        offset = -(-self._top // alignment) * alignment
        self._check_limit(offset + slot)
        self._top = offset + slot
        return offset

    def _check_limit(self, end: int) -> None:
        if end > self._backing.limit:
            raise OutOfMemoryError(
                f"a shared-memory region is full: {end} bytes would be needed and it may hold {self._backing.limit}"
            )

    def _grow(self, end: int) -> None:
        if end <= self._committed:
            return
        self._check_limit(end)
        steps = -(-(end - self._committed) // self._growth)
        size = min(steps * self._growth, self._backing.limit - self._committed)
        self._backing.commit(self._committed, size)
        self._committed += size

    def _cool(self, offset: int, slot: int, at: int) -> None:
        """Free the pages of a free slot from `at` on; then it is cold."""
        size = slot - at if self._soon is None else min(COOLED_BYTES, slot - at)
        self._backing.decommit(offset + at, size)
        if self._soon is not None and at + size < slot:
            self._soon(partial(self._cool, offset, slot, at + size))
        else:
            self._cold.setdefault(slot, []).append(offset)

    def _trim(self) -> bool:
        """Make all free large slots cold; True if that freed any memory."""
        trimmed = False
        for slot, warm in self._warm.items():
            if slot < LARGE_BYTES or not warm:
                continue
            for offset in warm:
                self._backing.decommit(offset, slot)
            self._cold.setdefault(slot, []).extend(warm)
            warm.clear()
            trimmed = True
        self._idle_large = 0
        return trimmed
