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

from pyruntime.runtime.memory.requests import BareSlot, RequestMemory, SlotOfSlot
from pyruntime.runtime.regions import SharedRegion
from pyruntime.runtime.requests.types import Slot
from pyruntime.utils.arena import ALIGNMENT

# Copies one tensor to an offset of a region. Raises InferenceError.
Copy = Callable[[SharedRegion, int], Coroutine[Any, Any, None]]


def offsets(sizes: Iterable[int]) -> list[int]:
    """Where tensors of these sizes begin, one behind the other and each aligned; and where the last one ends."""
    return list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))


class CopiesSlot(SlotOfSlot):
    """A slot that keeps its region open until it is freed. Its model may end before."""

    __slots__ = ("_region",)

    def __init__(self, slot: Slot, region: SharedRegion) -> None:
        """`region` has been counted on."""
        self._slot = slot
        self._region = region

    def free(self) -> None:
        """See Slot."""
        self._slot.free()
        self._region.close()


async def bring(memory: RequestMemory, sizes: Sequence[int], copies: Sequence[Copy]) -> tuple[CopiesSlot, list[int]]:
    """Copy tensors of these sizes, in bytes, to a new slot. Returns it, and their offsets in the region.

    Raises InferenceError; no slot is left then.
    """
    *starts, end = offsets(sizes)
    bare, region = memory.allocate_bare(end), memory.region
    region.count_on()
    slot = CopiesSlot(bare, region)
    try:
        if isinstance(bare, BareSlot):  # making its pages takes a while
            await asyncio.to_thread(bare.commit)
        places = [bare.offset + at for at in starts]
        await wait_all([copy(region, at) for copy, at in zip(copies, places, strict=True)])
    except BaseException:
        slot.free()
        raise
    return slot, places


async def wait_all(copies: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them, also if one fails: memory is not free before. Raises the first failure."""
    for result in await asyncio.gather(*copies, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
