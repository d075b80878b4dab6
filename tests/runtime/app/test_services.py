# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of models to the server: each is answered once, for all arguments, and no wait is endless."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyruntime.runtime.app.queries import QUERIES
from pyruntime.runtime.app.services import ModelServices
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.messages import OK
from tests.patience import PATIENCE_S

from ..event_loops import settle
from ..server_states import new_state

BAD_VERSION = "failed to get model version from specified version string '{}', version should be an integral value > 0"


class Model:
    """Stands for a ModelVersion."""

    def __init__(self, name, version):
        self.spec = SimpleNamespace(name=name)
        self.version = version
        self.is_ready = True


class Control:
    """Stands for model control. An operation ends when the test sets `go_on`."""

    def __init__(self):
        self.loads = []
        self.unloads = []
        self.waits = []
        self.failure = None
        self.go_on = asyncio.Event()

    async def load(self, name, config="", files=None, *, caller=""):
        self.loads.append((name, config, files, caller))
        await self._end()

    async def unload(self, name, unload_dependents=False):
        self.unloads.append((name, unload_dependents))
        await self._end()

    async def wait_ready(self, name, version, caller):
        self.waits.append((name, version, caller))
        await self._end()
        return "callee"

    async def _end(self):
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure


class Owner:
    """One life of one stub."""


class Bench:
    def __init__(self, tasks):
        self.control = Control()
        self.state = state = new_state(tasks=tasks, control=self.control)
        state.loaded = True
        self.services = ModelServices(state.table, state.metrics, state.tracer, lambda: state, tasks)
        self.owner = Owner()
        self.replies = []

    def add(self, name, *versions):
        for version in versions:
            self.state.table.begin_load(name, version)
            self.state.table.ready(name, version, Model(name, version))

    def ask(self, method, *arguments, loading=""):
        self.services.ask(self.owner, loading, method, list(arguments), lambda *reply: self.replies.append(reply))

    def answer(self, method, *arguments):
        """The reply, which must come at once."""
        self.ask(method, *arguments)
        (reply,) = self.replies
        self.replies.clear()
        return reply


def play(scenario):
    """Run a scenario on a bench; all that it has begun ends."""

    async def run():
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            bench = Bench(tasks)
            await scenario(bench)
            bench.control.go_on.set()

    asyncio.run(run())


class TestFind:
    def test_of_a_model_that_serves(self):
        """A call goes to the version that was asked for, or to any."""

        async def scenario(bench):
            bench.add("m", 1, 2)
            assert bench.services.find("m", 1).version == 1
            assert bench.services.find("m", -1).version == 2

        play(scenario)

    @pytest.mark.parametrize(
        ("name", "version"), [("absent", -1), ("m", 7), ("m", 0), ("m", -2), ("", -1), ("m", 2**63)]
    )
    def test_of_one_that_does_not(self, name, version):
        """A Python model reads of that in Triton's words, exactly: see instances/stub/test_calls.py."""

        async def scenario(bench):
            bench.add("m", 1)
            with pytest.raises(InferenceError):
                bench.services.find(name, version)

        play(scenario)

    def test_while_the_server_drains(self):
        """Requests under way may still call other models; new requests are refused."""

        async def scenario(bench):
            bench.add("m", 1)
            bench.state.exiting = True
            with pytest.raises(InferenceError):
                bench.state.resolve("m")
            assert bench.services.find("m", -1).version == 1

        play(scenario)


class TestWhenReady:
    """A model that calls another one while it loads."""

    def test_ready(self):
        """The caller is called back when the other model is ready."""

        async def scenario(bench):
            told = []
            bench.services.when_ready("other", 3, "m", told.append)
            await settle()
            assert bench.control.waits == [("other", 3, "m")]
            assert told == []
            bench.control.go_on.set()
            await settle()
            assert told == ["callee"]

        play(scenario)

    def test_never(self):
        """The caller is called back when the other model will not become ready."""

        async def scenario(bench):
            told = []
            bench.control.failure = InferenceError("it does not load")
            bench.services.when_ready("other", -1, "m", told.append)
            bench.control.go_on.set()
            await settle()
            assert told == [bench.control.failure]

        play(scenario)

    @pytest.mark.parametrize("has_begun", [False, True])
    def test_nobody_waits(self, has_begun):
        """A caller that has ended its wait is not called back."""

        async def scenario(bench):
            told = []
            end = bench.services.when_ready("other", -1, "m", told.append)
            if has_begun:
                await settle()
            end()
            bench.control.go_on.set()
            await settle()
            assert told == []

        play(scenario)


