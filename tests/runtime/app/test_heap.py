# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from pyruntime.runtime.app import heap
from pyruntime.runtime.app.heap import TRIMMED_BYTES_MIN, HeapTrim, heap_bytes, trim_heap

MIB = 1 << 20


@pytest.mark.parametrize(
    ("used", "due"),
    [
        ([100, 100, 100], []),
        ([100, 100 + TRIMMED_BYTES_MIN // MIB - 1] * 2, []),
        ([100, 500, 500], [2]),
        ([100, 500, 900, 900], [3]),
        ([100, 500, 300], [2]),
        ([500, 100, 150, 150], [3]),
        ([100, 500, 501], [2]),
    ],
)
def test_when_it_is_due(used, due):
    """When the server has more than it had, and needs no more than a moment ago."""
    policy = HeapTrim(used[0] * MIB)
    assert [index for index, each in enumerate(used) if policy.is_due(each * MIB)] == due


def test_what_cannot_be_given_back(monkeypatch):
    """It is tried once, and again when there is more."""
    monkeypatch.setattr(heap, "LOOK_S", 0)
    readings = iter([100, 500, 500, 500, 500, 700, 700, 700, None])
    trimmed = []

    def read():
        used = next(readings)
        if used is None:
            raise asyncio.CancelledError
        return used * MIB

    async def main():
        await trim_heap(read, lambda: trimmed.append(1))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert len(trimmed) == 2


def test_it_knows_how_much_there_is():
    """The memory of this process, in bytes."""
    before = heap_bytes()
    block = bytearray(64 * MIB)
    assert heap_bytes() - before >= len(block) - MIB
