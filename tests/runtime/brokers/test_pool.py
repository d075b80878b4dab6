# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which chunks of a GPU's memory are kept, and which go."""

from pyruntime.runtime.brokers.pool import CHUNK_BYTES, ChunkPool, chunk_bytes


def test_kept_chunks_are_leased_again():
    """The smallest one that is large enough, and none twice."""
    pool = ChunkPool(100)
    for chunk, size in ((1, 10), (2, 30), (3, 20)):
        pool.add(chunk, size)
    assert pool.lease(1) is None
    assert [pool.give_back(chunk) for chunk in (1, 2, 3)] == [[], [], []]
    assert (pool.leased_bytes, pool.kept_bytes) == (0, 60)
    assert pool.lease(15) == (3, 20)
    assert pool.lease(15) == (2, 30)
    assert pool.lease(15) is None
    assert (pool.leased_bytes, pool.kept_bytes) == (50, 10)


def test_more_than_is_kept():
    """More may be leased. What comes back beyond the size goes, the largest chunks first."""
    pool = ChunkPool(35)
    for chunk, size in ((1, 10), (2, 30), (3, 20), (4, 100)):
        pool.add(chunk, size)
    assert pool.leased_bytes == 160
    assert pool.give_back(1) == []
    assert pool.give_back(2) == [2]
    assert pool.give_back(3) == []
    assert pool.give_back(4) == [4]
    assert (pool.leased_bytes, pool.kept_bytes) == (0, 30)


def test_clear():
    """All that nobody leases can go at once."""
    pool = ChunkPool(100)
    pool.add(1, 10)
    pool.add(2, 10)
    pool.give_back(1)
    assert pool.clear() == [1]
    assert (pool.leased_bytes, pool.kept_bytes, pool.clear()) == (10, 0, [])


def test_sizes():
    """A chunk is a multiple of CHUNK_BYTES."""
    assert [chunk_bytes(size) // CHUNK_BYTES for size in (1, CHUNK_BYTES, CHUNK_BYTES + 1)] == [1, 1, 2]
