# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which versions of a model a load loads, unloads and leaves alone."""

import asyncio

import pytest

from pyruntime.utils.errors import Code, InferenceError, LoadError

ALL = "backend: 'python' version_policy { all {} }"


def handles(world, name="m"):
    """The model versions that serve, by number."""
    return {version: world.table.resolve(name, version) for version in world.table.ready_versions(name)}


async def refused(world, *args, **kwargs):
    """The error that a load ends with."""
    with pytest.raises(InferenceError) as caught:
        await world.control.load(*args, **kwargs)
    return caught.value


def test_unmodified(world):
    """A model that is as it was is not loaded again."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        before = handles(world)
        assert before.keys() == {1, 2}
        await world.control.load("m")
        (world.repository / "m" / "config.pbtxt").write_text(ALL + "  # nothing new")
        (world.repository / "m" / "1" / "__pycache__").mkdir()
        (world.repository / "m" / "1" / "__pycache__" / "model.pyc").write_text("")
        await world.control.load("m")
        assert handles(world) == before
        assert world.loader.log == ["m:1", "m:2"]

    world(test)


def test_modified(world):
    """A model that changed is loaded anew; what served before does so until then, and is stopped."""

    async def test(world):
        world.add("m")
        await world.control.load("m")
        old = world.table.resolve("m")
        world.touch("m/1/model.py")
        gate = world.gate("m")
        load = asyncio.ensure_future(world.control.load("m"))
        await world.until(lambda: world.states("m") == {1: "RELOADING"})
        assert world.table.resolve("m") is old
        assert old.stops == []
        gate.set()
        await load
        assert world.table.resolve("m") is not old
        await world.until(lambda: old.stops)

    world(test)


def test_one_version(world):
    """A change of one version is no business of the others."""

    async def test(world):
        world.add("m", versions=(1, 2, 3), config=ALL)
        await world.control.load("m")
        before = handles(world)
        world.touch("m/2/model.py")
        await world.control.load("m")
        after = handles(world)
        assert (after[1], after[3]) == (before[1], before[3])
        assert after[2] is not before[2]
        world.touch("m/3/model.py")
        await world.control.load("m")
        assert handles(world)[1] is before[1]
        assert world.loader.log[3:] == ["m:2", "m:3"]

    world(test)


def test_a_new_version(world):
    """A new version is loaded, and one that is not wanted any more unloaded once the new one is ready."""

    async def test(world):
        world.add("m")
        await world.control.load("m")
        world.add("m", versions=(2,))
        gate = world.gate("m")
        load = asyncio.ensure_future(world.control.load("m"))
        await world.until(lambda: 2 in world.states("m"))
        assert world.states("m") == {1: "READY", 2: "LOADING"}
        gate.set()
        await load
        await world.live.wait_unloaded("m")
        assert world.states("m") == {1: "UNAVAILABLE", 2: "READY"}
        assert world.table.is_ready(strict=True)

    world(test)


def test_a_version_that_has_gone(world):
    """A version whose folder has gone is unloaded, and the one before it serves again."""

    async def test(world):
        world.add("m", versions=(1, 2))
        await world.control.load("m")
        (world.repository / "m" / "2" / "model.py").unlink()
        (world.repository / "m" / "2").rmdir()
        await world.control.load("m")
        await world.live.wait_unloaded("m")
        assert world.states("m") == {1: "READY", 2: "UNAVAILABLE"}
        assert world.table.resolve("m").version == 1

    world(test)


def test_another_policy(world):
    """A version policy loads and unloads versions, and leaves those alone that stay."""

    async def test(world):
        world.add("m", versions=(1, 2, 3), config=ALL)
        await world.control.load("m")
        before = handles(world)
        (world.repository / "m" / "config.pbtxt").write_text(
            "backend: 'python' version_policy { specific { versions: [ 1, 2 ] } }"
        )
        await world.control.load("m")
        assert handles(world) == {1: before[1], 2: before[2]}
        for model in before[1], before[2]:  # the policy that the config endpoint shows
            assert list(model.config.version_policy.specific.versions) == [1, 2]
        (world.repository / "m" / "config.pbtxt").write_text("backend: 'python'")
        await world.control.load("m")
        await world.live.wait_unloaded("m")
        assert handles(world).keys() == {3}

    world(test)


@pytest.mark.parametrize("change", ["config.pbtxt", "helper.py"])
def test_what_all_versions_share(world, change):
    """Another configuration, or another file beside the versions, is a change of all of them."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        (world.repository / "m" / "helper.py").write_text("")
        await world.control.load("m")
        before = handles(world)
        (world.repository / "m" / change).write_text(ALL + " max_batch_size: 4")
        await world.control.load("m")
        assert all(handles(world)[version] is not before[version] for version in (1, 2))

    world(test)


