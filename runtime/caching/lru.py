# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the entries that were used last, up to a number of bytes. (pure)"""

from __future__ import annotations

from collections import OrderedDict

from pyruntime.utils.errors import LocalError

# The memory that an entry takes beside its contents, in bytes, about: its key, and its place.
OVERHEAD_BYTES = 256


class LeastRecentlyUsed:
    """Entries of at most `size` bytes in all, with OVERHEAD_BYTES for each. `evictions` counts those that made room."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._used = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used(self) -> int:
        """The bytes that the entries take."""
        return self._used

    def find(self, key: str) -> bytes | None:
        """The entry of a key, which is the last one used now; None if there is none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def add(self, key: str, entry: bytes) -> None:
        """Add an entry, unless the key has one; those that were not used for longest make room.

        Raises LocalError if it is larger than all room, and then changes nothing.
        """
        if key in self._entries:
            return
        needed = len(entry) + OVERHEAD_BYTES
        if needed > self.size:
            raise LocalError(f"Requested byte_size: {needed} is greater than total cache size: {self.size}")
        while self._used + needed > self.size:
            _, gone = self._entries.popitem(last=False)
            self._used -= len(gone) + OVERHEAD_BYTES
            self.evictions += 1
        self._entries[key] = entry
        self._used += needed
