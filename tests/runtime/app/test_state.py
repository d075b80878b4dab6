# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The state of the server that frontends use, over stand-ins for models."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, InferenceError

from ..server_states import new_state


class Model:
    """Stands for a ModelVersion."""

    def __init__(self, name, version):
        self.spec = SimpleNamespace(name=name)
        self.version = version
        self.is_ready = True
        self.problem = ""
        self.statistics = ModelStatistics()


def core_of(*models, strict=True):
    state = new_state(ServerSettings(model_repositories=("/models",), strict_readiness=strict))
    state.loaded = True
    for model in models:
        state.table.begin_load(model.spec.name, model.version)
        state.table.ready(model.spec.name, model.version, model)
    return state


class TestReady:
    def test_once_everything_is_loaded(self):
        """A server is ready when its models are loaded."""
        state = core_of(Model("m", 1))
        assert state.is_ready()
        state.loaded = False
        assert not state.is_ready()

    def test_not_while_exiting(self):
        """A server that exits is not ready."""
        state = core_of()
        state.exiting = True
        assert not state.is_ready()

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_model_that_restarts(self, strict):
        """A model without a live instance makes the server unready, if it is strict."""
        model = Model("m", 1)
        state = core_of(model, strict=strict)
        model.is_ready = False
        assert state.is_ready() is not strict

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_model_that_failed(self, strict):
        """A model that failed to load makes the server not ready, if readiness is strict."""
        state = core_of(strict=strict)
        state.table.begin_load("m", 1)
        state.table.fail("m", 1, "no")
        assert state.is_ready() is not strict


class TestResolve:
    def test_by_version(self):
        """A version is found by its number, and the latest without."""
        first, second = Model("m", 1), Model("m", 2)
        state = core_of(first, second)
        assert state.resolve("m", 1) is first
        assert state.resolve("m") is second
        assert state.models() == [first, second]

    def test_unknown(self):
        """An unknown model is NOT_FOUND."""
        with pytest.raises(InferenceError) as caught:
            core_of().resolve("m")
        assert caught.value.code is Code.NOT_FOUND

    def test_exiting(self):
        """A server that exits finds nothing any more."""
        state = core_of(Model("m", 1))
        state.exiting = True
        with pytest.raises(InferenceError, match=r"^Server exiting$") as caught:
            state.resolve("m")
        assert caught.value.code is Code.UNAVAILABLE


class TestDrain:
    def test_nothing_under_way(self):
        """An idle server is drained at once."""
        state = core_of()
        assert asyncio.run(state.drain(0))
        assert state.exiting

    def test_waits_for_the_last(self):
        """A busy one when its last request is answered."""

        async def run():
            state = core_of()
            state.in_flight += 2
            state.end_request()
            draining = asyncio.ensure_future(state.drain(60))
            await asyncio.sleep(0)
            assert state.exiting
            assert not draining.done()
            state.end_request()
            return await draining

        assert asyncio.run(run())

    def test_not_for_ever(self):
        """Draining ends when its time is up."""

        async def run():
            state = core_of()
            state.in_flight += 1
            return await state.drain(0)

        assert not asyncio.run(run())


class TestStatistics:
    def state(self):
        return core_of(Model("a", 1), Model("b", 1), Model("b", 3))

    @pytest.mark.parametrize(
        ("args", "expected"),
        [((), [("a", "1"), ("b", "1"), ("b", "3")]), (("b",), [("b", "1"), ("b", "3")]), (("b", 3), [("b", "3")])],
    )
    def test_of(self, args, expected):
        """Statistics are of all models, of all versions of one, or of one."""
        found = self.state().statistics(*args)
        assert [(each["name"], each["version"]) for each in found] == expected

    def test_unknown_model(self):
        """Triton's words for a model that is not there."""
        with pytest.raises(InferenceError, match=r"^requested model 'c' is not available$") as caught:
            self.state().statistics("c")
        assert caught.value.code is Code.INVALID_ARG

    def test_unknown_version(self):
        """A missing version has its own error."""
        with pytest.raises(InferenceError, match=r"^requested model version is not available for model 'b'$"):
            self.state().statistics("b", 2)


class TestIndex:
    def test_has_reasons(self):
        """The index tells which instances are down."""
        model = Model("m", 1)
        state = core_of(model, Model("n", 1))
        model.problem = "instance m_0 is down"
        assert [(row.name, row.state, row.reason) for row in state.index(False)] == [
            ("m", "READY", "instance m_0 is down"), ("n", "READY", ""),
        ]  # fmt: skip

    def test_ready_only(self):
        """The index can be limited to ready models."""
        state = core_of(Model("m", 1))
        state.table.begin_load("n", 1)
        state.table.fail("n", 1, "no")
        state.table.set_repository(["m", "n", "o"])
        assert [row.name for row in state.index(False)] == ["m", "n", "o"]
        assert [row.name for row in state.index(True)] == ["m"]


def test_version():
    """A state knows the server's version."""
    assert core_of().version