def test_what_the_newest_version_says(world):
    """Versions that did not change are loaded anew where the newest one completes the configuration otherwise."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        before = handles(world)
        world.touch("m/2/model.py")
        await world.control.load("m")
        assert handles(world)[1] is before[1]

        def complete(config):
            completed = type(config)()
            completed.CopyFrom(config)
            completed.max_batch_size = 9
            return completed

        world.loader.complete = complete
        world.touch("m/2/model.py")
        await world.control.load("m")
        assert [model.config.max_batch_size for model in handles(world).values()] == [9, 9]
        assert world.loader.log == ["m:1", "m:2", "m:2", "m:2", "m:1"]
        # It is remembered, also for versions that are loaded without it.
        world.touch("m/1/model.py")
        await world.control.load("m")
        assert handles(world)[1].config.max_batch_size == 9
        assert world.loader.log[5:] == ["m:1"]

    world(test)


def counts(world):
    """How many instances the versions that serve have, by their configuration and in fact."""
    return [(model.config.instance_group[0].count, len(model.instances)) for model in handles(world).values()]


class TestInstanceGroups:
    """A change of nothing but the instance groups."""

    def write(self, world, count, more="", rest=""):
        (world.repository / "m" / "config.pbtxt").write_text(
            f"{ALL} instance_group [ {{ count: {count} {more} }} ] {rest}"
        )

    def test_versions_stay(self, world):
        """Versions serve on, with other instances; an instance that leaves ends."""

        async def test(world):
            world.add("m", versions=(1, 2), config=ALL)
            await world.control.load("m")
            before = handles(world)
            self.write(world, 3)
            await world.control.load("m")
            assert handles(world) == before
            assert counts(world) == [(3, 3), (3, 3)]
            self.write(world, 1)
            await world.control.load("m")
            assert counts(world) == [(1, 1), (1, 1)]
            assert [len(model.released) for model in before.values()] == [2, 2]
            await world.control.load("m")
            assert world.loader.log == ["m:1", "m:2", "m:1 has 3", "m:2 has 3", "m:1 has 1", "m:2 has 1"]
            assert all(model.stops == [] for model in before.values())

        world(test)

    def test_a_load_does_not_wait_for_instances_that_go_on_for_sequences(self, world):
        async def test(world):
            world.add("m", versions=(1,), config=ALL)
            await world.control.load("m")
            self.write(world, 3)
            await world.control.load("m")
            (model,) = handles(world).values()
            model.in_sequences = model.instances
            model.may_release.clear()
            self.write(world, 1)
            await world.control.load("m")
            assert (counts(world), model.released) == ([(1, 1)], [])
            model.may_release.set()

        world(test)

    def test_the_same_in_other_words(self, world):
        """Groups that only look different are no change."""

        async def test(world):
            world.add("m", config=ALL + " instance_group [ { } ]")
            await world.control.load("m")
            self.write(world, 1, "name: 'm_0' kind: KIND_CPU")
            await world.control.load("m")
            assert world.loader.log == ["m:1"]

        world(test)

    def test_as_a_configuration_of_a_request(self, world):
        """It makes no difference where the configuration comes from."""

        async def test(world):
            world.add("m")
            await world.control.load("m")
            before = handles(world)
            await world.control.load("m", '{"backend": "python", "instance_group": [{"count": 2}]}')
            assert handles(world) == before
            assert counts(world) == [(2, 2)]
            await world.control.load("m")
            assert counts(world) == [(2, 2)]
            self.write(world, 3)
            await world.control.load("m")
            assert counts(world) == [(3, 3)]
            assert handles(world) == before

        world(test)

    def test_with_another_change(self, world):
        """Whatever else changes, the versions are loaded again."""

        async def test(world):
            world.add("m", versions=(1, 2), config=ALL)
            await world.control.load("m")
            self.write(world, 2, rest=" max_batch_size: 4")
            await world.control.load("m")
            assert world.loader.log == ["m:1", "m:2", "m:1", "m:2"]

        world(test)

    @pytest.mark.parametrize("changed", [1, 2])
    def test_with_a_changed_version(self, world, changed):
        """A version whose files changed is loaded again; the other one stays with other instances."""

        async def test(world):
            world.add("m", versions=(1, 2), config=ALL)
            await world.control.load("m")
            before = handles(world)
            self.write(world, 2)
            world.touch(f"m/{changed}/model.py")
            await world.control.load("m")
            other = 3 - changed
            assert world.loader.log[2:] == [f"m:{changed}", f"m:{other} has 2"]
            assert handles(world)[other] is before[other]
            assert handles(world)[changed] is not before[changed]
            assert [model.config.instance_group[0].count for model in handles(world).values()] == [2, 2]

        world(test)

    def test_with_a_new_version(self, world):
        """A new version begins with the new instances, and one that is not wanted any more is left alone."""

        async def test(world):
            world.add("m", config="backend: 'python'")
            await world.control.load("m")
            world.add("m", versions=(2,), config="backend: 'python' instance_group [ { count: 2 } ]")
            await world.control.load("m")
            assert world.loader.log == ["m:1", "m:2"]
            assert world.table.ready_versions("m") == (2,)

        world(test)

    @pytest.mark.parametrize("fails", [1, 2])
    def test_fails(self, world, fails):
        """If an instance of any version cannot be started all stays as it was, and the next load tries again."""

        async def test(world):
            world.add("m", versions=(1, 2), config=ALL)
            await world.control.load("m")
            before = handles(world)
            self.write(world, 2)
            world.fail("m", fails)
            error = await refused(world, "m")
            assert error.message == (
                f"load failed for model 'm': version {fails} is at READY state: Internal: ValueError: no;\n"
            )
            assert handles(world) == before
            assert counts(world) == [(1, 1), (1, 1)]
            assert world.states("m") == {1: "READY", 2: "READY"}
            older = f"an older configuration serves, because the latest failed to load: version {fails}: Internal: "
            assert [row.reason for row in world.table.index()] == [older + "ValueError: no"] * 2
            await world.until(lambda: [each.stops for each in world.loader.new] == [[0]])
            del world.loader.steps["m"]
            await world.control.load("m")
            assert handles(world) == before
            assert counts(world) == [(2, 2), (2, 2)]
            assert [row.reason for row in world.table.index()] == ["", ""]

        world(test)

    def test_with_a_version_that_fails(self, world):
        """A version that cannot be loaded leaves the instances of the others as they were."""

        async def test(world):
            world.add("m", versions=(1, 2), config=ALL)
            await world.control.load("m")
            self.write(world, 2)
            world.touch("m/2/model.py")
            world.fail("m", 2)
            error = await refused(world, "m")
            assert "version 2 is at UNAVAILABLE state" in error.message
            assert world.loader.log == ["m:1", "m:2", "m:2"]
            assert counts(world) == [(1, 1), (1, 1)]

        world(test)

    def test_with_a_version_that_was_lost(self, world):
        """A version whose instances are all down is loaded again, with the new groups."""

        async def test(world):
            world.add("m", versions=(1, 2), config=ALL)
            await world.control.load("m")
            world.live.lost(world.table.resolve("m", 1), "it died")
            self.write(world, 2)
            await world.control.load("m")
            assert world.loader.log[2:] == ["m:1", "m:2 has 2"]
            assert world.states("m") == {1: "READY", 2: "READY"}

        world(test)

    @pytest.mark.parametrize("fails", [True, False])
    def test_a_version_that_is_lost_meanwhile(self, world, fails):
        """It serves until the new instances are there, and is lost if they are not."""

        async def test(world):
            world.add("m")
            await world.control.load("m")
            model, gate = world.table.resolve("m"), asyncio.Event()

            async def step(version):
                await gate.wait()
                if fails:
                    raise LoadError("no")

            world.loader.steps["m"] = step
            self.write(world, 2)
            load = asyncio.ensure_future(world.control.load("m"))
            await world.until(lambda: world.states("m") == {1: "RELOADING"})
            world.live.lost(model, "it died")
            assert world.table.resolve("m") is model
            gate.set()
            if fails:
                with pytest.raises(InferenceError, match="is at READY state: Internal: no"):
                    await load
                assert world.states("m") == {1: "UNAVAILABLE"}
            world.live.lost(model, "")
            await asyncio.wait([load])
            assert world.table.resolve("m") is model
            assert len(model.instances) == (1 if fails else 2)

        world(test)

    def test_unload(self, world):
        """A version with exchanged instances is unloaded, and loaded again, like any other."""

        async def test(world):
            world.add("m")
            await world.control.load("m")
            self.write(world, 2)
            await world.control.load("m")
            await world.control.unload("m")
            await world.live.wait_unloaded("m")
            await world.control.load("m")
            assert world.loader.log == ["m:1", "m:1 has 2", "m:1"]

        world(test)


def test_first_load_version_by_version(world):
    """A model that serves nothing yet serves each version that is ready; failed ones are tried again."""

    async def test(world):
        world.add("m", versions=(1, 2, 3), config=ALL)
        gate = asyncio.Event()
        world.fail("m", 1)
        fail = world.loader.steps["m"]

        async def step(version):
            await fail(version)
            if version == 2:
                await gate.wait()

        world.loader.steps["m"] = step
        load = asyncio.ensure_future(refused(world, "m"))
        await world.until(lambda: world.states("m") == {1: "UNAVAILABLE", 2: "LOADING", 3: "READY"})
        assert world.table.resolve("m").version == 3
        gate.set()
        error = await load
        assert error.code is Code.INVALID_ARG
        assert (
            error.message == "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: ValueError: no;\n"
        )
        assert world.states("m") == {1: "UNAVAILABLE", 2: "READY", 3: "READY"}
        assert not world.table.is_ready(strict=True)
        del world.loader.steps["m"]
        await world.control.load("m")
        assert world.states("m") == {1: "READY", 2: "READY", 3: "READY"}
        assert world.loader.log == ["m:1", "m:2", "m:3", "m:1"]

    world(test)


def test_codes_of_failures(world):
    """The index and the error say what kind of failure it is, as Triton does."""

    async def test(world):
        world.add("m")
        for code, words in ((Code.INVALID_ARG, "Invalid argument"), (Code.NOT_FOUND, "Not found")):

            async def step(version, code=code):
                raise LoadError("no", code)

            world.loader.steps["m"] = step
            error = await refused(world, "m")
            assert error.message == f"load failed for model 'm': version 1 is at UNAVAILABLE state: {words}: no;\n"
            assert [row.reason for row in world.table.index()] == [f"{words}: no"]

    world(test)


def test_all_versions_fail(world):
    """The error tells of each."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        world.fail("m", reason="no")
        error = await refused(world, "m")
        assert error.message == (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no;"
            "version 2 is at UNAVAILABLE state: Internal: no;\n"
        )

    world(test)


