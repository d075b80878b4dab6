# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads of ensembles, with the models of their steps."""

import asyncio

import pytest

from pyruntime.utils.errors import Code, InferenceError

MODEL = (
    "backend: 'python' input { name: 'A' data_type: TYPE_INT8 dims: 1 } "
    "output { name: 'B' data_type: TYPE_INT8 dims: 1 }"
)


def ensemble(*steps, version=-1):
    """A chain of models."""
    names = ["I", *(f"t{n}" for n in range(1, len(steps))), "O"]
    text = " ".join(
        f"step {{ model_name: '{step}' model_version: {version} input_map {{ key: 'A' value: '{read}' }} "
        f"output_map {{ key: 'B' value: '{written}' }} }}"
        for step, read, written in zip(steps, names, names[1:], strict=False)
    )
    tensors = MODEL.removeprefix("backend: 'python' ").replace("'A'", "'I'").replace("'B'", "'O'")
    return f"platform: 'ensemble' {tensors} ensemble_scheduling {{ {text} }}"


def nested(step):
    """An ensemble of an ensemble."""
    return ensemble(step).replace("key: 'A'", "key: 'I'").replace("key: 'B'", "key: 'O'")


async def refused(step):
    with pytest.raises(InferenceError) as caught:
        await step
    return caught.value


async def quiet(world):
    """Wait until no load is under way."""
    await world.until(lambda: not len(world.control._loads))


def served(world):
    return sorted({name for name, _ in world.table.serving})


class TestLoad:
    def test_with_its_steps(self, world):
        """The models of the steps are loaded first."""

        async def test(world):
            world.add("m", "n", config=MODEL)
            world.add("e", config=ensemble("m", "n", "m"))
            await world.control.load("e")
            assert sorted(world.loader.log[:2]) == ["m:1", "n:1"]
            assert world.loader.log[2:] == ["e:1"]
            assert served(world) == ["e", "m", "n"]
            await world.control.load("e")
            assert len(world.loader.log) == 3

        world(test)

    def test_at_the_start(self, world):
        """In any order, with one load at a time; each model is loaded once."""

        async def test(world):
            world.add("o", config=nested("e"))
            world.add("e", config=ensemble("m"))
            world.add("m", config=MODEL)
            assert await world.control.start(["o", "e", "m"])
            assert world.loader.log == ["m:1", "e:1", "o:1"]

        world(test, model_control_mode="none", model_load_thread_count=1)

    def test_a_step_fails_at_the_start(self, world):
        """It is tried once, and not again for each ensemble."""

        async def test(world):
            world.add("m", config=MODEL)
            world.fail("m")
            names = [f"e{n}" for n in range(5)]
            world.add(*names, config=ensemble("m"))
            assert not await world.control.start(["m", *names])
            assert world.loader.log == ["m:1"]

        world(test, model_load_thread_count=1)

    def test_a_step_fails(self, world):
        """The ensemble fails with the step's reason, and is loaded as soon as the step can be."""

        async def test(world):
            world.add("m", config=MODEL)
            world.add("e", config=ensemble("m"))
            world.add("o", config=nested("e"))
            world.fail("m")
            error = await refused(world.control.load("e"))
            reason = (
                "ensemble 'e' depends on 'm' which has no loaded version. Model 'm' loading failed with error: "
                "version 1 is at UNAVAILABLE state: Internal: ValueError: no;"
            )
            assert (error.code, error.message) == (Code.INVALID_ARG, f"load failed for model 'e': {reason}\n")
            error = await refused(world.control.load("o"))
            assert error.message == (
                "load failed for model 'o': ensemble 'o' depends on 'e' which is not valid. Model 'e' failed with "
                f"error: {reason}\n"
            )
            del world.loader.steps["m"]
            await world.control.load("m")
            await quiet(world)
            assert served(world) == ["e", "m", "o"]
            assert world.table.is_ready(strict=True)

        world(test)

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            (ensemble("x", "m", "y"), "ensemble e contains models that are not available or ambiguous: x, y"),
            (ensemble("m", version=3), "ensemble 'e' depends on 'm' whose required version 3 is not loaded."),
            (ensemble("m", version=0), "ensemble 'e' depends on 'm' whose required version 0 is not loaded."),
            (ensemble("e"), "circular dependency between ensembles: e -> ... -> e -> e"),
            (
                ensemble("m").replace("INT8", "INT16"),
                "in ensemble e, ensemble tensor I: inconsistent data type: TYPE_INT16 is inferred from model e while "
                "TYPE_INT8 is inferred from model m (config.pbtxt:1)",
            ),
        ],
    )
    def test_refused(self, world, config, message):
        """Steps that are not there, or do not fit."""

        async def test(world):
            world.add("m", config=MODEL)
            world.add("e", config=config)
            error = await refused(world.control.load("e"))
            assert error.message == f"load failed for model 'e': {message}\n"
            assert [row.reason for row in world.table.index() if row.name == "e"] == [message]

        world(test)

    def test_a_circle(self, world):
        """Ensembles that are steps of each other are refused, in whatever order they are loaded."""

        async def test(world):
            for name, step in (("e", "f"), ("f", "g"), ("g", "e")):
                world.add(name, config=nested(step))
            assert not await world.control.start(["e", "f", "g"])
            reasons = {row.name: row.reason for row in world.table.index()}
            assert reasons.keys() == {"e", "f", "g"}
            assert any("circular dependency between ensembles: " in reason for reason in reasons.values())

        world(test, model_control_mode="none")

    def test_wrong_by_itself(self, world):
        """A mistake of the ensemble alone is found before its steps are loaded."""

        async def test(world):
            world.add("m", config=MODEL)
            world.add("e", config=ensemble("m").replace("model_name: 'm'", ""))
            error = await refused(world.control.load("e"))
            assert error.message.startswith("failed to load 'e', failed to poll from model repository: must specify ")
            assert world.loader.log == []

        world(test)

    def test_decoupled(self, world):
        """The configuration says whether a step is decoupled."""

        async def test(world):
            world.add("m", config=MODEL + " model_transaction_policy { decoupled: true }")
            world.add("e", config=ensemble("m"))
            await world.control.load("e")
            assert world.table.resolve("e").config.model_transaction_policy.decoupled

        world(test)


