# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`is_ready` of a model: its forms, when it is called, and other requests meanwhile."""

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

INPUT = {"IN": np.array([1, 2])}
# The answer is in a file; another file counts the questions.
ASKED = """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.path = self.folder + "/" + args["model_instance_name"]

    def say(self):
        with open(self.path + "_asked", "a") as file:
            file.write("x")
        if not os.path.exists(self.path):
            return True
        with open(self.path) as file:
            said = eval(file.read())
        return said

    def execute(self, requests):
        for request in requests:
            if request.request_id() == "wait":
                open(self.folder + "/executes", "w").close()
                while not os.path.exists(self.folder + "/gate"):
                    time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
SYNC = (
    ASKED
    + """
    def is_ready(self):
        return self.say()
"""
)
ASYNC = (
    ASKED
    + """
    async def is_ready(self):
        await asyncio.sleep(0)
        return self.say()
"""
)
# Waits until a file is there.
SLOW = (
    ASKED
    + """
    def is_ready(self):
        said = self.say()
        while not os.path.exists(self.folder + "/answer"):
            time.sleep(0.001)
        return said
"""
)
# Is ready if the model that it needs is.
NEEDS = (
    ASKED
    + """
    def is_ready(self):
        return pb_utils.is_model_ready("needed")
"""
)
# Is ready if the model that it needs answers.
CALLS = (
    ASKED
    + """
    def is_ready(self):
        call = pb_utils.InferenceRequest(model_name="needed", inputs=[pb_utils.Tensor("IN", np.array([1]))])
        return not call.exec().has_error()
