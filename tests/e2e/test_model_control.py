# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that come, change and go while the server runs: in real processes, of a server that runs in this one.

Here the test itself calls the server; models and clients ask for the same.
"""

import asyncio
import gc
import json
import os
import tempfile

import numpy as np
import pytest
import uvloop

from pyruntime.runtime.app.server import Server
from pyruntime.runtime.frontends.listeners import Listeners
from pyruntime.runtime.instances.stub import launch
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import InferenceError

from .harness.models import GATED
from .harness.waiting import LIMIT_S

IN_OUT = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_INT64", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]}],
}
# Answers every request with a number in its code.
CONSTANT = """
import numpy as np, os, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answer = pb_utils.Tensor("OUT", np.array([{}, os.getpid()]))
        return [pb_utils.InferenceResponse([answer]) for request in requests]
"""


class World:
    """A running server and its repository."""

    def __init__(self, state, repository):
        self.state = state
        self.repository = repository

    def answer(self, name, number):
        """Have a model answer with another number from its next load on."""
        (self.repository / name / "1" / "model.py").write_text(CONSTANT.format(number))

    async def infer(self, name, *numbers):
        """The answer of a model."""
        data = np.array(numbers, dtype=np.int64)
        request = InferRequest(name, inputs=[InputTensor("IN", "INT64", list(data.shape), data.tobytes())])
        done = asyncio.get_running_loop().create_future()

        def respond(outcome, final):
            if isinstance(outcome, InferenceError):
                done.set_exception(outcome)
                return
            done.set_result(np.frombuffer(outcome.outputs[0].data, dtype=np.int64).tolist())
            outcome.release()

        self.state.resolve(name).infer(request, respond)
        return await done

    async def refused(self, *args):
        """The message that a load ends with."""
        with pytest.raises(InferenceError) as caught:
            await self.state.control.load(*args)
        return caught.value.message

    def states(self, name):
        return {version: state.name for version, state in self.state.table.states(name).items()}

    async def until(self, condition):
        """Wait for something that processes are about to bring about."""
        while not condition():  # noqa: ASYNC110 - what brings it about does not know of us
            await asyncio.sleep(0.01)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """`world(test, **settings)`: run `await test(the world)`, and shut its server down."""
    # The launcher is a process of the tests here: it is waited for, however long it takes to start or to end.
    monkeypatch.setattr(launch, "CLOSE_S_MAX", LIMIT_S)

    def run(test, **settings):
        values = {"model_control_mode": "explicit", "allow_http": False, "allow_grpc": False, "allow_metrics": False}
        server = Server(ServerSettings((str(tmp_path),), **{**values, **settings}), Listeners)

        async def main():
            async with asyncio.timeout(LIMIT_S):
                serving = asyncio.ensure_future(server.run())
                await asyncio.sleep(0)  # it begins
                made = World(server.state, tmp_path)
                try:
                    await made.until(lambda: server.state.loaded or serving.done())
                    await test(made)
                finally:
                    server.stop()
                    assert await serving == 0

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    return run


@pytest.fixture
def constant(model):
    """`constant(name, number)`: a model that answers with a number."""
    return lambda name, number: model(name, CONSTANT.format(number))


def is_alive(pid):
    return os.path.exists(f"/proc/{pid}")


def test_load_and_unload(world, constant):
    """A model comes when it is asked for, serves, and goes with its processes."""
    constant("m", 5)

    async def test(world):
        assert [(row.name, row.state) for row in world.state.index(False)] == [("m", "")]
        assert world.state.is_ready()
        await world.state.control.load("m")
        answer, pid = await world.infer("m", 1)
        assert answer == 5
        await world.state.control.unload("m")
        with pytest.raises(InferenceError, match="has no available versions"):
            world.state.resolve("m")
        await world.until(lambda: world.states("m") == {1: "UNAVAILABLE"})
        assert not is_alive(pid)
        assert world.state.is_ready()
        await world.state.control.load("m")
        assert (await world.infer("m", 1))[0] == 5

    world(test)


def test_reload_under_load(world, constant):
    """No request fails while a model is replaced under them, time and again; at the end only the last one lives."""
    constant("m", 0)

    async def test(world):
        await world.state.control.load("m")
        pids = set()

        async def client():
            answers = [0]
            while answers[-1] < 5:  # up to the last one
                answer, pid = await world.infer("m", 1)
                answers.append(answer)
                pids.add(pid)
            # A client never gets an answer of a model that was replaced before its request.
            assert answers == sorted(answers)

        async with asyncio.TaskGroup() as clients:
            for _ in range(8):
                clients.create_task(client())
            for number in range(1, 6):
                world.answer("m", number)
                await world.state.control.load("m")
                assert (await world.infer("m", 1))[0] == number
        assert len(pids) > 1
        _, last = await world.infer("m", 1)
        await world.until(lambda: [pid for pid in pids if is_alive(pid)] == [last])

    world(test)


def test_nothing_is_left_of_what_was_replaced(world, constant):
    """However often a model is loaded and unloaded, the server holds no more descriptors and mappings than before."""
    constant("m", 0)

    def held():
        with open("/proc/self/maps") as maps:
            regions = sum("/memfd:" in line or "/dev/shm/" in line for line in maps)
        return len(os.listdir("/proc/self/fd")), regions

    async def test(world):
        counts = []
        for number in range(1, 13):
            world.answer("m", number)
            await world.state.control.load("m")
            assert (await world.infer("m", 1))[0] == number
            assert held()[1] > 0
            if number % 3 == 0:
                await world.state.control.unload("m")
                await world.until(lambda: world.states("m") == {1: "UNAVAILABLE"})
                await world.until(lambda: "LiveVersions [0 alive" in repr(world.state.control))
                gc.collect()  # objects in cycles count as gone
                counts.append(held())
        # Others in this process may have closed files meanwhile, so that only growth counts.
        assert [max(each) for each in zip(*counts, strict=True)] == [*counts[0]], counts

    world(test)


def test_what_was_accepted_is_answered(world, model):
    """A model that is unloaded answers all its requests, and is finalized after that."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_execute")

    async def test(world):
        await world.state.control.load("slow")
        requests = [asyncio.ensure_future(world.infer("slow", number)) for number in range(20)]
        await world.until((folder / "at_gate").exists)
        await world.state.control.unload("slow")
        assert world.states("slow") == {1: "UNLOADING"}
        with pytest.raises(InferenceError):
            await world.infer("slow", 1)
        gate = os.open(folder / "gate_execute", os.O_WRONLY)  # waits until the model has come to read it
        os.unlink(folder / "gate_execute")
        os.close(gate)
        assert await asyncio.gather(*requests) == [[number] for number in range(20)]
        await world.until(lambda: world.states("slow") == {1: "UNAVAILABLE"})
        assert (folder / "finalized").exists()

    world(test)


