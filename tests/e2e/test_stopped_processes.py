# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model that stops the processes around it (SIGSTOP) does not keep the server from anything, nor from its exit."""

import os
import signal

import numpy as np
import pytest

INPUT = {"IN": np.arange(3)}
# The request's ID says whom it stops: its parent, the guardian, or that one's parent, the launcher.
STOPS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            if request.request_id():
                guardian = os.getppid()
                with open(f"/proc/{guardian}/stat") as file:
                    launcher = int(file.read().rpartition(")")[2].split()[1])
                for name in request.request_id().split():
                    os.kill({"guardian": guardian, "launcher": launcher}[name], signal.SIGSTOP)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""


def is_stopped(process):
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def titled(server, title):
    (found,) = [each for each in server.family() if each.title == title]
    return found


@pytest.fixture
def server(model, serve, python):
    model("m", STOPS, more=python)
    return serve("--model-control-mode=explicit", "--load-model=m", "--exit-timeout-secs=2")


@pytest.mark.parametrize("whom", ["guardian", "launcher", "guardian launcher"])
def test_the_server_exits_and_leaves_nothing_behind(server, whom, wait_until):
    processes = [titled(server, f"pyruntime {name}{' of m_0' * (name == 'guardian')}") for name in whom.split()]
    server.infer("m", INPUT, request_id=whom)
    wait_until(lambda: all(map(is_stopped, processes)))
    server.stop()  # which checks that all processes have ended


def test_a_model_is_unloaded_whose_guardian_is_stopped(server, wait_until):
    guardian, stub = titled(server, "pyruntime guardian of m_0"), server.stub("m_0")
    server.infer("m", INPUT, request_id="guardian")
    wait_until(lambda: is_stopped(guardian))
    assert server.request("POST", "/v2/repository/models/m/unload", "{}").status == 200
    wait_until(lambda: b'"unloaded"' in server.request("POST", "/v2/repository/index", "{}").body)
    wait_until(lambda: not guardian.is_alive())
    assert not stub.is_alive()


def test_a_stopped_launcher_goes_on_with_the_next_stub(server, wait_until):
    launcher, stub = titled(server, "pyruntime launcher"), server.stub("m_0")
    server.infer("m", INPUT, request_id="launcher")
    wait_until(lambda: is_stopped(launcher))
    os.kill(stub.pid, signal.SIGKILL)
    wait_until(lambda: server.stubs("m_0") not in ([], [stub]))
    assert server.infer("m", INPUT).as_numpy("OUT").tolist() == [0, 1, 2]
