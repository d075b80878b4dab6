# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The processes around stubs: whichever of them is killed, running models serve on, and nothing outlives the server."""

import http.client
import json
import os
import re
import resource
import signal
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from pyruntime.runtime.loaders import python

from .harness.processes import Process, find_process
from .harness.waiting import LIMIT_S

# Small models, idle connections, and the descriptors that the server may have for both; a start of a stub takes some.
MODELS = 16
CLIENTS = 1200
DESCRIPTORS = 400
STARTING = 12
INPUT = {"IN": np.array([7])}
# `initialize` starts a daemon as init systems of old know them: another session, no parent, no open files. It leaves
# its number in the model's folder, and does not heed SIGTERM if the model is called `stubborn`.
MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], "daemon")
        read_fd, write_fd = os.pipe()
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            if args["model_name"] == "stubborn":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(folder, "w") as file:
                file.write(str(os.getpid()))
            os.write(write_fd, b"!")
            os.closerange(0, 100)
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        os.wait()
        os.read(read_fd, 1)
        os.close(read_fd)
        os.close(write_fd)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(
            request, "IN").as_numpy())]) for request in requests]
"""

PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(
            request, "IN").as_numpy())]) for request in requests]
"""


@pytest.fixture
def daemons(model, serve):
    """`daemons(*names)`: a server of models with daemons, and their daemons by name."""

    def start(*names, **how):
        folders = {name: model(name, MODEL) for name in names}
        server = serve(**how)
        return server, {name: daemon_of(folder) for name, folder in folders.items()}

    return start


def daemon_of(folder: Path) -> Process:
    daemon = find_process(int((folder / "daemon").read_text()))
    assert daemon is not None
    return daemon


@contextmanager
def no_descriptors(server):
    """The server cannot open anything."""
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)


def works(server, name):
    return server.infer(name, INPUT).as_numpy("OUT").tolist() == [7]


def is_back(server, stub):
    """Whether there is another stub in the place of this one."""
    return server.stubs(stub.title.split()[-1]) not in ([], [stub])


def titled(server, title):
    """The one process of the server with this title."""
    (found,) = [each for each in server.family() if each.title == title]
    return found


def test_killed_launcher(daemons, wait_until):
    """Without a launcher models serve on; the next crash starts another one, and the server stops as usual."""
    server, _ = daemons("one", "two")
    stubs = {name: server.stub(f"{name}_0") for name in ("one", "two")}
    launcher = titled(server, "pyruntime launcher")
    guardians = [each for each in server.family() if each.title.startswith("pyruntime guardian of ")]
    os.kill(launcher.pid, signal.SIGKILL)
    wait_until(lambda: not launcher.is_alive())
    assert works(server, "one")
    assert works(server, "two")
    os.kill(stubs["one"].pid, signal.SIGKILL)
    wait_until(lambda: is_back(server, stubs["one"]))
    assert works(server, "one")
    assert works(server, "two")
    assert stubs["two"].is_alive()
    assert titled(server, "pyruntime launcher") != launcher
    assert "The launcher of stub processes was lost: killed by SIGKILL" in server.log
    assert "one_0: stub killed by SIGKILL" in server.log
    server.stop()
    wait_until(lambda: not [each for each in [*guardians, *stubs.values()] if each.is_alive()])


def test_killed_guardian(daemons, wait_until):
    """A guardian that is killed is a crash of its stub, which comes back; its daemon is gone."""
    server, daemon = daemons("one", "two")
    stubs = {name: server.stub(f"{name}_0") for name in ("one", "two")}
    os.kill(titled(server, "pyruntime guardian of one_0").pid, signal.SIGKILL)
    wait_until(lambda: is_back(server, stubs["one"]) and not daemon["one"].is_alive())
    assert works(server, "one")
    assert works(server, "two")
    assert stubs["two"].is_alive()
    assert daemon["two"].is_alive()


@pytest.mark.parametrize("name", ["obedient", "stubborn"])
def test_daemon_ends_with_its_stub(daemons, wait_until, name):
    """A crash ends the daemon of the model, however it left, and no other."""
    server, daemon = daemons(name, "other")
    stub = server.stub(f"{name}_0")
    os.kill(stub.pid, signal.SIGKILL)
    wait_until(lambda: is_back(server, stub))
    assert works(server, name)
    wait_until(lambda: not daemon[name].is_alive())
    assert daemon["other"].is_alive()


def test_daemons_end_with_the_server(daemons):
    """A server that stops leaves no daemon of a model behind, not for a moment."""
    server, daemon = daemons("obedient", "stubborn")
    server.stop()
    assert not [name for name, each in daemon.items() if each.is_alive()]