def test_what_takes_too_long_is_cut_off(world, model, caplog):
    """An unload takes no longer than --exit-timeout-secs and a little for finalize."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_execute")

    async def test(world):
        await world.state.control.load("slow")
        request = asyncio.ensure_future(world.infer("slow", 1))
        await world.until((folder / "at_gate").exists)
        await world.state.control.unload("slow")
        with pytest.raises(InferenceError, match="is not healthy"):
            await request
        await world.until(lambda: world.states("slow") == {1: "UNAVAILABLE"})

    world(test, exit_timeout_s=0)
    assert "slow_0: did not finish within" in caplog.text


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CONSTANT.format(1) + "    def initialize(self, args):\n        raise ValueError('not today')\n", "not today"),
        ("class TritonPythonModel\n", "SyntaxError"),
        ("import os\nos._exit(3)\n", "exited with code 3"),
    ],
)
def test_a_reload_that_fails(world, constant, code, reason):
    """The version before goes on in the same process; the next load tries again."""
    folder = constant("m", 5)

    async def test(world):
        await world.state.control.load("m")
        before = await world.infer("m", 1)
        (folder / "1" / "model.py").write_text(code)
        for _ in range(2):
            message = await world.refused("m")
            assert message.startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: ")
            assert reason in message
            assert message.endswith(";\n")
            assert await world.infer("m", 1) == before
        assert world.state.is_ready()
        world.answer("m", 6)
        await world.state.control.load("m")
        assert (await world.infer("m", 1))[0] == 6

    world(test)


def test_configuration_override(world, model):
    """A configuration that comes with a load is the model's, for the client and in its args."""
    model(
        "m",
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.answer = json.loads(args["model_config"])["parameters"].get("k", {}).get("string_value", "0")
            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([int(self.answer)]))])
                        for request in requests]
        """,
    )
    config = {**IN_OUT, "parameters": {"k": {"string_value": "7"}}, "instance_group": [{"count": 2}]}

    async def test(world):
        await world.state.control.load("m")
        assert await world.infer("m", 1) == [0]
        await world.state.control.load("m", json.dumps(config))
        assert await world.infer("m", 1) == [7]
        assert len(world.state.resolve("m").spec.instances) == 2
        await world.state.control.load("m")
        assert await world.infer("m", 1) == [7]
        message = await world.refused("m", json.dumps({**config, "max_batch_size": -1}))
        assert message.startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: ")
        assert await world.infer("m", 1) == [7]

    world(test)


def test_file_override(world, constant, tmp_path_factory, monkeypatch):
    """Files that come with a load are the model, also for a process that has to be started again."""
    place = tmp_path_factory.mktemp("place")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    constant("m", 5)
    files = {
        "file:1/model.py": b"from helper import *\n" + CONSTANT.format("NUMBER").encode(),
        "file:1/helper.py": b"NUMBER = 8\n",
    }

    async def test(world):
        await world.state.control.load("m")
        await world.state.control.load("m", json.dumps(IN_OUT), files)
        answer, pid = await world.infer("m", 1)
        assert answer == 8
        (instance,) = world.state.resolve("m").instances
        os.kill(pid, 9)
        # Until the server knows of the death, a request would be lost with the process.
        await world.until(lambda: instance.restarts)
        answer, second = await world.infer("m", 1)
        assert (answer, second != pid) == (8, True)
        await world.state.control.load("m")
        assert (await world.infer("m", 1))[0] == 5
        await world.until(lambda: not list(place.iterdir()))
        # Lenient JSON and a slash before the path, as Triton takes them.
        files["file:/1/model.py"] = files.pop("file:1/model.py")
        await world.state.control.load("other", json.dumps(IN_OUT).replace('"', "'"), files)
        assert (await world.infer("other", 1))[0] == 8

    world(test)
    assert list(place.iterdir()) == []


def test_shutting_down_while_a_model_loads(world, model, constant):
    """A load that is under way when the server stops is given up."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_initialize")
    constant("m", 5)
    errors = []

    async def test(world):
        await world.state.control.load("m")
        loading = asyncio.ensure_future(world.refused("slow"))
        loading.add_done_callback(lambda task: errors.append(task.result()))
        await world.until((folder / "at_gate").exists)
        assert (await world.infer("m", 1))[0] == 5

    world(test)
    assert errors == ["Server exiting"]
    assert not (folder / "finalized").exists()


