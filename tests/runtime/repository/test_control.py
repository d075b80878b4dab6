# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model control: valid requests, their order, and the waits between loads."""

import asyncio
import gc
import sys
import tempfile

import pytest

from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.lifecycle import LATEST
from pyruntime.utils.errors import Code, InferenceError, LoadError

from ..event_loops import settle


async def refused(step):
    """The error that something ends with."""
    with pytest.raises(InferenceError) as caught:
        await step
    return caught.value


class TestWhatIsRefused:
    @pytest.mark.parametrize("mode", ["none", "poll"])
    def test_without_explicit_control(self, world, mode):
        """Models are loaded and unloaded in explicit mode only."""

        async def test(world):
            world.add("m")
            for step in (world.control.load("m"), world.control.unload("m")):
                error = await refused(step)
                assert error.code is Code.UNAVAILABLE
                assert error.message == "explicit model load / unload is not allowed if polling is enabled"

        world(test, model_control_mode=mode)

    @pytest.mark.parametrize("name", ["", " ", "\t\n"])
    def test_no_name(self, world, name):
        """A model has a name."""

        async def test(world):
            error = await refused(world.control.load(name))
            assert error.code is Code.INVALID_ARG
            assert error.message == "Model name cannot be empty. Please enter a valid name to deploy."

        world(test)

    @pytest.mark.parametrize("name", ["..", ".", " .. ", "../m", "m/1", "/m", "m/", "/"])
    def test_a_path(self, world, name):
        """A name with a path is refused."""

        async def test(world):
            world.add("m")
            error = await refused(world.control.load(name))
            assert error.code is Code.INVALID_ARG
            assert error.message == (
                f"invalid model name '{name}', model name must not contain path traversal characters"
            )

        world(test)

    @pytest.mark.parametrize("name", ["n", ".hidden", "__pycache__", "a\0b", "\ud800", "x" * 5000])
    def test_unknown(self, world, name):
        """A model that is in no repository; its name is not remembered."""

        async def test(world):
            error = await refused(world.control.load(name))
            assert error.code is Code.INTERNAL
            assert error.message == f"failed to load '{name}', failed to poll from model repository"
            await settle()
            assert world.control._loads._models == {}
            assert world.table.index() == []
            assert world.table.is_ready(strict=True)

        world(test)

    def test_a_broken_model(self, world):
        """A model that does not come as far as its versions; the index has the reason."""

        async def test(world):
            world.add("m", config="backend: 3")
            error = await refused(world.control.load("m"))
            assert error.code is Code.INTERNAL
            assert error.message.startswith("failed to load 'm', failed to poll from model repository: ")
            (row,) = world.table.index()
            assert (row.name, row.version, row.state) == ("m", "", "UNAVAILABLE")
            assert error.message.endswith(row.reason)
            assert not world.table.is_ready(strict=True)
            await world.control.unload("m")
            assert world.table.is_ready(strict=True)

        world(test)

    def test_an_override_that_is_none(self, world):
        """The parameters of a request are checked before anything is done."""

        async def test(world):
            world.add("m")
            error = await refused(world.control.load("m", "{"))
            assert error.message.startswith("failed to load 'm', Invalid config override: ")
            error = await refused(world.control.load("m", "", {"file:1/model.py": b""}))
            assert "Load parameter 'config' must be specified" in error.message
            error = await refused(world.control.load("m", "{}", {"file:../x": b""}))
            assert "must stay within model directory" in error.message
            assert world.loader.log == []

        world(test)

    def test_after_the_end(self, world):
        """A server that exits loads nothing more."""

        async def test(world):
            world.add("m")
            await world.control.close()
            for step in (world.control.load("m"), world.control.unload("m")):
                error = await refused(step)
                assert (error.message, error.code) == ("Server exiting", Code.UNAVAILABLE)

        world(test)

    def test_our_own_mistakes(self, world, caplog):
        """An unexpected exception in a load does not end the server, and leaves no traces."""

        async def test(world):
            world.add("m")

            async def step(version):
                raise RuntimeError("nobody thought of it")

            world.loader.steps["m"] = step
            error = await refused(world.control.load("m"))
            assert error.message == "failed to load 'm', see the server's log"
            assert world.states("m") == {1: "UNAVAILABLE"}
            del world.loader.steps["m"]
            await world.control.load("m")
            assert world.states("m") == {1: "READY"}

        world(test)
        assert "nobody thought of it" in caplog.text


