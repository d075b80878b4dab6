# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the repositories, over a stand-in for model control."""

import asyncio

import pytest

from pyruntime.runtime.frontends.grpc.schema import INFERENCE, class_of
from pyruntime.utils.errors import Code, InferenceError

NAMED = (Code.UNSUPPORTED, "'repository_name' specification is not supported")
Parameter = class_of(INFERENCE.file.message_types_by_name["ModelRepositoryParameter"])


class Control:
    def __init__(self, failure=None):
        self.asked = []
        self._failure = failure
        self.go_on = asyncio.Event()

    async def load(self, name, config="", files=None):
        await self._do("load", name, config, files)

    async def unload(self, name, unload_dependents=False):
        await self._do("unload", name, unload_dependents)

    async def _do(self, *what):
        self.asked.append(what)
        await self.go_on.wait()
        if self._failure is not None:
            raise self._failure


class TestIndex:
    def test_is_that_of_the_core(self, call):
        """Every model, every version."""
        call.state.table.begin_load("broken", 2)
        call.state.table.fail("broken", 2, "no")
        rows = call("RepositoryIndex").models
        assert [(row.name, row.version, row.state, row.reason) for row in rows] == [
            ("broken", "2", "UNAVAILABLE", "no"), ("d", "1", "READY", ""), ("m", "1", "READY", ""),
        ]  # fmt: skip
        assert [row.name for row in call("RepositoryIndex", ready=True).models] == ["d", "m"]


@pytest.mark.parametrize("name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_one_of_the_repositories(call, name):
    """A request cannot name one of several repositories."""
    assert call.error(name, repository_name="r") == NAMED


def outcome(call, name, failure=None, /, **fields):
    """The operations that control was asked for, and the reply."""

    async def run():
        call.state.control = control = Control(failure)
        async with asyncio.TaskGroup() as tasks:
            call.state.tasks = tasks
            call.begin(name, **fields)
            await asyncio.sleep(0)
            assert call.replies == []
            control.go_on.set()
        (reply,) = call.replies
        return control.asked, reply

    return asyncio.run(run())


class TestLoad:
    def test_replies_when_it_is_loaded(self, call):
        """Not before."""
        asked, reply = outcome(call, "RepositoryModelLoad", model_name="m")
        assert asked == [("load", "m", "", {})]
        assert reply.DESCRIPTOR.name == "RepositoryModelLoadResponse"

    def test_with_configuration_and_files(self, call):
        """They go to the control as they are."""
        parameters = {
            "config": Parameter(string_param="{}"),
            "file:1/model.py": Parameter(bytes_param=b"\x00\xff"),
            "file:empty": Parameter(bytes_param=b""),
        }
        asked, _ = outcome(call, "RepositoryModelLoad", model_name="m", parameters=parameters)
        assert asked == [("load", "m", "{}", {"file:1/model.py": b"\x00\xff", "file:empty": b""})]

    def test_that_fails(self, call):
        """The control's error is the answer."""
        failure = InferenceError("load failed for model 'm'", Code.INVALID_ARG)
        assert outcome(call, "RepositoryModelLoad", failure, model_name="m")[1] is failure

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("config", {"int64_param": 1}, "invalid value type for load parameter 'config', expected string_param."),
            (
                "config",
                {"bytes_param": b"{}"},
                "invalid value type for load parameter 'config', expected string_param.",
            ),
            ("config", {}, "invalid value type for load parameter 'config', expected string_param."),
            ("file:x", {"string_param": "x"}, "invalid value type for load parameter 'file:x', expected bytes_param."),
            ("foo", {"bool_param": True}, "unrecognized load parameter 'foo'."),
            ("files:x", {"bytes_param": b""}, "unrecognized load parameter 'files:x'."),
        ],
    )
    def test_with_other_parameters(self, call, name, value, message):
        """Triton's words."""
        found = call.error("RepositoryModelLoad", model_name="m", parameters={name: Parameter(**value)})
        assert found == (Code.INVALID_ARG, message)


class TestUnload:
    @pytest.mark.parametrize(
        ("parameters", "dependents"),
        [
            ({}, False),
            ({"unload_dependents": Parameter(bool_param=True)}, True),
            ({"unload_dependents": Parameter(bool_param=False)}, False),
            ({"foo": Parameter(int64_param=1)}, False),
        ],
        ids=["none", "with", "without", "another"],
    )
    def test_replies_when_it_takes_no_more(self, call, parameters, dependents):
        """Other parameters say nothing, as in Triton."""
        asked, reply = outcome(call, "RepositoryModelUnload", model_name="m", parameters=parameters)
        assert asked == [("unload", "m", dependents)]
        assert reply.DESCRIPTOR.name == "RepositoryModelUnloadResponse"

    def test_dependents_that_are_no_boolean(self, call):
        """Triton's words."""
        parameters = {"unload_dependents": Parameter(int64_param=1)}
        assert call.error("RepositoryModelUnload", parameters=parameters) == (
            Code.INVALID_ARG, "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        )  # fmt: skip

    def test_that_fails(self, call):
        """The control's error is the answer."""
        failure = InferenceError("explicit model load / unload is not allowed", Code.UNAVAILABLE)
        assert outcome(call, "RepositoryModelUnload", failure, model_name="m")[1] is failure
