# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of several tensors from GPUs to one slot of request memory. The brokers copy, while the event loop goes on.

None of the coroutines must be cancelled, because the brokers write to the slot nevertheless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import accumulate
from typing import Any

from pyruntime.runtime.memory.requests import BareSlot, RequestMemory, RequestSlot
from pyruntime.runtime.regions import SharedRegion
from pyruntime.utils.arena import ALIGNMENT

# Copies one tensor to an offset of a region. Raises InferenceError.
Copy = Callable[[SharedRegion, int], Coroutine[Any, Any, None]]


def offsets(sizes: Iterable[int]) -> list[int]:
    """Where tensors of these sizes begin, one behind the other and each aligned; and where the last one ends."""
    return list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))


def allocate(memory: RequestMemory, sizes: Iterable[int]) -> RequestSlot:
    """A slot for tensors of these sizes, in bytes. Raises InferenceError."""
    return memory.allocate_bare(offsets(sizes)[-1])


async def fill(slot: RequestSlot, region: SharedRegion, sizes: Iterable[int], copies: Sequence[Copy]) -> list[int]:
    """Copy tensors of these sizes to a slot of `allocate`. Returns their offsets there. Raises InferenceError."""
    if isinstance(slot, BareSlot):  # making its pages takes a while
        await asyncio.to_thread(slot.commit)
    places = [slot.offset + at for at in offsets(sizes)[:-1]]
    await wait_all([copy(region, at) for copy, at in zip(copies, places, strict=True)])
    return places


async def wait_all(copies: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them, also if one fails: memory is not free before. Raises the first failure."""
    for result in await asyncio.gather(*copies, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
