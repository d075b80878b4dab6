# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model versions with processes, from the end of their load until the processes are gone."""

import asyncio

from pyruntime.runtime.repository.live import FINALIZE_S_MIN

REASON = "instance m_0 is down: it died"


class Folder:
    """Stands for an OverrideFolder."""

    def __init__(self):
        self.holders = 0
        self.retired = 0

    def hold(self):
        self.holders += 1

    async def retire(self):
        self.retired += 1

    def release(self):
        self.holders -= 1


def serve(world, model, folder=None):
    """Load and serve a version."""
    world.live.begin_load(model.spec.name, model.version)
    world.live.adopt(model, folder)
    world.live.serve(model)
    return model


def test_replaced(world, version):
    """A replaced version gets no more requests, finishes those that it has, and is stopped."""

    async def test(world):
        old = serve(world, version("m", 1))
        old.busy()
        new = serve(world, version("m", 1))
        assert world.table.resolve("m") is new
        await world.until(lambda: old.stops == [30])
        assert repr(world.live) == "<LiveVersions [2 alive, 1 of them retiring]>"
        assert world.states("m") == {1: "READY"}
        old.finished.set()
        await world.until(lambda: repr(world.live) == "<LiveVersions [1 alive, 0 of them retiring]>")
        assert new.stops == []

    world(test)


def test_unloaded(world, version):
    """An unloaded version is UNLOADING until its processes are gone."""

    async def test(world):
        model = serve(world, version("m", 1))
        model.busy()
        world.live.unload("m", 1)
        assert world.states("m") == {1: "UNLOADING"}
        waiting = asyncio.ensure_future(world.live.wait_unloaded("m"))
        await world.until(lambda: model.stops)
        assert not waiting.done()
        model.finished.set()
        await waiting
        assert world.states("m") == {1: "UNAVAILABLE"}
        assert world.table.is_ready(strict=True)

    world(test)


def test_unloaded_without_processes(world):
    """A version that failed to load is unloaded at once."""

    async def test(world):
        world.live.begin_load("m", 1)
        world.live.fail("m", 1, "no")
        assert not world.table.is_ready(strict=True)
        world.live.unload("m", 1)
        assert world.table.is_ready(strict=True)
        await world.live.wait_unloaded("m")

    world(test)


def test_lost(world, version):
    """A version without living instances is out of service, and serves again with the first that lives again."""

    async def test(world):
        model = serve(world, version("m", 1))
        world.live.lost(model, REASON)
        assert world.states("m") == {1: "UNAVAILABLE"}
        assert [row.reason for row in world.table.index()] == [REASON]
        assert list(world.table.down.values()) == [model]
        world.live.lost(model, "")
        assert world.table.resolve("m") is model
        assert [row.reason for row in world.table.index()] == [""]
        assert (world.table.down, model.stops) == ({}, [])

    world(test)


def test_lost_and_unloaded(world, version):
    """A lost version is unloaded like any other, and does not come back."""

    async def test(world):
        model = serve(world, version("m", 1))
        world.live.lost(model, REASON)
        world.live.unload("m", 1)
        assert world.states("m") == {1: "UNLOADING"}
        world.live.lost(model, "")
        await world.live.wait_unloaded("m")
        assert (world.states("m"), world.table.down) == ({1: "UNAVAILABLE"}, {})
        assert model.stops

    world(test)


def test_lost_and_replaced(world, version):
    """A load replaces a lost version; until then that one may come back if the load fails."""

    async def test(world):
        old = serve(world, version("m", 1))
        world.live.lost(old, REASON)
        world.live.begin_load("m", 1)
        world.live.lost(old, "")
        assert world.states("m") == {1: "LOADING"}
        world.live.fail("m", 1, "no")
        assert world.table.resolve("m") is old
        world.live.lost(old, REASON)
        new = serve(world, version("m", 1))
        assert world.table.resolve("m") is new
        await world.until(lambda: old.stops)
        assert world.table.down == {}

    world(test)


def test_lost_before_it_serves(world, version):
    """One that is lost while others still load never serves."""

    async def test(world):
        model = version("m", 1)
        world.live.begin_load("m", 1)
        world.live.adopt(model, None)
        assert world.live.why_lost(model) == ""
        world.live.lost(model, REASON)
        assert world.live.why_lost(model) == REASON
        world.live.serve(model)
        assert world.states("m") == {1: "UNAVAILABLE"}

    world(test)