class TestChanges:
    def test_a_step_is_loaded_again(self, world):
        """The ensembles above it are made anew, and no others."""

        async def test(world):
            world.add("m", "n", config=MODEL)
            world.add("e", config=ensemble("m"))
            world.add("o", config=nested("e"))
            world.add("f", config=ensemble("n"))
            for name in ("o", "f"):
                await world.control.load(name)
            before = world.table.resolve("e")
            world.loader.log.clear()
            world.touch("m/1/model.py")
            await world.control.load("m")
            await quiet(world)
            assert world.loader.log == ["m:1", "e:1", "o:1"]
            assert world.table.resolve("e") is not before

        world(test)

    def test_a_step_fails_to_load_again(self, world):
        """The old one serves, and so do the ensembles above it."""

        async def test(world):
            world.add("m", config=MODEL)
            world.add("e", config=ensemble("m"))
            await world.control.load("e")
            before = world.table.resolve("e")
            world.touch("m/1/model.py")
            world.fail("m")
            await refused(world.control.load("m"))
            await quiet(world)
            assert world.table.resolve("e") is before

        world(test)

    def test_a_step_changes_while_its_ensemble_loads(self, world):
        """The ensemble is made of the latest ones in the end."""

        async def test(world):
            world.add("m", config=MODEL)
            world.add("e", config=ensemble("m"))
            await world.control.load("m")
            gate = world.gate("e")
            load = asyncio.ensure_future(world.control.load("e"))
            await world.until(lambda: "e:1" in world.loader.log)
            world.touch("m/1/model.py")
            await world.control.load("m")
            gate.set()
            await load
            await quiet(world)
            assert world.loader.log == ["m:1", "e:1", "m:1", "e:1"]

        world(test)


class TestUnload:
    def test_a_step(self, world, caplog):
        """The ensembles above it are unloaded as well; they come back with it."""

        async def test(world):
            world.add("m", config=MODEL)
            world.add("e", config=ensemble("m"))
            world.add("o", config=nested("e"))
            await world.control.load("o")
            await world.control.unload("m")
            await quiet(world)
            assert served(world) == []
            for name in ("m", "e", "o"):
                await world.live.wait_unloaded(name)
            assert {row.reason for row in world.table.index()} == {"unloaded"}
            assert "ensemble e contains models that are not available or ambiguous: m" in caplog.text
            await world.control.load("m")
            await quiet(world)
            assert served(world) == ["e", "m", "o"]

        world(test)

    def test_an_ensemble(self, world):
        """Its models stay, and it does not come back with them."""

        async def test(world):
            world.add("m", config=MODEL)
            world.add("e", config=ensemble("m"))
            await world.control.load("e")
            await world.control.unload("e")
            await quiet(world)
            assert served(world) == ["m"]
            world.touch("m/1/model.py")
            await world.control.load("m")
            await quiet(world)
            assert served(world) == ["m"]

        world(test)

    def test_with_dependents(self, world):
        """The models that only the ensemble wants are unloaded with it."""

        async def test(world):
            world.add("m", "n", "x", config=MODEL)
            world.add("e", config=ensemble("m", "n", "x"))
            world.add("f", config=ensemble("n"))
            for name in ("x", "f", "e"):
                await world.control.load(name)
            await world.control.unload("e", unload_dependents=True)
            await quiet(world)
            assert served(world) == ["f", "n", "x"]

        world(test)


class TestGpus:
    """Where tensors of ensembles may lie is found out when that of a model changes, and never by requests."""

    @staticmethod
    async def load(world, looks):
        """Load a model, and three ensembles above it, whose tensors may lie where those of their steps may."""
        world.add("m", config=f"{MODEL} instance_group [ {{ count: 1 }} ]")
        world.add("e", "f", config=ensemble("m"))
        world.add("g", config=nested("e"))
        for name, step in (("m", None), ("e", "m"), ("f", "m"), ("g", "e")):
            await world.control.load(name)
            model = world.table.resolve(name)
            model.find_places = lambda name=name, step=step: (
                looks.append(name) or (world.gpu if step is None else world.table.resolve(step).on_gpus)
            )
            model.review_places()
        looks.clear()

    @staticmethod
    async def regroup(world, count):
        text = f"{MODEL} instance_group [ {{ count: {count} }} ]"
        (world.repository / "m" / "config.pbtxt").write_text(text)
        await world.control.load("m")
        await quiet(world)

    def test_move(self, world):
        """A model that moves tells all that depend on it, and none of them is loaded again."""

        async def test(world):
            looks, world.gpu = [], 0
            await self.load(world, looks)
            world.gpu = 1
            await self.regroup(world, 2)
            assert [world.table.resolve(name).on_gpus for name in "mefg"] == [1, 1, 1, 1]
            assert looks == ["m", "e", "f", "g"]
            assert world.loader.log == ["m:1", "e:1", "f:1", "g:1", "m:1 has 2"]

        world(test)

    def test_instances_in_the_same_place(self, world):
        """If nothing changes for an ensemble, those above it are not asked."""

        async def test(world):
            looks, world.gpu = [], 0
            await self.load(world, looks)
            await self.regroup(world, 2)
            assert looks == ["m", "e", "f"]

        world(test)
