# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Limits the number of models that load at a time. A load that waits for another one lends its slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Slot:
    """The slot of one load. `waits` is the number of its instances that wait for other models.

    One of them at a time, the holder of the lock, waits to get the slot back.
    """

    is_taken: bool = True
    has_ended: bool = False
    waits: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_wanted(self) -> bool:
        """Whether the load runs without a slot."""
        return not (self.is_taken or self.waits or self.has_ended)


class LoadSlots:
    """At most `count` loads run at a time, at most one for each name."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._slots: dict[str, _Slot] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it during the load of a model."""
        await self._free.acquire()
        slot = self._slots[name] = _Slot()
        try:
            yield
        finally:
            del self._slots[name]
            slot.has_ended = True
            self._give_up(slot)

    @asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[None]:
        """Give up the slot of a load while it waits, and wait for one at the end. No effect for other models.

        A cancelled task does not wait at the end.
        """
        slot = self._slots.get(name)
        if slot is None:
            yield
            return
        slot.waits += 1
        self._give_up(slot)
        try:
            yield
        finally:
            slot.waits -= 1
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                await self._take_again(slot)

    def _give_up(self, slot: _Slot) -> None:
        if slot.is_taken:
            slot.is_taken = False
            self._free.release()

    async def _take_again(self, slot: _Slot) -> None:
        async with slot.lock:
            if slot.is_wanted:
                await self._free.acquire()
                if slot.is_wanted:
                    slot.is_taken = True
                else:  # another instance waits meanwhile, or the load has ended
                    self._free.release()
