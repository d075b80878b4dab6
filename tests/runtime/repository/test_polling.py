# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Polling the repositories: what counts as a change, and what becomes of it."""

import asyncio
import shutil
from contextlib import asynccontextmanager, suppress

import pytest

from pyruntime.runtime.repository.polling import RETRY_POLLS_MAX, Changes, Polling, Seen, Stamp, look
from pyruntime.utils.errors import InferenceError, LoadError


def stamps(**files):
    return {name: Stamp(f"/models/{name}", "", content) for name, content in files.items()}


class TestSeen:
    @pytest.fixture
    def seen(self):
        seen = Seen()
        assert seen.look(stamps(a=b"1", b=b"1")) == Changes(["a", "b"], [])
        return seen

    def test_nothing_changed(self, seen):
        """Without changes there is nothing to load."""
        assert seen.look(stamps(a=b"1", b=b"1")) == Changes([], [])

    def test_changes(self, seen):
        """Models come, change and go."""
        assert seen.look(stamps(b=b"2", c=b"1")) == Changes(["b", "c"], ["a"])
        assert seen.look(stamps(b=b"2", c=b"1")) == Changes([], [])
        assert seen.look(stamps(a=b"1", b=b"2", c=b"1")) == Changes(["a"], [])

    @pytest.mark.parametrize("stamp", [Stamp("/elsewhere/a", "", b"1"), Stamp("/models/a", "is there twice", b"1")])
    def test_other_changes(self, seen, stamp):
        """A model may also move, or become one that cannot be served."""
        assert seen.look({**stamps(b=b"1"), "a": stamp}) == Changes(["a"], [])

    def test_failures(self, seen):
        """A failed load is due again after 1, 1, 2, 4 polls and so on; unless the folder is gone."""
        found, waits = stamps(a=b"1", b=b"1"), []
        seen.failed("c")
        for _ in range(10):
            seen.failed("a")
            polls = 1
            while seen.look(found) != Changes(["a"], []):
                polls += 1
            waits.append(polls)
        assert waits == [1, 1, 2, 4, 8, 16, 32, 64, 64, 64]
        seen.failed("a")
        assert seen.look(stamps(b=b"1")) == Changes([], ["a"])
        assert all(seen.look(stamps(b=b"1")) == Changes([], []) for _ in range(2 * RETRY_POLLS_MAX))

    @pytest.mark.parametrize("end", ["loaded", "changed"])
    def test_the_end_of_failures(self, seen, end):
        """After a success, and after a change of the folder, the counting begins anew."""
        for _ in range(5):
            seen.failed("a")
        found = stamps(a=b"1", b=b"1")
        if end == "loaded":
            seen.loaded("a")
        else:
            found = stamps(a=b"2", b=b"1")
            assert seen.look(found) == Changes(["a"], [])
        assert all(seen.look(found) == Changes([], []) for _ in range(2 * RETRY_POLLS_MAX))
        seen.failed("a")
        assert seen.look(found) == Changes(["a"], [])


class Clock:
    """Time passes when the test says so: `async with clock.tick()` lets one look happen."""

    def __init__(self):
        self.waited = []
        self._asleep = asyncio.Event()
        self._wake = asyncio.Event()

    async def sleep(self, seconds):
        self.waited.append(seconds)
        self._asleep.set()
        await self._wake.wait()
        self._wake.clear()

    async def tick(self):
        """Run until it sleeps again: one look, and the beginning of its loads."""
        await self._asleep.wait()
        self._asleep.clear()
        self._wake.set()
        await self._asleep.wait()