class TestControl:
    def test_load(self):
        """It is answered when the model is loaded; meanwhile the server goes on."""

        async def scenario(bench):
            bench.ask("load_model", "other", "{}", {"file:1/model.py": b"pass"}, loading="m")
            await settle()
            assert bench.control.loads == [("other", "{}", {"file:1/model.py": b"pass"}, "m")]
            assert bench.replies == []
            bench.control.go_on.set()
            await settle()
            assert bench.replies == [(OK, None)]

        play(scenario)

    def test_unload(self):
        """Unloading a model is passed to the model control, with its reply."""

        async def scenario(bench):
            bench.ask("unload_model", "other", True)
            await settle()
            assert bench.control.unloads == [("other", True)]
            bench.control.go_on.set()
            await settle()
            assert bench.replies == [(OK, None)]

        play(scenario)

    @pytest.mark.parametrize("question", [("load_model", "other", "", {}), ("unload_model", "other", False)])
    def test_refused(self, question):
        """A failed operation is a reply, too."""

        async def scenario(bench):
            bench.control.failure = InferenceError("no", Code.UNAVAILABLE)
            bench.ask(*question)
            bench.control.go_on.set()
            await settle()
            assert bench.replies == [(Code.UNAVAILABLE, "no")]

        play(scenario)

    @pytest.mark.parametrize("files", [{1: b""}, {"a": "text"}, {"a": None}, {"a": b"", "b": []}], ids=repr)
    def test_files_that_are_none(self, files):
        """Triton's words, exactly."""

        async def scenario(bench):
            assert bench.answer("load_model", "other", "", files) == (
                Code.INVALID_ARG,
                "failed to load model 'other', files should be a dictionary of file paths and file contents",
            )
            assert bench.control.loads == []

        play(scenario)


class TestIsReady:
    def test_of_versions(self):
        """Of one version, or of any."""

        async def scenario(bench):
            bench.add("m", 1, 3)
            bench.state.table.resolve("m", 3).is_ready = False
            assert bench.answer("is_model_ready", "m", "1") == (OK, True)
            assert bench.answer("is_model_ready", "m", "3") == (OK, False)
            assert bench.answer("is_model_ready", "m", "") == (OK, False)
            assert bench.answer("is_model_ready", "m", "2") == (OK, False)
            assert bench.answer("is_model_ready", "absent", "") == (OK, False)

        play(scenario)

    @pytest.mark.parametrize(
        "version", ["0", "-1", "one", "1.0", " 1", "+1", "\u00b2", "\u0661", "1" * 20, "0x1", "1_0"]
    )
    def test_of_what_is_no_version(self, version):
        """Triton's words, exactly."""

        async def scenario(bench):
            bench.add("m", 1)
            code, message = bench.answer("is_model_ready", "m", version)
            assert code == Code.INVALID_ARG
            # What begins as a number is one to C++.
            details = " (details: stol)" if version[0] in "o²\u0661" or len(version) > 19 else ""
            assert message == BAD_VERSION.format(version).replace("', version", f"'{details}, version")

        play(scenario)

    def test_of_a_long_text(self):
        """A refusal quotes a long text only in part."""

        async def scenario(bench):
            _, message = bench.answer("is_model_ready", "m", "9" * 10**6)
            assert len(message) < 200

        play(scenario)


class TestQueries:
    def test_of_a_model(self):
        """A process that runs native code may send the queries that native code makes."""

        async def scenario(bench):
            bench.add("m", 1)
            assert bench.answer("ServerIsLive") == (OK, True)
            assert bench.answer("ServerModelIsReady", "m", -1) == (OK, True)
            assert bench.answer("ServerModelIsReady", "none", -1) == (OK, False)
            code, message = bench.answer("ServerModelConfig", "none", -1, 1)
            assert (code, message) == (Code.NOT_FOUND, "Request for unknown model: 'none' is not found")

        play(scenario)

    @pytest.mark.parametrize("arguments", [[], ["m"], ["m", 1, 2], [["m"], 1], [{}, {}]])
    def test_wrong_arguments(self, arguments):
        """Arguments that do not fit the function are refused."""

        async def scenario(bench):
            assert bench.answer("ServerModelIsReady", *arguments) == (
                Code.INVALID_ARG,
                "these are no arguments of ServerModelIsReady",
            )

        play(scenario)