"""
)


def is_ready(server, name="m"):
    """Whether a model says that it is ready."""
    return server.request("GET", f"/v2/models/{name}/ready").status == 200


def answers(server, name="m"):
    """Whether a model answers."""
    return server.infer(name, INPUT).as_numpy("OUT").tolist() == [1, 2]


class TestWhatItSays:
    @pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "async"])
    def test_yes_or_no(self, model, serve, code):
        """The result of a method or a coroutine is visible to clients."""
        folder = model("m", code)
        server = serve()
        for said in (True, False, True):
            (folder / "m_0").write_text(str(said))
            assert is_ready(server) is said
            assert server.is_ready() is said
            assert answers(server)

    @pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "async"])
    @pytest.mark.parametrize(
        ("said", "line"),
        [
            ("1", r"is_ready\(\) must return a boolean value"),
            ("None", r"is_ready\(\) must return a boolean value"),
            ("np.bool_(True)", r"is_ready\(\) must return a boolean value"),
            ("1 / 0", r"is_ready\(\) failed: ZeroDivisionError"),
            ("sys.exit(3)", r"is_ready\(\) failed: SystemExit"),
        ],
    )
    def test_nonsense(self, model, serve, wait_until, code, said, line):
        """Anything but a boolean is a no, and a line in the log that says why; the model serves all the same."""
        folder = model("m", code)
        server = serve()
        stub = server.stub("m_0")
        (folder / "m_0").write_text(said)
        assert not is_ready(server)
        wait_until(lambda: re.search(rf"^E.* m_0: {line}$", server.log, re.M))
        assert answers(server)
        (folder / "m_0").write_text("True")
        assert is_ready(server)
        assert server.stub("m_0") == stub

    def test_no_is_in_the_verbose_log_only(self, model, serve):
        """An honest no is nothing to worry about."""
        folder = model("m", SYNC)
        (folder / "m_0").write_text("False")
        server = serve("--log-verbose=1", "--strict-readiness=false")
        assert not is_ready(server)
        assert re.search(
            r"^V.* Model 'm_0' is not ready \(user-defined check failed\)\.$",
            server.log,
            re.M,
        )
        assert json.loads(server.request("GET", "/v2/models/m/ready").body) == {"error": "Model version not ready"}


class TestWhoIsAsked:
    def test_every_instance(self, model, serve):
        """A model is ready if all its instances say so."""
        folder = model("m", SYNC, more="instance_group [ { count: 3 } ]")
        server = serve()
        assert is_ready(server)
        (folder / "m_0_1").write_text("False")
        assert not is_ready(server)
        (folder / "m_0_1").write_text("True")
        assert is_ready(server)
        assert all((folder / f"m_0_{number}_asked").exists() for number in range(3))

    def test_one_thread_for_all(self, model, serve):
        """Instances that are threads of one process are asked once."""
        folder = model(
            "m", SYNC, more='instance_group [ { count: 3 } ] parameters { key: "INSTANCE_MODE" value { string_value: '
            '"thread" } }',
        )  # fmt: skip
        server = serve("--strict-readiness=false")
        assert is_ready(server)
        asked = list(folder.glob("*_asked"))
        assert [path.stat().st_size for path in asked] == [1]

    def test_at_the_same_time(self, model, serve, patient, wait_until):
        """Questions that come while the model is being asked get the same answer; later ones have it asked again."""
        folder = model("m", SLOW)
        server = serve("--strict-readiness=false", wrapper=patient)
        with ThreadPoolExecutor(10) as clients:
            found = [clients.submit(is_ready, server) for _ in range(10)]
            wait_until((folder / "m_0_asked").exists)
            for _ in range(2):
                server.request("GET", "/v2/health/live")
            (folder / "answer").touch()
            assert [each.result() for each in found] == [True] * 10
        # At least the first question was asked; how many more came before the answer depends on timing.
        assert 1 <= (folder / "m_0_asked").stat().st_size <= 10
        before = (folder / "m_0_asked").stat().st_size
        assert is_ready(server)
        assert (folder / "m_0_asked").stat().st_size == before + 1

    def test_other_models_are_not(self, model, serve):
        """The readiness of one model is no question to another; that of the server is one to all."""
        folders = [model(name, SYNC) for name in "ab"]
        server = serve("--strict-readiness=false")
        assert is_ready(server, "a")
        assert [(folder / f"{folder.name}_0_asked").exists() for folder in folders] == [True, False]


class TestMeanwhile:
    def test_execute_goes_on(self, model, serve, patient, wait_until):
        """Requests are executed while the model thinks about it."""
        folder = model("m", SLOW)
        server = serve("--strict-readiness=false", wrapper=patient)
        with ThreadPoolExecutor() as clients:
            asked = clients.submit(is_ready, server)
            wait_until((folder / "m_0_asked").exists)
            for _ in range(20):
                assert answers(server)
            assert not asked.done()
            (folder / "answer").touch()
            assert asked.result()

    @pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "async"])
    def test_while_it_executes(self, model, serve, wait_until, code):
        """It is asked, and answers, while execute runs."""
        folder = model("m", code)
        server = serve("--strict-readiness=false")
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(server.infer, "m", INPUT, request_id="wait")
            wait_until((folder / "executes").exists)
            assert is_ready(server)
            (folder / "m_0").write_text("False")
            assert not is_ready(server)
            assert not waiting.done()
            (folder / "gate").touch()
            assert waiting.result().as_numpy("OUT").tolist() == [1, 2]

    def test_while_it_starts_again(self, model, serve, patient, wait_until):
        """An instance that has died while it was asked is not ready; the next one is."""
        folder = model("m", SLOW)
        server = serve("--strict-readiness=false", wrapper=patient)
        with ThreadPoolExecutor() as clients:
            asked = clients.submit(is_ready, server)
            wait_until((folder / "m_0_asked").exists)
            os.kill(server.stub("m_0").pid, signal.SIGKILL)
            assert not asked.result()
        (folder / "answer").touch()
        wait_until(lambda: is_ready(server))


class TestOfOtherModels:
    @pytest.mark.parametrize("code", [NEEDS, CALLS], ids=["is_model_ready", "exec"])
    def test_that_it_needs(self, model, serve, wait_until, code):
        """It may depend on another model."""
        model("m", code)
        model("needed", ASKED)
        server = serve("--strict-readiness=false")
        assert is_ready(server)
        for _ in range(20):
            assert is_ready(server)
        assert answers(server)
