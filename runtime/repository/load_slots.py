# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How many models load at a time: a load that waits for another one makes room for it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Place:
    """What one load holds. `waits` is how many of its instances wait for other models.

    One of them at a time, which has the lock, wants the place back.
    """

    is_taken: bool = True
    has_ended: bool = False
    waits: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_wanted(self) -> bool:
        """Whether the load goes on, and without a place."""
        return not (self.is_taken or self.waits or self.has_ended)


class LoadPlaces:
    """At most `count` loads go on at a time, of at most one for each name."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._places: dict[str, _Place] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the load of a model goes on."""
        await self._free.acquire()
        place = self._places[name] = _Place()
        try:
            yield
        finally:
            del self._places[name]
            place.has_ended = True
            self._give_up(place)

    @asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[None]:
        """Give the place of a load up while it waits, and wait for one at the end. Nothing for what is not loading.

        Who is cancelled does not wait at the end.
        """
        place = self._places.get(name)
        if place is None:
            yield
            return
        place.waits += 1
        self._give_up(place)
        try:
            yield
        finally:
            place.waits -= 1
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                await self._take_again(place)

    def _give_up(self, place: _Place) -> None:
        if place.is_taken:
            place.is_taken = False
            self._free.release()

    async def _take_again(self, place: _Place) -> None:
        async with place.lock:
            if place.is_wanted:
                await self._free.acquire()
                if place.is_wanted:
                    place.is_taken = True
                else:  # an instance waits in turn meanwhile, or the load is over
                    self._free.release()
