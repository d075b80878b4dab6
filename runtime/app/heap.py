# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Gives memory that was freed back to the system, after times in which much was needed.

The C library keeps what lies between blocks that are still in use, in the heap of each thread that allocated there, so
a server once had hundreds of MiB for good after a few large loads or many fast streams. `malloc_trim` returns whole
pages of it. That takes milliseconds in which threads may wait for memory, hence it is only done when the server has
more than after the last time, and needs no more than a moment ago.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

# How often the memory is looked at, in seconds.
LOOK_S = 5.0
# What the server may have more than after the last time, in bytes, without being worth the work.
TRIMMED_BYTES_MIN = 32 << 20

_PAGE = os.sysconf("SC_PAGE_SIZE")


class HeapTrim:
    """When to give memory back. `kept` bytes are what the server had after the last time, or at first."""

    def __init__(self, used: int) -> None:
        self.kept = used
        self._before = used

    def is_due(self, used: int) -> bool:
        """Whether memory may have been freed, now that the server has `used` bytes. Called every LOOK_S seconds."""
        before, self._before = self._before, used
        self.kept = min(self.kept, used)
        return used <= before + TRIMMED_BYTES_MIN // 4 and used - self.kept >= TRIMMED_BYTES_MIN


async def trim_heap(read: Callable[[], int] | None = None, trim: Callable[[], None] | None = None) -> None:
    """Give memory back when it is due, until cancelled. Ends at once with a C library that cannot."""
    read, trim = read or heap_bytes, trim or _malloc_trim()
    if trim is None:
        return
    policy = HeapTrim(read())
    while True:
        await asyncio.sleep(LOOK_S)
        if policy.is_due(read()):
            await asyncio.to_thread(trim)
            policy.kept = read()


def heap_bytes() -> int:
    """The memory of this process that no file and no other process has."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * _PAGE


def _malloc_trim() -> Callable[[], None] | None:
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if function is None else lambda: function(ctypes.c_size_t(0)) and None