class TestMetrics:
    def test_from_the_first_to_the_last(self):
        """A family, a metric of it, its value, and their end."""

        async def scenario(bench):
            ok, family = bench.answer("metric_family", "requests", "all of them", "counter")
            assert ok == OK
            ok, metric = bench.answer("metric", family, {"model": "m"}, None)
            assert ok == OK
            bench.services.measure(bench.owner, metric, "increment", 2.0)
            assert bench.answer("metric_value", metric) == (OK, 2.0)
            assert bench.answer("drop_metric", metric) == (OK, None)
            assert bench.answer("metric_value", metric)[0] == Code.INVALID_ARG
            assert bench.answer("drop_family", family) == (OK, None)

        play(scenario)

    def test_of_a_stub_that_is_gone(self):
        """The metrics of a stub are removed with the stub."""

        async def scenario(bench):
            _, family = bench.answer("metric_family", "requests", "all of them", "counter")
            _, metric = bench.answer("metric", family, {}, None)
            bench.services.gone(bench.owner)
            assert bench.answer("metric_value", metric)[0] == Code.INVALID_ARG
            bench.services.gone(Owner())

        play(scenario)

    @pytest.mark.parametrize("number", [99, -1, None, "1", [], {}, True], ids=repr)
    def test_that_is_not_there(self, number):
        """Dropping a missing family or metric changes nothing."""

        async def scenario(bench):
            assert bench.answer("drop_family", number) == (OK, None)
            assert bench.answer("drop_metric", number) == (OK, None)

        play(scenario)

    def test_that_cannot_be_measured(self, caplog):
        """A measurement that fails has no reply: it is logged, once for each stub."""

        async def scenario(bench):
            for _ in range(3):
                bench.services.measure(bench.owner, 99, "increment", 1.0)
            bench.services.measure(Owner(), 99, "increment", 1.0)
            bench.services.gone(bench.owner)
            bench.services.measure(bench.owner, 99, "increment", 1.0)

        play(scenario)
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4) | st.sampled_from(["counter", "gauge", "histogram", "name", 0, 1, 2]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
METHODS = st.sampled_from(
    ["load_model", "unload_model", "is_model_ready", "metric_family", "metric", "metric_value", "drop_family",
     "drop_metric", "add_observations", "", "nothing", "__init__", *QUERIES]
)  # fmt: skip


class TestHostile:
    @pytest.mark.parametrize(
        "question",
        [
            ("nothing",), ("",), ("x" * 10**6,), ("load_model",), ("load_model", "m", ""),
            ("load_model", "m", "", None), ("load_model", "m", "", {}, 1), ("load_model", None, "", {}),
            ("unload_model", "m"), ("unload_model", "m", 1), ("unload_model", "m", None), ("is_model_ready", "m"),
            ("is_model_ready", "m", 1), ("is_model_ready", ["m"], "1"), ("metric_family", "name"),
            ("metric_family", [], [], []), ("metric_family", "name", "text", "counter", 1), ("metric", 1, {}),
            ("metric", [], {}, None), ("metric_value",), ("metric_value", []), ("metric_value", {}),
            ("metric_value", True), ("drop_family",), ("drop_metric", 1, 2),
        ],
        ids=lambda question: repr(question)[:60],
    )  # fmt: skip
    def test_wrong_arguments(self, question):
        """Wrong arguments are refused with a short message and change nothing."""

        async def scenario(bench):
            code, message = bench.answer(*question)
            assert code == Code.INVALID_ARG
            assert type(message) is str
            assert 0 < len(message) < 1000
            assert bench.control.loads == bench.control.unloads == []

        play(scenario)

    @settings(max_examples=settings.default.max_examples // 2)
    @given(st.lists(st.tuples(METHODS | st.text(max_size=4), st.lists(JUNK, max_size=4)), max_size=8))
    def test_junk(self, questions):
        """Every request of a model is answered once, with a value that can be sent."""

        async def scenario(bench):
            bench.control.go_on.set()
            for method, arguments in questions:
                bench.ask(method, *arguments)
            await settle()
            assert len(bench.replies) == len(questions)
            for code, value in bench.replies:
                assert type(code) is int or isinstance(code, Code)
                assert value is None or type(value) in (str, bytes, int, float, bool)

        play(scenario)

    @settings(max_examples=settings.default.max_examples // 2)
    @given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=9) | st.sampled_from(["increment", "set", "observe"]),
                              st.floats()), max_size=8))  # fmt: skip
    def test_junk_to_measure(self, measures):
        """No measurement breaks a metric."""

        async def scenario(bench):
            _, family = bench.answer("metric_family", "name", "text", "gauge")
            _, metric = bench.answer("metric", family, {}, None)
            for number, operation, value in measures:
                bench.services.measure(bench.owner, metric + number, operation, value)
            assert bench.answer("metric_value", metric)[0] == OK

        play(scenario)
