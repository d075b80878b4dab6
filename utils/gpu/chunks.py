# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Allocates in the chunks of memory on GPUs that a process leases of a broker. (pure)

Stubs do so for the tensors that they make, and the host for those that are copied from one GPU to another.
"""

from __future__ import annotations

from typing import Optional

from pyruntime.utils.arena import Arena, Backing
from pyruntime.utils.errors import OutOfMemoryError

# The largest chunk that a process keeps without tensors there. With less, a model whose tensors are larger would lease
# a chunk for each of them.
KEPT_CHUNK_BYTES_MAX = 64 << 20


class _Addresses(Backing):
    """A chunk as an arena sees it: all of it exists."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def check(self, size: int) -> None:
        """See Backing."""

    def commit(self, offset: int, size: int) -> None:
        """See Backing."""

    def decommit(self, offset: int, size: int) -> None:
        """See Backing."""


class ChunkArena:
    """The slots in a chunk of `size` bytes. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._empty()

    def _empty(self) -> None:
        self._arena = Arena(_Addresses(self.size), self.size)

    @property
    def is_empty(self) -> bool:
        """Whether no tensor lies there."""
        return not self._arena.live

    def allocate(self, size: int) -> Optional[int]:
        """The offset of a slot, None if there is no room."""
        try:
            return self._arena.allocate(size)
        except OutOfMemoryError:
            if not self.is_empty or size > self.size:
                return None
        self._empty()  # its free slots have other sizes
        try:
            return self._arena.allocate(size)
        except OutOfMemoryError:
            return None

    def free(self, offset: int) -> None:
        """Free a slot."""
        self._arena.free(offset)

    def is_needed(self, chunks: int) -> bool:
        """Whether a process that has this number of `chunks` on the GPU keeps this one.

        It gives back those without tensors, but the last one if that has at most KEPT_CHUNK_BYTES_MAX.
        """
        return not self.is_empty or (chunks == 1 and self.size <= KEPT_CHUNK_BYTES_MAX)