@pytest.fixture
def polling(world):
    """`polling(test)`: run `await test(world, tick)`; models are loaded by looks alone, one with each tick."""

    def run(test, **settings):
        async def main(world):
            clock = Clock()
            async with polled(world, clock) as task:
                await test(world, clock.tick)
                assert set(clock.waited) == {7}
                assert not task.done()

        world(main, model_control_mode="poll", repository_poll_s=7, **settings)

    @asynccontextmanager
    async def polled(world, clock):
        task = asyncio.create_task(Polling(world.settings, world.control, clock.sleep).run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    return run


class TestPolling:
    def test_a_new_model(self, polling):
        """It is loaded, once."""

        async def test(world, tick):
            await tick()
            assert world.loader.log == []
            world.add("m")
            for _ in range(3):
                await tick()
                await world.until(lambda: world.states("m") == {1: "READY"})
            assert world.loader.log == ["m:1"]
            assert [row.name for row in world.table.index()] == ["m"]

        polling(test)

    def test_a_changed_model(self, polling):
        """Versions that changed are loaded anew, those that are new too, and those that are gone end."""

        async def test(world, tick):
            world.add("m", versions=(1, 2), config="backend: 'python' version_policy: { all: {} }")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY", 2: "READY"})
            world.touch("m/1/model.py")
            await tick()
            await world.until(lambda: world.loader.log == ["m:1", "m:2", "m:1"])
            shutil.rmtree(world.repository / "m" / "2")
            world.add("m", versions=(3,), config="backend: 'python' version_policy: { all: {} }")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY", 2: "UNAVAILABLE", 3: "READY"})
            assert world.loader.log[3:] == ["m:3"]

        polling(test)

    def test_a_model_that_goes(self, polling):
        """It is unloaded, and comes back with its folder."""

        async def test(world, tick):
            world.add("m", "n")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"})
            shutil.move(world.repository / "m", world.repository / ".m")
            await tick()
            await world.until(lambda: world.states("m") == {1: "UNAVAILABLE"})
            assert world.table.is_ready(strict=True)
            shutil.move(world.repository / ".m", world.repository / "m")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"})
            assert world.states("n") == {1: "READY"}

        polling(test)

    def test_a_model_that_fails(self, polling):
        """It is tried again with each look, until it loads; the others are not."""

        async def test(world, tick):
            world.add("m", "n")
            world.fail("m")
            await tick()
            await world.until(lambda: world.states("m") == {1: "UNAVAILABLE"})
            await world.until(lambda: not len(world.control._loads))
            await tick()
            await world.until(lambda: world.loader.log.count("m:1") == 2 and not len(world.control._loads))
            del world.loader.steps["m"]
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"} and not len(world.control._loads))
            await tick()
            assert sorted(world.loader.log) == ["m:1"] * 3 + ["n:1"]

        polling(test)

    def test_a_change_that_fails(self, polling):
        """The version that serves goes on."""

        async def test(world, tick):
            world.add("m")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"})
            serving = world.table.resolve("m")
            world.fail("m")
            world.touch("m/1/model.py")
            await tick()
            await world.until(lambda: len(world.loader.log) == 2 and not len(world.control._loads))
            assert world.table.resolve("m") is serving
            (row,) = world.table.index()
            assert row.state == "READY"
            older = "an older configuration serves, because the latest failed to load: "
            assert row.reason == f"{older}version 1: Internal: ValueError: no"
            # One try for one edit.
            await tick()
            await tick()
            assert len(world.loader.log) == 2
            (world.repository / "m" / "config.pbtxt").write_text("backend: '")
            await tick()
            await world.until(lambda: "config.pbtxt" in world.table.index()[0].reason)
            assert world.table.is_ready(strict=True)
            del world.loader.steps["m"]
            world.add("m")
            world.touch("m/1/model.py")
            await tick()
            await world.until(lambda: world.table.resolve("m") is not serving)
            assert world.table.index()[0].reason == ""

        polling(test)

    def test_a_change_that_is_taken_back(self, polling):
        """What serves is what the folder has again."""

        async def test(world, tick):
            world.add("m")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"})
            serving = world.table.resolve("m")
            (world.repository / "m" / "config.pbtxt").write_text("backend: '")
            await tick()
            await world.until(lambda: world.table.index()[0].reason)
            (world.repository / "m" / "config.pbtxt").write_text("backend: 'python'")
            await tick()
            await world.until(lambda: not world.table.index()[0].reason)
            assert world.table.resolve("m") is serving

        polling(test)

    def test_looks_do_not_wait_for_loads(self, polling):
        """A slow load does not block other models."""

        async def test(world, tick):
            world.add("slow")
            gate = world.gate("slow")
            await tick()
            await world.until(lambda: world.loader.log == ["slow:1"])
            world.add("m")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"})
            assert world.states("slow") == {1: "LOADING"}
            gate.set()
            await world.until(lambda: world.states("slow") == {1: "READY"})

        polling(test)

    def test_a_repository_that_cannot_be_read(self, polling, caplog):
        """Models stay loaded, and the failure is logged once."""

        async def test(world, tick):
            world.add("m")
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"})
            away = world.repository.with_name("away")
            for _ in range(2):
                world.repository.rename(away)
                await tick()
                await tick()
                away.rename(world.repository)
                await tick()
            assert world.states("m") == {1: "READY"}
            assert world.loader.log == ["m:1"]

        polling(test)
        said = [record.getMessage() for record in caplog.records if "stay as they are" in record.getMessage()]
        assert len(said) == 2
        assert all("cannot be read: No such file or directory" in line for line in said)

    def test_whatever_goes_wrong(self, polling, monkeypatch, caplog):
        """A bug of ours does not end the server, nor the polling."""

        async def test(world, tick):
            world.add("m")
            with monkeypatch.context() as patched:
                patched.setattr("pyruntime.runtime.repository.polling.look", lambda settings: 1 / 0)
                await tick()
            await tick()
            await world.until(lambda: world.states("m") == {1: "READY"})

        polling(test)
        assert "ZeroDivisionError" in caplog.text

    def test_by_hand_nothing_is_loaded(self, polling):
        """With polling, requests to load and unload are refused."""

        async def test(world, tick):
            world.add("m")
            for step in (world.control.load("m"), world.control.unload("m")):
                with pytest.raises(InferenceError, match="is not allowed if polling is enabled"):
                    await step
            assert world.loader.log == []
            await tick()

        polling(test)


class TestLook:
    @pytest.fixture
    def found(self, world):
        """`found(test)`: `test(world, look)`, where `look` returns the folders that are found now."""

        def run(test):
            async def main(world):
                world.add("m")
                test(world, lambda: look(world.settings))

            world(main)

        return run

    @pytest.mark.parametrize("path", ["m/config.pbtxt", "m/1/model.py"])
    def test_a_file_that_changes(self, found, path):
        """Whichever it is."""

        def test(world, look):
            before = look()
            assert look() == before
            world.touch(path)
            assert look()["m"] != before["m"]

        found(test)

    @pytest.mark.parametrize("name", ["__pycache__/model.pyc", ".model.py.swp", "model.py~"])
    def test_what_is_no_change(self, found, name):
        """Files that Python and editors leave behind are no change."""

        def test(world, look):
            before = look()
            path = world.repository / "m" / "1" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("")
            assert look() == before

        found(test)

    def test_no_repository(self, found):
        """A missing repository is an error and not an empty one."""

        def test(world, look):
            shutil.rmtree(world.repository)
            with pytest.raises(LoadError):
                look()
            world.repository.mkdir()
            assert look() == {}

        found(test)