def test_lost_while_it_is_loaded_anew(world, version):
    """The new load decides: if it succeeds, the model is not lost."""

    async def test(world):
        old = serve(world, version("m", 1))
        world.live.begin_load("m", 1)
        world.live.lost(old, REASON)
        assert world.states("m") == {1: "RELOADING"}
        new = version("m", 1)
        world.live.adopt(new, None)
        world.live.serve(new)
        assert world.table.resolve("m") is new
        await world.until(lambda: old.stops)

    world(test)


def test_lost_while_it_is_loaded_anew_in_vain(world, version):
    """If it fails, the version is lost after all."""

    async def test(world):
        old = serve(world, version("m", 1))
        world.live.begin_load("m", 1)
        world.live.lost(old, REASON)
        world.live.fail("m", 1, "no")
        assert [(row.state, row.reason) for row in world.table.index()] == [("UNAVAILABLE", REASON)]
        assert list(world.table.down.values()) == [old]

    world(test)


def test_a_failure_leaves_what_serves(world, version):
    """A load that fails changes nothing for what serves."""

    async def test(world):
        old = serve(world, version("m", 1))
        world.live.begin_load("m", 1)
        world.live.fail("m", 1, "no")
        assert world.table.resolve("m") is old
        assert old.stops == []

    world(test)


def test_lost_after_it_was_replaced(world, version):
    """The loss of a replaced version does not affect its successor."""

    async def test(world):
        old = serve(world, version("m", 1))
        old.busy()
        new = serve(world, version("m", 1))
        world.live.lost(old, REASON)
        assert world.table.resolve("m") is new
        old.finished.set()

    world(test)


def test_folders(world, version):
    """A folder is held by each version that was loaded from it, until that one is gone."""

    async def test(world):
        folder = Folder()
        models = [serve(world, version("m", number), folder) for number in (1, 2)]
        assert folder.holders == 2
        for model in models:
            model.busy()
            world.live.unload("m", model.version)
        models[0].finished.set()
        await world.until(lambda: folder.holders == 1)
        models[1].finished.set()
        await world.until(lambda: folder.holders == 0)

    world(test)


def test_stop(world, version):
    """Stopping the server stops every version once, and waits for retiring ones."""

    async def test(world):
        first, second, third = (serve(world, version("m", number)) for number in (1, 2, 3))
        first.busy()
        world.live.unload("m", 1)
        await world.until(lambda: first.stops)
        stopping = asyncio.ensure_future(world.live.stop(5))
        await world.until(lambda: third.stops)
        assert not stopping.done()
        first.finished.set()
        await stopping
        assert (first.stops, second.stops, third.stops) == ([30], [5], [5])
        assert repr(world.live) == "<LiveVersions [0 alive, 0 of them retiring]>"

    world(test)


def test_a_little_time_for_finalize(world, version):
    """However little time is left, finalize has some."""

    async def test(world):
        model = serve(world, version("m", 1))
        await world.live.stop(-3.0)
        assert model.stops == [FINALIZE_S_MIN]

    world(test)


def test_kill(world, version):
    """Everything that has processes is killed, also what gets no requests any more."""

    async def test(world):
        models = [serve(world, version("m", number)) for number in (1, 2)]
        models[0].busy()
        world.live.unload("m", 1)
        world.live.kill()
        assert [model.kills for model in models] == [1, 1]

    world(test)


def test_news(world):
    """A wait for changes of a model ends with each change of its versions, and not with those of other models."""

    async def test(world):
        heard = []

        async def listen(name):
            while True:
                await world.live.wait_changed(name)
                heard.append(name)

        listeners = [asyncio.ensure_future(listen(name)) for name in ("m", "n", "m")]
        await asyncio.sleep(0)
        world.live.begin_load("m", 1)
        await asyncio.sleep(0)
        assert heard == ["m", "m"]
        listeners[0].cancel()
        await asyncio.sleep(0)
        world.live.fail("m", 1, "no")
        await asyncio.sleep(0)
        assert heard == ["m", "m", "m"]
        for listener in listeners:
            listener.cancel()

    world(test)