class TestUnload:
    def test_unknown(self, world):
        """A model that is not there is unloaded already."""

        async def test(world):
            await world.control.unload("m")
            assert world.table.index() == []

        world(test)

    def test_begins_at_once(self, world):
        """It takes no more requests when unload returns, and is there until those that it has are answered."""

        async def test(world):
            world.add("m")
            await world.control.load("m")
            model = world.table.resolve("m")
            model.busy()
            await world.control.unload("m")
            assert world.states("m") == {1: "UNLOADING"}
            await world.control.unload("m", unload_dependents=True)
            model.finished.set()
            await world.live.wait_unloaded("m")
            assert [(row.state, row.reason) for row in world.table.index()] == [("UNAVAILABLE", "unloaded")]
            await world.control.unload("m")

        world(test)

    def test_and_loaded_again(self, world):
        """A load waits until the model is unloaded, and then loads it although nothing changed."""

        async def test(world):
            world.add("m")
            await world.control.load("m")
            model = world.table.resolve("m")
            model.busy()
            await world.control.unload("m")
            load = asyncio.ensure_future(world.control.load("m"))
            await settle()
            assert world.loader.log == ["m:1"]
            model.finished.set()
            await load
            assert world.loader.log == ["m:1", "m:1"]
            assert world.states("m") == {1: "READY"}

        world(test)

    def test_an_override_is_forgotten(self, world):
        """A model that was unloaded is loaded as it is in the repository."""

        async def test(world):
            world.add("m")
            await world.control.load("m", '{"backend": "python", "max_batch_size": 7}')
            await world.control.unload("m")
            await world.control.load("m")
            assert world.table.resolve("m").config.max_batch_size == 0

        world(test)


class TestOrder:
    def test_one_after_the_other(self, world):
        """The requests for one model are carried out in the order in which they come."""

        async def test(world):
            world.add("m")
            gate = world.gate("m")
            first = asyncio.ensure_future(world.control.load("m"))
            await world.until(lambda: world.states("m") == {1: "LOADING"})
            world.touch("m/1/model.py")
            second = asyncio.ensure_future(world.control.load("m"))
            await settle()
            assert world.loader.log == ["m:1"]
            gate.set()
            await asyncio.gather(first, second)
            assert world.loader.log == ["m:1", "m:1"]
            await world.control.unload("m")
            await world.live.wait_unloaded("m")
            assert world.states("m") == {1: "UNAVAILABLE"}

        world(test)

    def test_nothing_is_kept_of_names_of_no_models(self, world):
        """Clients choose the names of their requests."""

        async def test(world):
            for number in range(3):
                with pytest.raises(InferenceError, match="failed to poll"):
                    await world.control.load(f"none{number}")
                await world.control.unload(f"no{number}")
            assert world.control._dependencies.explicit == set()
            world.add("m")
            await world.control.load("m")
            assert world.control._dependencies.explicit == {"m"}

        world(test)

    def test_an_unload_gives_up_the_loads_under_way(self, world):
        async def test(world):
            world.add("m")
            world.gate("m")
            loads = [asyncio.ensure_future(world.control.load("m")) for _ in range(2)]
            await world.until(lambda: world.loader.going_on)
            await world.control.unload("m")
            for load in loads:
                with pytest.raises(InferenceError) as caught:
                    await load
                message = "failed to load 'm': it was unloaded while it was loading"
                assert (caught.value.message, caught.value.code) == (message, Code.UNAVAILABLE)
            await world.until(lambda: world.states("m") == {1: "UNAVAILABLE"})
            assert world.loader.going_on == []
            del world.loader.steps["m"]
            await world.control.load("m")
            assert world.states("m") == {1: "READY"}

        world(test)

    def test_an_unload_right_after_a_load(self, world):
        """An unload may follow before the load has begun."""

        async def test(world):
            world.add("m")
            load = asyncio.ensure_future(world.control.load("m"))
            await asyncio.sleep(0)
            await world.control.unload("m")
            with pytest.raises(InferenceError, match="it was unloaded while it was loading"):
                await load
            await world.control.load("m")
            assert world.states("m") == {1: "READY"}

        world(test)

    def test_the_same_load_twice(self, world):
        """Of two loads at once the second one finds nothing to do."""

        async def test(world):
            world.add("m")
            await asyncio.gather(*(world.control.load("m") for _ in range(3)))
            assert world.loader.log == ["m:1"]

        world(test)

    def test_different_models(self, world):
        """Different models load at the same time, as many as the operator says."""

        async def test(world):
            names = "abcde"
            world.add(*names)
            gates = [world.gate(name) for name in names]
            loads = [asyncio.ensure_future(world.control.load(name)) for name in names]
            await world.until(lambda: len(world.loader.going_on) == 3)
            for gate in gates:
                gate.set()
            await asyncio.gather(*loads)
            assert world.loader.most == 3

        world(test, model_load_thread_count=3)

    def test_a_drain_takes_no_place(self, world):
        """A load that waits for an unload does not block other loads."""

        async def test(world):
            world.add("m", "n")
            await world.control.load("m")
            model = world.table.resolve("m")
            model.busy()
            await world.control.unload("m")
            load = asyncio.ensure_future(world.control.load("m"))
            await settle()
            await world.control.load("n")
            model.finished.set()
            await load

        world(test, model_load_thread_count=1)

    def test_nobody_waits_any_more(self, world):
        """A load goes on although who asked for it has lost interest."""

        async def test(world):
            world.add("m")
            gate = world.gate("m")
            load = asyncio.ensure_future(world.control.load("m"))
            await world.until(lambda: world.states("m") == {1: "LOADING"})
            load.cancel()
            await settle()
            assert load.cancelled()
            gate.set()
            await world.until(lambda: world.states("m") == {1: "READY"})

        world(test)


