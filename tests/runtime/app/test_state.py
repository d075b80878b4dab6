# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What frontends ask of the server, over models that are stand-ins."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.app.state import Core
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, InferenceError


class Model:
    """Stands for a ModelVersion."""

    def __init__(self, name, version):
        self.spec = SimpleNamespace(name=name)
        self.version = version
        self.is_ready = True
        self.problem = ""
        self.statistics = ModelStatistics()


def core_of(*models, strict=True):
    core = Core(ServerSettings(model_repositories=("/models",), strict_readiness=strict))
    core.loaded = True
    for model in models:
        core.table.begin_load(model.spec.name, model.version)
        core.table.ready(model.spec.name, model.version, model)
    return core


class TestReady:
    def test_once_everything_is_loaded(self):
        """A server is ready when its models are loaded."""
        core = core_of(Model("m", 1))
        assert core.is_ready()
        core.loaded = False
        assert not core.is_ready()

    def test_not_while_exiting(self):
        """A server that exits is not ready."""
        core = core_of()
        core.exiting = True
        assert not core.is_ready()

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_model_that_restarts(self, strict):
        """A model without a live instance makes the server unready, if it is strict."""
        model = Model("m", 1)
        core = core_of(model, strict=strict)
        model.is_ready = False
        assert core.is_ready() is not strict

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_model_that_failed(self, strict):
        """So does one that failed to load."""
        core = core_of(strict=strict)
        core.table.begin_load("m", 1)
        core.table.fail("m", 1, "no")
        assert core.is_ready() is not strict


class TestResolve:
    def test_by_version(self):
        """A version is found by its number, and the latest without."""
        first, second = Model("m", 1), Model("m", 2)
        core = core_of(first, second)
        assert core.resolve("m", 1) is first
        assert core.resolve("m") is second
        assert core.models() == [first, second]

    def test_unknown(self):
        """What is not there is NOT_FOUND."""
        with pytest.raises(InferenceError) as caught:
            core_of().resolve("m")
        assert caught.value.code is Code.NOT_FOUND

    def test_exiting(self):
        """A server that exits finds nothing any more."""
        core = core_of(Model("m", 1))
        core.exiting = True
        with pytest.raises(InferenceError, match=r"^Server exiting$") as caught:
            core.resolve("m")
        assert caught.value.code is Code.UNAVAILABLE


class TestDrain:
    def test_nothing_under_way(self):
        """An idle server is drained at once."""
        core = core_of()
        assert asyncio.run(core.drain(0))
        assert core.exiting

    def test_waits_for_the_last(self):
        """A busy one when its last request is answered."""

        async def run():
            core = core_of()
            core.in_flight += 2
            core.end_request()
            draining = asyncio.ensure_future(core.drain(60))
            await asyncio.sleep(0)
            assert core.exiting
            assert not draining.done()
            core.end_request()
            return await draining

        assert asyncio.run(run())

    def test_not_for_ever(self):
        """Or not, when its time is up."""

        async def run():
            core = core_of()
            core.in_flight += 1
            return await core.drain(0)

        assert not asyncio.run(run())


class TestStatistics:
    def core(self):
        return core_of(Model("a", 1), Model("b", 1), Model("b", 3))

    @pytest.mark.parametrize(
        ("args", "expected"),
        [((), [("a", "1"), ("b", "1"), ("b", "3")]), (("b",), [("b", "1"), ("b", "3")]), (("b", 3), [("b", "3")])],
    )
    def test_of(self, args, expected):
        """Statistics are of all models, of all versions of one, or of one."""
        found = self.core().statistics(*args)
        assert [(each["name"], each["version"]) for each in found] == expected

    def test_unknown_model(self):
        """Triton's words for a model that is not there."""
        with pytest.raises(InferenceError, match=r"^requested model 'c' is not available$") as caught:
            self.core().statistics("c")
        assert caught.value.code is Code.INVALID_ARG

    def test_unknown_version(self):
        """And for a version."""
        with pytest.raises(InferenceError, match=r"^requested model version is not available for model 'b'$"):
            self.core().statistics("b", 2)


class TestIndex:
    def test_has_reasons(self):
        """The index tells which instances are down."""
        model = Model("m", 1)
        core = core_of(model, Model("n", 1))
        model.problem = "instance m_0 is down"
        assert [(row.name, row.state, row.reason) for row in core.index(False)] == [
            ("m", "READY", "instance m_0 is down"), ("n", "READY", ""),
        ]  # fmt: skip

    def test_ready_only(self):
        """What is not ready may be left out."""
        core = core_of(Model("m", 1))
        core.table.begin_load("n", 1)
        core.table.fail("n", 1, "no")
        core.table.set_repository(["m", "n", "o"])
        assert [row.name for row in core.index(False)] == ["m", "n", "o"]
        assert [row.name for row in core.index(True)] == ["m"]


def test_version():
    """A core knows the server's version."""
    assert core_of().version