def test_a_reload_that_fails(world):
    """The versions that serve stay, those that were loaded meanwhile are dropped, and the next load tries again."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        before = handles(world)
        (world.repository / "m" / "config.pbtxt").write_text(ALL + " max_batch_size: 4")
        world.add("m", versions=(3,), config=ALL + " max_batch_size: 4")
        world.fail("m", 1)
        error = await refused(world, "m")
        assert (
            error.message == "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: ValueError: no;\n"
        )
        assert handles(world) == before
        older = "an older configuration serves, because the latest failed to load: version 1: Internal: ValueError: no"
        assert [row.reason for row in world.table.index()] == [
            older, older, "Unavailable: it is not served because version 1 failed to load",
        ]  # fmt: skip
        await world.until(lambda: repr(world.live) == "<LiveVersions [2 alive, 0 of them retiring]>")
        del world.loader.steps["m"]
        await world.control.load("m")
        assert [model.config.max_batch_size for model in handles(world).values()] == [4, 4, 4]

    world(test)


def test_a_configuration_that_breaks(world):
    """A configuration that cannot be read changes nothing for a model that serves."""

    async def test(world):
        world.add("m")
        await world.control.load("m")
        before = handles(world)
        (world.repository / "m" / "config.pbtxt").write_text("max_batch_size: many")
        error = await refused(world, "m")
        assert error.message.startswith("failed to load 'm', failed to poll from model repository: ")
        assert handles(world) == before
        assert world.table.is_ready(strict=True)
        (world.repository / "m" / "config.pbtxt").write_text("backend: 'python'")
        await world.control.load("m")
        assert handles(world) == before

    world(test)


def test_a_version_that_is_missing(world):
    """A version that the policy names and that is not there has failed; the others are served."""

    async def test(world):
        world.add("m", versions=(1,), config="backend: 'python' version_policy { specific { versions: [ 1, 7 ] } }")
        for _ in range(2):
            error = await refused(world, "m")
            assert error.message == (
                "load failed for model 'm': version 7 is at UNAVAILABLE state: "
                "Not found: version 7 is specified for model 'm', but the version directory is not present;\n"
            )
        assert world.states("m") == {1: "READY", 7: "UNAVAILABLE"}
        assert world.loader.log == ["m:1"]
        world.add("m", versions=(7,), config="backend: 'python' version_policy { specific { versions: [ 1, 7 ] } }")
        await world.control.load("m")
        assert world.states("m") == {1: "READY", 7: "READY"}

    world(test)


def test_a_version_that_was_lost(world):
    """A version whose instances were given up is loaded again, although nothing changed on disk."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        world.live.lost(world.table.resolve("m", 1), "it died")
        await world.control.load("m")
        assert world.states("m") == {1: "READY", 2: "READY"}
        assert world.loader.log == ["m:1", "m:2", "m:1"]

    world(test)


