# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How many loads go on at a time."""

import asyncio

import pytest

from pyruntime.runtime.repository.load_slots import LoadSlots

from ..event_loops import settle


class Load:
    """A load that the test controls, one step at a time."""

    def __init__(self, slots, name):
        self.name = name
        self.log = []
        self._slots = slots
        self._end = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self):
        async with self._slots.hold(self.name):
            self.log.append("goes on")
            await self._end.wait()
        self.log.append("ended")

    def end(self):
        self._end.set()


class Wait:
    """An instance of a load that waits for something."""

    def __init__(self, slots, name):
        self.ready = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(slots, name))

    async def _run(self, slots, name):
        async with slots.lend(name):
            await self.ready.wait()


def run(test):
    async def bounded():
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def test_no_more_than_there_are_slots():
    """A load waits until a slot is free."""

    async def test():
        slots = LoadSlots(2)
        loads = [Load(slots, name) for name in "abc"]
        await settle()
        assert [load.log for load in loads] == [["goes on"], ["goes on"], []]
        loads[0].end()
        await settle()
        assert [load.log for load in loads] == [["goes on", "ended"], ["goes on"], ["goes on"]]
        for load in loads:
            load.end()
            await load.task

    run(test)


def test_a_load_that_waits_makes_room():
    """Another one goes on meanwhile, and the first one goes on when that has ended."""

    async def test():
        slots = LoadSlots(1)
        first = Load(slots, "a")
        second = Load(slots, "b")
        await settle()
        wait = Wait(slots, "a")
        await settle()
        assert second.log == ["goes on"]
        wait.ready.set()
        await settle()
        assert not wait.task.done()
        second.end()
        await asyncio.gather(second.task, wait.task)
        third = Load(slots, "c")
        await settle()
        assert third.log == []
        for load in (first, third):
            load.end()
            await load.task

    run(test)


def test_several_instances_wait():
    """A load makes room once, and has its slot again once none of its instances waits."""

    async def test():
        slots = LoadSlots(1)
        first = Load(slots, "a")
        await settle()
        waits = [Wait(slots, "a"), Wait(slots, "a")]
        others = [Load(slots, "b"), Load(slots, "c")]
        await settle()
        assert [load.log for load in others] == [["goes on"], []]
        waits[0].ready.set()
        await waits[0].task
        others[0].end()
        await settle()
        assert [load.log for load in others] == [["goes on", "ended"], ["goes on"]]
        waits[1].ready.set()
        others[1].end()
        await waits[1].task
        first.end()
        await first.task

    run(test)


def test_two_that_come_back_at_once():
    """Of two instances that want the slot back at the same time each goes on, and one slot is taken."""

    async def test():
        slots = LoadSlots(1)
        first = Load(slots, "a")
        await settle()
        waits = [Wait(slots, "a"), Wait(slots, "a")]
        await settle()
        other = Load(slots, "b")
        await settle()
        waits[0].ready.set()
        await settle()
        waits[1].ready.set()
        await settle()
        again = Wait(slots, "a")
        again.ready.set()
        await settle()
        other.end()
        await asyncio.gather(*(wait.task for wait in (*waits, again)))
        last = Load(slots, "c")
        await settle()
        assert last.log == []
        first.end()
        await settle()
        assert last.log == ["goes on"]
        last.end()
        await last.task

    run(test)


def test_a_wait_that_is_cancelled():
    """It ends at once, slot or no slot, and its load gives back nothing that it does not have."""

    async def test():
        slots = LoadSlots(1)
        first = Load(slots, "a")
        await settle()
        wait = Wait(slots, "a")
        await settle()
        second = Load(slots, "b")
        await settle()
        wait.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait.task
        first.end()
        await first.task
        third = Load(slots, "c")
        await settle()
        assert third.log == []
        for load in (second, third):
            load.end()
            await load.task

    run(test)


def test_a_load_that_ends_while_it_waits():
    """One that failed while an instance of it waits for its slot back leaves the slot to others."""

    async def test():
        slots = LoadSlots(1)
        first = Load(slots, "a")
        await settle()
        wait = Wait(slots, "a")
        await settle()
        second = Load(slots, "b")
        await settle()
        wait.ready.set()
        await settle()
        first.end()
        await first.task
        second.end()
        await asyncio.gather(second.task, wait.task)
        third = Load(slots, "c")
        await settle()
        assert third.log == ["goes on"]
        third.end()
        await third.task

    run(test)


def test_who_does_not_load_has_no_place():
    """A model that serves may wait as long as it likes."""

    async def test():
        slots = LoadSlots(1)
        wait = Wait(slots, "a")
        wait.ready.set()
        await wait.task
        load = Load(slots, "b")
        await settle()
        assert load.log == ["goes on"]
        load.end()
        await load.task

    run(test)
