# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The chunks of memory that one broker has allocated on its GPU: which are leased, which are kept, which go. (pure)

A stub leases a whole chunk, and allocates in it by itself (utils/arena.py). So a tensor costs no message, and a stub
that dies gives its tensors back with its chunks. A chunk that nobody leases is kept for the next lease, as long as the
kept ones have `keep_bytes` together; others go back to the GPU. More than `keep_bytes` may be leased at a time: the
memory of the GPU is the limit then.
"""

from __future__ import annotations

# A chunk is a multiple of this, so that small tensors share one, and a returned chunk fits the next lease.
CHUNK_BYTES = 8 << 20


class ChunkPool:
    """See the module. Chunks are numbers, which the caller chooses; sizes are in bytes."""

    def __init__(self, keep_bytes: int) -> None:
        """Without bytes to keep, no memory is leased: see `is_open`."""
        self._keep_bytes = keep_bytes
        self._leased: dict[int, int] = {}
        self._kept: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<ChunkPool [{self.leased_bytes} bytes leased, {self.kept_bytes} kept]>"

    @property
    def is_open(self) -> bool:
        """Whether the operator wants a pool on this GPU."""
        return self._keep_bytes > 0

    @property
    def leased_bytes(self) -> int:
        """The size of all chunks that are leased."""
        return sum(self._leased.values())

    @property
    def kept_bytes(self) -> int:
        """The size of all chunks that nobody leases."""
        return sum(self._kept.values())

    def lease(self, size: int) -> tuple[int, int] | None:
        """The smallest kept chunk with `size` bytes, which is leased now, and its size. None if there is none."""
        fitting = [(each, chunk) for chunk, each in self._kept.items() if each >= size]
        if not fitting:
            return None
        found, chunk = min(fitting)
        del self._kept[chunk]
        self._leased[chunk] = found
        return chunk, found

    def add(self, chunk: int, size: int) -> None:
        """A new chunk, which is leased at once."""
        self._leased[chunk] = size

    def give_back(self, chunk: int) -> list[int]:
        """Nobody uses a leased chunk any more. Returns the chunks that are to be freed: the largest ones first."""
        self._kept[chunk] = self._leased.pop(chunk)
        freed: list[int] = []
        while self.kept_bytes > self._keep_bytes:
            largest = max(self._kept, key=self._kept.__getitem__)
            del self._kept[largest]
            freed.append(largest)
        return freed

    def clear(self) -> list[int]:
        """Returns all kept chunks, which are to be freed because the GPU has no memory left."""
        freed, self._kept = list(self._kept), {}
        return freed


def chunk_bytes(size: int) -> int:
    """The size of a new chunk for a lease of `size` bytes."""
    return -(-size // CHUNK_BYTES) * CHUNK_BYTES