def test_a_lost_version_that_is_not_wanted(world):
    """A version that the policy no longer selects is unloaded, also if its instances are down."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        lost = world.table.resolve("m", 1)
        world.live.lost(lost, "it died")
        world.add("m", config="backend: 'python'")
        await world.control.load("m")
        await world.live.wait_unloaded("m")
        assert lost.stops
        assert world.table.is_ready(strict=True)

    world(test)


def test_a_new_version_that_is_lost_at_once(world):
    """One that dies while the others still load has failed."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        before = handles(world)
        (world.repository / "m" / "config.pbtxt").write_text(ALL + " max_batch_size: 4")
        gate = asyncio.Event()

        async def step(version):
            if version == 1:
                await gate.wait()

        world.loader.steps["m"] = step
        load = asyncio.ensure_future(refused(world, "m"))
        await world.until(lambda: len(world.live._alive) == 3)
        (new,) = world.live._alive.keys() - before.values()
        world.live.lost(new, "it died")
        gate.set()
        error = await load
        assert error.message == "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: it died;\n"
        assert handles(world) == before

    world(test)


def test_a_load_that_is_given_up(world):
    """When the server stops, versions that are ready and wait for others are stopped, too."""

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        before = handles(world)
        (world.repository / "m" / "config.pbtxt").write_text(ALL + " max_batch_size: 4")
        gate = asyncio.Event()

        async def step(version):
            if version == 1:
                await gate.wait()

        world.loader.steps["m"] = step
        load = asyncio.ensure_future(refused(world, "m"))
        await world.until(lambda: len(world.live._alive) == 3)
        await world.control.close()
        error = await load
        assert (error.message, error.code) == ("Server exiting", Code.UNAVAILABLE)
        assert handles(world) == before
        await world.until(lambda: repr(world.live) == "<LiveVersions [2 alive, 0 of them retiring]>")

    world(test)


