# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Limits how many models load at a time: a load that waits for another one lends its slot meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Slot:
    """What one load holds. `waits` is how many of its instances wait for other models.

    One of them at a time, which has the lock, wants the slot back.
    """

    is_taken: bool = True
    has_ended: bool = False
    waits: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_wanted(self) -> bool:
        """Whether the load goes on, and without a slot."""
        return not (self.is_taken or self.waits or self.has_ended)


class LoadSlots:
    """At most `count` loads go on at a time, of at most one for each name."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._slots: dict[str, _Slot] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it while the load of a model goes on."""
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
        """Give up the slot of a load while it waits, and wait for one at the end. Does nothing for other models.

        A task that is cancelled does not wait at the end.
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
                else:  # an instance waits in turn meanwhile, or the load is over
                    self._free.release()
