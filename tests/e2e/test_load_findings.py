# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Failures that only showed after many requests: see benchmarks/load_run.py."""

import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from .harness.models import ECHO

ONE = {"IN": np.array([1])}
# Long ids make long messages, so that it does not take many of them.
ID = "x" * 2000
WARM_UP = 50
REQUESTS = 1500
# The messages have 3 MB; other work of a process changes a few pages.
GROWTH_BYTES_MAX = 300_000


def own_bytes(pid):
    """How much memory a process has that is no file's and not shared."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def test_messages_leave_nothing_behind(model, serve):
    """A stub uses no more memory after thousands of messages than after a few."""
    model("echo", ECHO)
    server = serve()
    body = json.dumps({"id": ID, "inputs": [{"name": "IN", "datatype": "INT64", "shape": [1], "data": [1]}]})
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:

        def infer():
            connection.request("POST", "/v2/models/echo/infer", body)
            assert json.loads(connection.getresponse().read())["id"] == ID

        for _ in range(WARM_UP):
            infer()
        (stub,) = server.stubs()
        before = own_bytes(stub.pid)
        for _ in range(REQUESTS):
            infer()
        assert own_bytes(stub.pid) - before < GROWTH_BYTES_MAX


# Its request names the action and its repetitions.
OBEYS = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        command = request.request_id()
        if command == "wait":
            open(self.folder + "/waits", "w").close()
            while not os.path.exists(self.folder + "/go_on"):
                time.sleep(0.001)
        if command == "die":
            with open(self.folder + "/deaths", "a") as file:
                file.write("x")
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])]
"""


def test_answer_of_a_stub_that_is_dead_when_it_is_written_to(model, serve, wait_until):
    """An answer of a stub counts, even if the host finds out by writing to the stub that it has died since.

    The host is stopped meanwhile, so that all this happens for it in one moment: a request has come in, an answer has,
    and the stub is dead that had begun with the next request.
    """
    folder = model("obeys", OBEYS)
    server = serve()
    for _ in range(20):  # quick ones, so that several are sent ahead
        server.infer("obeys", ONE)
    with ExitStack() as opened:

        def connect():
            connection = opened.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port)))
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().read() == b""
            return connection

        def send(connection, command):
            document = {"id": command, "inputs": [{"name": "IN", "datatype": "INT64", "shape": [1], "data": [1]}]}
            connection.request("POST", "/v2/models/obeys/infer", json.dumps(document))

        def answer(connection):
            response = connection.getresponse()
            return response.status, json.loads(response.read()).get("error")

        first, second, third, other = (connect() for _ in range(4))
        (stub,) = server.stubs()
        send(first, "wait")
        wait_until((folder / "waits").exists)
        send(second, "die")
        other.request("GET", "/v2/health/live")  # answered after the request before it is with the stub
        assert other.getresponse().read() == b""
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: " T " in Path(f"/proc/{server.process.pid}/stat").read_text())
            send(third, "work")
            (folder / "go_on").touch()
            wait_until(lambda: not stub.is_alive())
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert answer(first) == (200, None)
        status, error = answer(second)
        assert (status, "It was lost while it ran this request: exited with code 3" in error) == (500, True)
        assert answer(third) == (200, None)
    assert (folder / "deaths").read_text() == "x"


KEEPS = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        for request in requests:
            self.kept.append(request.get_response_sender())
            self.kept[-1].send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]))
"""
UNLOADS = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.unload_model("keeps")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for request in requests]
"""


def test_stub_that_dies_while_its_model_is_unloaded(model, serve, wait_until):
    """An unload waits for streams that are open, and no longer when they have ended by the death of their stub."""
    model("keeps", KEEPS, more="model_transaction_policy { decoupled: true }")
    model("unloads", UNLOADS)
    server = serve("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=300")

    def index():
        return server.request("POST", "/v2/repository/index").body.decode()

    with server.streaming("keeps", IN=[1]) as events, ThreadPoolExecutor() as clients:
        assert next(events)["OUT"] == 1
        unloaded = clients.submit(server.infer, "unloads", ONE)
        wait_until(lambda: '"UNLOADING"' in index())
        os.kill(server.stub("keeps_0").pid, signal.SIGKILL)
        assert "killed by SIGKILL" in next(events)["error"]
        wait_until(lambda: '"reason":"unloaded"' in index())
        assert unloaded.result().as_numpy("OUT").tolist() == [1]
    assert len(server.stubs()) == 1


UNLOADS_ITSELF = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.unload_model(args["model_name"])
        with open(args["model_repository"] + "/asked", "w"):
            pass

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for request in requests]
"""


def test_model_that_unloads_itself_while_it_loads(model, serve, wait_until):
    """Its load is given up, its client reads why, and its process ends; it can be loaded once it does not do that."""
    folder = model("m", UNLOADS_ITSELF)
    server = serve("--model-control-mode=explicit")
    answer = server.request("POST", "/v2/repository/models/m/load", "{}")
    error = {"error": "failed to load 'm': it was unloaded while it was loading"}
    assert (answer.status, json.loads(answer.body)) == (503, error)
    wait_until(lambda: server.stubs() == [])
    assert server.request("GET", "/v2/models/m/ready").status == 404
    path = folder / "1" / "model.py"
    path.write_text(path.read_text().replace('pb_utils.unload_model(args["model_name"])', "pass"))
    assert server.request("POST", "/v2/repository/models/m/load", "{}").status == 200
    assert server.infer("m", {"IN": ONE["IN"]}).as_numpy("OUT").tolist() == [1]