def test_daemons_end_with_a_killed_server(daemons, wait_until):
    """After a killed server no daemon is left, once its guardians have done their work."""
    server, daemon = daemons("obedient", "stubborn")
    everything = [*server.family(), *daemon.values()]
    os.kill(server.process.pid, signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    wait_until(lambda: not [each for each in everything if each.is_alive()])


def test_killed_server_and_launcher(daemons, wait_until):
    """The launcher is not needed for that."""
    server, daemon = daemons("obedient", "stubborn")
    everything = [*server.family(), *daemon.values()]
    os.kill(titled(server, "pyruntime launcher").pid, signal.SIGKILL)
    os.kill(server.process.pid, signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    wait_until(lambda: not [each for each in everything if each.is_alive()])


def count_open(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def connections(server):
    """How many connections of HTTP the server has. The port of metrics answers also when there can be no more."""
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    return int(float(re.search(r'^pyruntime_connections\{protocol="http"\} (\S+)$', page, re.MULTILINE).group(1)))


def loads(operator, name):
    """Load a model. False if the connection was taken for an idle one, or there was no room for another one."""
    try:
        operator.request("POST", f"/v2/repository/models/{name}/load")
        with operator.getresponse() as response:
            answer = response.status, response.read()
    except ConnectionError:
        operator.close()
        return False
    assert answer[0] in (200, 503), answer
    return answer[0] == 200


def test_crashes_in_a_crowd(model, serve, wait_until):
    """Under few descriptors and with many idle connections models are loaded, and come back after a crash."""
    names = [f"model_{number}" for number in range(MODELS)]
    early, late = names[: MODELS // 2], names[MODELS // 2 :]
    for name in names:
        model(name, PLAIN)
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in early)]
    server = serve(*options, wrapper=("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"))
    with (
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)) as operator,
        ExitStack() as clients,
    ):
        operator.connect()
        for _ in range(CLIENTS):
            clients.enter_context(server.connect())
        before = connections(server)
        assert before < DESCRIPTORS
        # A client that does something takes the place of one that does not.
        wait_until(lambda: server.request("GET", "/v2/health/live").status == 200)
        for name in late:
            wait_until(lambda name=name: loads(operator, name))
        # Idle connections give way to the models.
        wait_until(lambda: connections(server) < before)
        wait_until(lambda: count_open(server) < DESCRIPTORS - 2 * STARTING)
        stubs = {name: server.stub(f"{name}_0") for name in names}
        crashed = names[::2]
        for name in crashed:
            os.kill(stubs[name].pid, signal.SIGKILL)
        for name in crashed:
            wait_until(lambda name=name: is_back(server, stubs[name]))
        assert all(stubs[name].is_alive() for name in names[1::2])
    wait_until(lambda: connections(server) == 0)
    assert all(works(server, name) for name in names)
    assert "is not started again" not in server.log
    assert "The launcher of stub processes was lost" not in server.log


def test_no_descriptors_for_restarts(daemons, wait_until):
    """While the server has no descriptor left, crashed models wait without being given up."""
    crashed = [f"model_{number}" for number in range(4)]
    server, _ = daemons(*crashed, "other")
    other = server.stub("other_0")
    with no_descriptors(server):
        for name in crashed:
            os.kill(server.stub(f"{name}_0").pid, signal.SIGKILL)
        # More than five each, which would be deaths enough to be given up.
        wait_until(lambda: all(server.log.count(f"{name}_0: cannot be started now: ") > 5 for name in crashed))
        assert {each.title for each in server.stubs()} == {other.title}
    # It has counted its descriptors meanwhile, and accepts connections from the next count on.
    wait_until(lambda: server.request("GET", "/v2").status == 200)
    assert all(works(server, name) for name in [*crashed, "other"])
    assert other.is_alive()
    index = json.loads(server.request("POST", "/v2/repository/index").body)
    assert {row["state"] for row in index} == {"READY"}


def test_no_descriptors_for_a_stub(model, serve, with_limits):
    """A model whose stub cannot be started is not loaded, says why, and can be loaded later; others serve."""
    model("other", PLAIN)
    model("late", PLAIN)
    options = ["--model-control-mode=explicit", "--load-model=other"]
    server = serve(*options, wrapper=with_limits(python, LAUNCH_S_MAX=0.5))
    launcher = titled(server, "pyruntime launcher")
    before = resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (5, before[1]))
    answer = server.request("POST", "/v2/repository/models/late/load")
    assert answer.status >= 400
    index = {row["name"]: row for row in json.loads(server.request("POST", "/v2/repository/index").body)}
    assert index["late"]["reason"].startswith("Unavailable: the stub process of late_0 cannot be started: ")
    assert index["late"]["reason"].endswith(
        ". The server tried for 0.5 s. Close connections, unload other models, or allow the server more descriptors, "
        "processes or memory"
    )
    assert works(server, "other")
    resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, before)
    assert server.request("POST", "/v2/repository/models/late/load").status == 200
    assert works(server, "late")