class TestOverrides:
    CONFIG = '{"backend": "python", "max_batch_size": 7}'

    def test_a_configuration_holds(self, world):
        """A configuration that came with a load holds for plain ones, until the model's own is newer."""

        async def test(world):
            world.add("m")
            await world.control.load("m", self.CONFIG)
            first = world.table.resolve("m")
            assert first.config.max_batch_size == 7
            await world.control.load("m")
            await world.control.load("m", self.CONFIG)
            assert world.table.resolve("m") is first
            world.touch("m/1/model.py")
            await world.control.load("m")
            assert world.table.resolve("m").config.max_batch_size == 7
            world.touch("m/config.pbtxt")
            await world.control.load("m")
            assert world.table.resolve("m").config.max_batch_size == 0

        world(test)

    def test_a_configuration_that_fails(self, world):
        """One that does not load changes nothing, and is not remembered."""

        async def test(world):
            world.add("m")
            await world.control.load("m")
            before = world.table.resolve("m")
            world.fail("m")
            await refused(world.control.load("m", self.CONFIG))
            del world.loader.steps["m"]
            await world.control.load("m")
            assert world.table.resolve("m") is before

        world(test)

    def test_files(self, world, tmp_path, monkeypatch):
        """Files that came with a load are the model's until the next load, and are removed when they are not needed."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()

        async def test(world):
            world.add("m")
            await world.control.load("m")
            own = world.table.resolve("m")
            for _ in range(2):  # an override is always new
                before = world.table.resolve("m")
                await world.control.load("m", self.CONFIG, {"file:3/model.py": b""})
                model = world.table.resolve("m")
                assert model is not before
                assert (model.version, model.config.max_batch_size) == (3, 7)
                assert (model.path.startswith(str(tmp_path / "tmp")), own.path.startswith(str(tmp_path / "tmp"))) == (
                    True, False,
                )  # fmt: skip
                await world.until(lambda: len(list((tmp_path / "tmp").iterdir())) == 1)
            await world.control.load("m")
            assert world.table.resolve("m").version == 1
            assert world.table.resolve("m").config.max_batch_size == 0
            await world.until(lambda: not list((tmp_path / "tmp").iterdir()))

        world(test)

    def test_files_of_a_model_that_fails(self, world, tmp_path, monkeypatch):
        """They are gone at once; what serves is not changed."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()

        async def test(world):
            world.add("m")
            await world.control.load("m")
            before = world.table.resolve("m")
            world.fail("m")
            await refused(world.control.load("m", self.CONFIG, {"file:1/model.py": b""}))
            assert world.table.resolve("m") is before
            assert list((tmp_path / "tmp").iterdir()) == []
            error = await refused(world.control.load("m", self.CONFIG, {f"file:{'x' * 300}": b""}))
            assert "the override files of model 'm' cannot be written" in error.message
            assert list((tmp_path / "tmp").iterdir()) == []

        world(test)

    @pytest.mark.parametrize("fails", [False, True])
    def test_contents_of_files(self, world, fails):
        """Nothing refers to them after the load: they may take much memory."""
        contents = bytes(range(256))

        async def test(world):
            world.add("m")
            await world.control.load("m")
            if fails:
                world.fail("m")
            before = sys.getrefcount(contents)
            load = world.control.load("m", self.CONFIG, {"file:1/model.py": contents})
            if fails:
                await refused(load)
            else:
                await load
            del load
            await settle()
            gc.collect()
            assert sys.getrefcount(contents) == before

        world(test)

    def test_files_of_a_model_that_is_nowhere_else(self, world, tmp_path, monkeypatch):
        """A model may come with the request altogether; when it is unloaded it is gone."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()

        async def test(world):
            await world.control.load("new", self.CONFIG, {"file:1/model.py": b""})
            assert world.states("new") == {1: "READY"}
            error = await refused(world.control.load("new"))
            assert error.message == "failed to load 'new', failed to poll from model repository"
            assert world.states("new") == {1: "READY"}
            await world.control.unload("new")
            await world.live.wait_unloaded("new")
            assert list((tmp_path / "tmp").iterdir()) == []

        world(test)


def chain(world, *edges):
    """Have models wait for others while they load: `ab` for a that waits for b. Returns the results of the waits."""
    got = {}
    for waiter, *targets in edges:

        async def step(version, waiter=waiter, targets=targets):
            for target in targets:
                try:
                    got[waiter, target] = await world.control.wait_ready(target, LATEST, waiter)
                except InferenceError as exc:
                    got[waiter, target] = exc

        world.loader.steps[waiter] = step
    return got


class TestWaitReady:
    def test_what_serves(self, world):
        """A model that serves is there at once, by version or without; also while it is loaded anew."""

        async def test(world):
            world.add("m", versions=(1, 2), config="backend: 'python' version_policy { all {} }")
            await world.control.load("m")
            first, second = world.table.resolve("m", 1), world.table.resolve("m", 2)
            world.touch("m/2/model.py")
            gate = world.gate("m")
            load = asyncio.ensure_future(world.control.load("m"))
            await world.until(lambda: world.states("m")[2] == "RELOADING")
            assert await world.control.wait_ready("m", LATEST, "") is second
            assert await world.control.wait_ready("m", 1, "x") is first
            gate.set()
            await load

        world(test)

    @pytest.mark.parametrize(
        ("name", "version", "code"),
        [("m", 7, Code.NOT_FOUND), ("n", LATEST, Code.NOT_FOUND), ("f", 1, Code.UNAVAILABLE)],
    )
    def test_what_does_not_come(self, world, name, version, code):
        """A model that is not being loaded is refused at once, with Triton's message."""

        async def test(world):
            world.add("m", "f", "n")
            world.fail("f")
            await world.control.load("m")
            await refused(world.control.load("f"))
            error = await refused(world.control.wait_ready(name, version, ""))
            assert error.code is code
            assert error.message == f"Failed for execute the inference request. Model '{name}' is not ready."

        world(test)

    @pytest.mark.parametrize("names", ["abc", "cba", "bca"])
    @pytest.mark.parametrize("count", [1, 4])
    def test_the_order_that_need_be(self, world, names, count):
        """At the start, models load in the order that their calls to each other need."""

        async def test(world):
            world.add(*names)
            got = chain(world, "ab", "bc")
            assert await world.control.start(names)
            assert got == {("a", "b"): world.table.resolve("b"), ("b", "c"): world.table.resolve("c")}
            assert world.table.index()[0].state == "READY"

        world(test, model_load_thread_count=count)

    def test_a_load_that_is_not_its_turn_yet(self, world):
        """A load that has not begun is waited for; a load that fails ends the wait."""

        async def test(world):
            world.add("a", "b")
            world.fail("b")
            got = chain(world, "ab")
            assert not await world.control.start("ab")
            assert got["a", "b"].message == "Failed for execute the inference request. Model 'b' is not ready."
            assert world.states("a") == {1: "READY"}

        world(test, model_load_thread_count=1)

    def test_a_model_that_is_broken(self, world):
        """One that does not even come to its versions ends the wait too."""

        async def test(world):
            world.add("a")
            world.add("b", config="backend: 3")
            got = chain(world, "ab")
            assert not await world.control.start("ab")
            assert got["a", "b"].code is Code.NOT_FOUND

        world(test, model_load_thread_count=1)

    def test_one_version_of_several(self, world):
        """A wait for one version does not wait for the others, and ends when this version has failed."""

        async def test(world):
            world.add("m", versions=(1, 2, 3), config="backend: 'python' version_policy { all {} }")
            gate = asyncio.Event()
            world.fail("m", 1)
            fail = world.loader.steps["m"]

            async def step(version):
                await fail(version)
                if version == 2:
                    await gate.wait()

            world.loader.steps["m"] = step
            load = asyncio.ensure_future(refused(world.control.load("m")))
            await asyncio.sleep(0)
            waits = [asyncio.ensure_future(world.control.wait_ready("m", version, "")) for version in (2, 3, LATEST)]
            error = await refused(world.control.wait_ready("m", 1, ""))
            assert error.code is Code.UNAVAILABLE
            assert (await waits[1]) is (await waits[2]) is world.table.resolve("m", 3)
            assert not waits[0].done()
            gate.set()
            assert await waits[0] is world.table.resolve("m", 2)
            await load

        world(test)

    def test_many_wait(self, world):
        """All waits end; a cancelled one has no effect on the others."""

        async def test(world):
            world.add("m")
            gate = world.gate("m")
            load = asyncio.ensure_future(world.control.load("m"))
            waits = [asyncio.ensure_future(world.control.wait_ready("m", LATEST, name)) for name in ("", "a", "a", "b")]
            await settle()
            waits[1].cancel()
            gate.set()
            await load
            found = await asyncio.gather(*waits, return_exceptions=True)
            assert isinstance(found.pop(1), asyncio.CancelledError)
            assert found == [world.table.resolve("m")] * 3
            assert repr(world.control._waits) == "<LoadWaits <WaitGraph []>>"

        world(test)

    @pytest.mark.parametrize(
        ("edges", "told"),
        [
            (["aa"], ["a -> a"]),
            (["ab", "ba"], ["a -> b -> a", "b -> a -> b"]),
            (["ab", "bc", "ca"], ["a -> b -> c -> a"]),
        ],
    )
    @pytest.mark.parametrize("count", [1, 4])
    def test_a_circle(self, world, edges, told, count):
        """A wait that could never end is refused, so that none of the models hangs."""

        async def test(world):
            names = sorted({name for edge in edges for name in edge})
            world.add(*names)
            got = chain(world, *edges)
            assert await world.control.start(names)
            errors = [outcome for outcome in got.values() if isinstance(outcome, InferenceError)]
            assert len(errors) == 1
            assert errors[0].code is Code.UNAVAILABLE
            start, circle = errors[0].message.rsplit(": ", 1)
            assert start.endswith("is not ready: each of these models would wait for the next one to load")
            turned = circle.split(" -> ")[:-1]
            assert any(sorted(turned) == sorted(each.split(" -> ")[:-1]) for each in told)
            assert circle.split(" -> ")[0] == circle.split(" -> ")[-1]

        world(test, model_load_thread_count=count)

    def test_what_a_failed_load_leaves(self, world):
        """A wait of a failed load does not count any more: later waits for its model are not refused."""

        async def test(world):
            world.add("a", "b")
            gate = world.gate("b")
            left = []

            async def fail(version):
                left.append(asyncio.ensure_future(world.control.wait_ready("b", LATEST, "a")))
                await settle()
                raise LoadError("no")

            world.loader.steps["a"] = fail
            loading_b = asyncio.ensure_future(world.control.load("b"))
            await settle()
            await refused(world.control.load("a"))
            gate_a = world.gate("a")
            loading_a = asyncio.ensure_future(world.control.load("a"))
            await world.until(lambda: world.states("a") == {1: "LOADING"})
            wait = asyncio.ensure_future(world.control.wait_ready("a", LATEST, "b"))
            await settle()
            assert not wait.done()
            gate_a.set()
            gate.set()
            await asyncio.gather(loading_a, loading_b, wait, *left)

        world(test)

    def test_the_server_stops(self, world):
        """A wait ends when the server stops."""

        async def test(world):
            world.add("m")
            world.gate("m")
            load = asyncio.ensure_future(refused(world.control.load("m")))
            wait = asyncio.ensure_future(refused(world.control.wait_ready("m", LATEST, "")))
            await world.until(lambda: world.states("m") == {1: "LOADING"})
            await world.control.close()
            assert (await load).message == "Server exiting"
            assert (await wait).message.endswith("Model 'm' is not ready.")

        world(test)


