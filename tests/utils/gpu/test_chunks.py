# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Slots in chunks of memory on a GPU."""

import pytest

from pyruntime.utils.gpu import chunks
from pyruntime.utils.gpu.chunks import ChunkArena

SIZE = 8 << 10


def test_slots():
    """Slots do not overlap, and a chunk that is full has no room. A slot that is freed is used again."""
    chunk = ChunkArena(SIZE)
    found = [chunk.allocate(SIZE // 4) for _ in range(4)]
    assert sorted(found) == [0, 2048, 4096, 6144]
    assert chunk.allocate(1) is None
    chunk.free(found[1])
    assert chunk.allocate(SIZE // 4) == found[1]


def test_other_sizes():
    """An empty chunk has room for slots of any size, but for larger ones than itself."""
    chunk = ChunkArena(SIZE)
    for offset in [chunk.allocate(SIZE // 4) for _ in range(4)]:
        chunk.free(offset)
    assert chunk.allocate(SIZE) == 0
    chunk.free(0)
    assert chunk.allocate(SIZE + 1) is None
    assert chunk.is_empty


@pytest.mark.parametrize(
    ("is_used", "count", "kept_bytes", "is_needed"),
    [(True, 2, 0, True), (False, 2, SIZE, False), (False, 1, SIZE, True), (False, 1, SIZE - 1, False)],
    ids=["used", "one of two", "the last one", "the last one, and large"],
)
def test_which_are_needed(monkeypatch, is_used, count, kept_bytes, is_needed):
    """A chunk is kept for its tensors, or as the last one, if it is not too large."""
    monkeypatch.setattr(chunks, "KEPT_CHUNK_BYTES_MAX", kept_bytes)
    chunk = ChunkArena(SIZE)
    if is_used:
        chunk.allocate(1)
    assert chunk.is_needed(count) is is_needed