def test_shutting_down_while_a_model_is_unloaded(world, model):
    """An unload that is under way is finished first."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_execute")
    answers = []

    async def test(world):
        await world.state.control.load("slow")
        request = asyncio.ensure_future(world.infer("slow", 1))
        request.add_done_callback(lambda task: answers.append(task.result()))
        await world.until((folder / "at_gate").exists)
        await world.state.control.unload("slow")
        (folder / "gate_execute").write_text("")

    world(test)
    assert answers == [[1]]
    assert (folder / "finalized").exists()


def test_threads_share_a_process(world, model):
    """With INSTANCE_MODE thread the instances of a group are one process."""
    folder = model("m", CONSTANT.format(5), more="instance_group { count: 3 }")
    config = (folder / "config.pbtxt").read_text()

    async def test(world):
        await world.state.control.load("m")
        assert len(world.state.resolve("m")._active) == 3
        mode = "parameters { key: 'INSTANCE_MODE' value: { string_value: 'thread' } }"
        (folder / "config.pbtxt").write_text(config + mode)
        await world.state.control.load("m")
        assert [instance.name for instance in world.state.resolve("m")._active] == ["m_0_0"]
        answers = await asyncio.gather(*(world.infer("m", 1) for _ in range(20)))
        assert len({pid for _, pid in answers}) == 1
        (folder / "config.pbtxt").write_text(config + mode.replace("thread", "fiber"))
        assert "INSTANCE_MODE 'fiber', which must be 'process' or 'thread'" in await world.refused("m")

    world(test)


def test_what_is_there_from_the_start(serve, model):
    """The command line names the models to load; the index has the others, too."""
    for name in ("a", "b", "c"):
        model(name, CONSTANT.format(5))
    server = serve("--model-control-mode=explicit", "--load-model=a", "--load-model=c")
    rows = json.loads(server.request("POST", "/v2/repository/index").body)
    assert [(row["name"], row.get("state", "")) for row in rows] == [("a", "READY"), ("b", ""), ("c", "READY")]
    assert len(server.stubs()) == 2
    assert server.infer("a", {"IN": np.array([1])}).as_numpy("OUT")[0] == 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--model-control-mode=explicit", "--load-model=x"],
            "failed to load 'x', failed to poll from model repository",
        ),
        (["--load-model=x"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
    ],
)
def test_a_start_that_fails(serve, options, sentence):
    """A model that cannot be loaded at the start ends the server."""
    server = serve(*options, ready=False)
    assert server.wait_exit() == 1
    assert sentence in server.log
    assert "Traceback" not in server.log
