# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which piece of a region is whose. (pure)

A region is one stretch of shared memory in which exactly one process allocates; that process has an arena for it. The
arena hands out *slots* and takes them back. It touches no memory itself: it tells its `Backing` which bytes must exist.

    region := slot*            slots never overlap, are never split and never joined
    slot   := 64-byte aligned, so that every dtype and every SIMD load in it can be aligned

Slot sizes come in classes, four to each doubling, so at most a fifth of a slot is slack and a freed slot serves the
next tensor of about that size. Freed slots stay *warm* (their pages exist; making a page anew costs more than
copying into it) until more than KEEP_BYTES of large ones lie idle; the rest goes *cold*, its pages given back to the
kernel and only its addresses kept. Addresses cost nothing: a region is sparse and far larger than any machine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List

from pyruntime.utils.errors import LocalError, OutOfMemoryError

ALIGNMENT = 64
SLOT_BYTES_MIN = 256

# From here on a slot is worth its own pages: it starts on a page, and can go cold.
LARGE_BYTES = 64 << 10
PAGE_BYTES = 4096

# Idle large slots kept warm. Enough for a dozen in-flight 16 MiB images; beyond it, idle memory belongs to others.
KEEP_BYTES = 256 << 20


class Backing:
    """What an arena needs of a region. `limit` is the region's size in bytes."""

    limit: int

    def commit(self, offset: int, size: int) -> None:
        """Make `size` bytes at `offset` exist. Raises OutOfMemoryError if that cannot be."""
        raise NotImplementedError

    def decommit(self, offset: int, size: int) -> None:
        """Give the pages of `size` bytes at `offset` back; what they held is lost."""
        raise NotImplementedError


# Clients send the same few sizes again and again.
@lru_cache(maxsize=1024)
def slot_bytes(size: int) -> int:
    """The size class that `size` bytes fall into."""
    if size <= SLOT_BYTES_MIN:
        return SLOT_BYTES_MIN
    shift = (size - 1).bit_length() - 3
    return (size + (1 << shift) - 1) >> shift << shift


class Arena:
    """Allocates slots in one region. Not thread-safe: it belongs to one thread of the allocating process."""

    def __init__(self, backing: Backing, growth_bytes: int, keep_bytes: int = KEEP_BYTES) -> None:
        self._backing = backing
        self._growth = growth_bytes
        self._keep = keep_bytes
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
        """How many slots are handed out."""
        return len(self._live)

    @property
    def free_bytes(self) -> int:
        """How many bytes of the region no slot has, memory or only addresses."""
        return self._backing.limit - sum(self._live.values())

    def reserve(self, size: int) -> None:
        """Commit the first `size` bytes ahead of need. Raises OutOfMemoryError."""
        self._grow(size)

    def allocate(self, size: int) -> int:
        """The offset of a slot of at least `size` bytes. Raises OutOfMemoryError; nothing has changed then."""
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

    def free(self, offset: int) -> None:
        """Take the slot at `offset` back. Raises LocalError if no slot is handed out there."""
        slot = self._live.pop(offset, None)
        if slot is None:
            raise LocalError(f"no slot is allocated at offset {offset}")
        if slot >= LARGE_BYTES:
            if self._idle_large + slot > self._keep:
                self._backing.decommit(offset, slot)
                self._cold.setdefault(slot, []).append(offset)
                return
            self._idle_large += slot
        warm = self._warm.get(slot)
        if warm is None:
            warm = self._warm[slot] = []
        warm.append(offset)

    def _fresh(self, slot: int) -> int:
        cold = self._cold.get(slot)
        if cold:
            self._backing.commit(cold[-1], slot)
            return cold.pop()
        alignment = PAGE_BYTES if slot >= LARGE_BYTES else ALIGNMENT
        offset = -(-self._top // alignment) * alignment
        self._grow(offset + slot)
        self._top = offset + slot
        return offset

    def _grow(self, end: int) -> None:
        if end <= self._committed:
            return
        if end > self._backing.limit:
            raise OutOfMemoryError(
                f"a shared-memory region is full: {end} bytes would be needed and it may hold {self._backing.limit}"
            )
        steps = -(-(end - self._committed) // self._growth)
        size = min(steps * self._growth, self._backing.limit - self._committed)
        self._backing.commit(self._committed, size)
        self._committed += size

    def _trim(self) -> bool:
        """Let every idle large slot go cold; True if that gave anything back."""
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