class TestLoadsByModels:
    """A model that asks for another one while it is itself loading."""

    def test_goes_on_with_one_place(self, world):
        """A load that waits for another one makes room for it."""

        async def test(world):
            world.add("a", "b")

            async def step(version):
                await world.control.load("b", caller="a")

            world.loader.steps["a"] = step
            await world.control.load("a")
            assert world.states("a") == world.states("b") == {1: "READY"}

        world(test, model_load_thread_count=1)

    def test_itself(self, world):
        """It cannot wait for its own load."""

        async def test(world):
            world.add("a")
            errors = []

            async def step(version):
                errors.append(await refused(world.control.load("a", caller="a")))

            world.loader.steps["a"] = step
            await world.control.load("a")
            assert errors[0].message == (
                "failed to load 'a': each of these models would wait for the next one to load: a -> a"
            )

        world(test)

    def test_each_other(self, world):
        """A load may not wait for one that waits for it, in either way."""

        async def test(world):
            world.add("a", "b")
            got = chain(world, "ba")

            async def step(version):
                await world.control.load("b", caller="a")

            world.loader.steps["a"] = step
            await world.control.load("a")
            assert got["b", "a"].message.endswith(": b -> a -> b")

        world(test, model_load_thread_count=1)

    def test_unloading_itself(self, world):
        """Its load is given up."""

        async def test(world):
            world.add("a")

            async def step(version):
                await world.control.unload("a")

            world.loader.steps["a"] = step
            with pytest.raises(InferenceError, match="it was unloaded while it was loading"):
                await world.control.load("a")
            await world.until(lambda: world.states("a") == {1: "UNAVAILABLE"})

        world(test)