def test_one_line_for_a_load(world, caplog):
    """A load that changes versions says so once for the model; one that changes nothing says nothing."""
    caplog.set_level("INFO", "pyruntime.repository")

    def lines():
        found = [record.message for record in caplog.records if "successfully" in record.message]
        caplog.clear()
        return found

    async def test(world):
        world.add("m", versions=(1, 2), config=ALL)
        await world.control.load("m")
        assert lines() == ["successfully loaded 'm'"]
        await world.control.load("m")
        assert lines() == []
        world.touch("m/2/model.py")
        await world.control.load("m")
        assert lines() == ["successfully loaded 'm'"]
        (world.repository / "m" / "config.pbtxt").write_text("backend: 'python'")
        await world.control.load("m")
        await world.live.wait_unloaded("m")
        assert lines() == ["successfully loaded 'm'", "successfully unloaded 'm' version 1"]
        world.touch("m/2/model.py")
        world.fail("m")
        await refused(world, "m")
        assert lines() == []

    world(test)


def test_another_policy_and_a_new_version(world):
    """A version policy that comes with a new version leaves the other versions alone."""

    async def test(world):
        world.add("m", config=ALL)
        await world.control.load("m")
        before = handles(world)
        world.add("m", versions=(2,), config="backend: 'python' version_policy { latest { num_versions: 2 } }")
        await world.control.load("m")
        assert handles(world)[1] is before[1]
        assert world.loader.log == ["m:1", "m:2"]

    world(test)