class TestStart:
    def started(self, world, **settings):
        """Which models are loaded at the start, and whether all is well then."""
        outcome = []

        async def test(world):
            world.add("a", "b", "c")
            names = world.control.find_models()
            outcome.append(await world.control.start(names))
            outcome.append([row.name for row in world.table.index() if row.state == "READY"])
            outcome.append([row.name for row in world.table.index()])

        world(test, **settings)
        return outcome

    @pytest.mark.parametrize("mode", ["none", "poll"])
    def test_everything(self, world, mode):
        """Without explicit control everything is loaded."""
        assert self.started(world, model_control_mode=mode) == [True, ["a", "b", "c"], ["a", "b", "c"]]

    def test_nothing(self, world):
        """With it nothing is, and the index has all there is."""
        assert self.started(world) == [True, [], ["a", "b", "c"]]

    def test_what_is_named(self, world):
        """Models that are named are loaded."""
        assert self.started(world, load_models=("c", "a", "c")) == [True, ["a", "c"], ["a", "b", "c"]]

    def test_the_star(self, world):
        """A star loads all models."""
        assert self.started(world, load_models=("*", "*")) == [True, ["a", "b", "c"], ["a", "b", "c"]]

    def test_what_is_not_there(self, world, caplog):
        """A model that is named and does not exist has failed."""
        assert self.started(world, load_models=("a", "x")) == [False, ["a"], ["a", "b", "c", "x"]]
        assert "failed to load 'x', failed to poll from model repository" in caplog.text

    def test_backends(self, world):
        """The backends that models have in common are noted; a model that has none says so when it loads."""

        def backend_of(draft, version):
            if draft.folder.name == "c":
                raise LoadError("there is none")
            kind = "python_based" if draft.folder.name == "b" else "python"
            return Backend(f"of {draft.folder.name}", kind, "/backends/model.py")

        async def test(world):
            world.add("a", "b", "c")
            world.loader.backend_of = backend_of
            assert await world.control.start(world.control.find_models())
            assert world.control.backends == {("of b", "/backends/model.py")}

        world(test, model_control_mode="none")

    def test_what_fails(self, world):
        """A model that does not load has failed, and the others are ready."""

        async def test(world):
            world.add("a", "b")
            world.fail("a")
            assert not await world.control.start(world.control.find_models())
            assert world.states("b") == {1: "READY"}

        world(test, model_control_mode="none")

    def test_an_empty_repository(self, world):
        """Loading no models succeeds."""

        async def test(world):
            assert await world.control.start(world.control.find_models())

        world(test)
