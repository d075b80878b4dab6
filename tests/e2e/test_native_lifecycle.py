# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native models are loaded and unloaded, and their servers end, during requests; no request is lost."""

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from .harness.waiting import LIMIT_S

TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
IDENTITY = 'backend: "identity"\n' + TENSORS
GATE = 'backend: "gate"\n' + TENSORS
MISUSE = 'backend: "misuse"\n' + TENSORS.replace("-1", "1")
REPEAT = (Path(__file__).parent.parent / "native/repeat.pbtxt").read_text()
INPUT = {"INPUT0": np.array([7], np.int32)}
EXPLICIT = "--model-control-mode=explicit"
# How often something is done that must leave nothing behind: a thread or a file each time would be as many. Pools of
# threads may grow by some.
TURNS = 30
# The growth of a heap that is no leak: a page of every arena and thread that ever existed.
GROWTH_BYTES_MAX = 8 << 20


@pytest.fixture(scope="module")
def backends(install_backends):
    """The option that says where the backends are."""
    return f"--backend-directory={install_backends('identity', 'gate', 'misuse', 'repeat')}"


def parameter(key, value):
    """One of a model's configuration."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def answer(server, model, version=""):
    """The answer to 7, which is 7."""
    return server.infer(model, INPUT, model_version=version).as_numpy("OUTPUT0").tolist()


def sizes(server):
    """How many threads, files and bytes a server has."""
    folder = Path(f"/proc/{server.process.pid}")
    status = dict(line.split(":\t") for line in (folder / "status").read_text().splitlines())
    return int(status["Threads"]), len(os.listdir(folder / "fd")), int(status["RssAnon"].split()[0]) << 10


def test_coming_and_going(serve, model, backends, wait_until):
    """Models that are loaded and unloaded over and over leave nothing behind."""
    model("m", None, IDENTITY, "instance_group { count: 3 }\n")
    model("repeat", None, 'backend: "repeat"\n' + REPEAT)
    server = serve(backends, EXPLICIT)

    def turn(client):
        for name in ("m", "repeat"):
            client.load_model(name)
        assert answer(server, "m") == [7]
        assert len(server.stream("repeat", IN=[1, 2], DELAY=[0, 0], WAIT=[0])) == 2
        for name in ("m", "repeat"):
            client.unload_model(name)
        wait_until(lambda: all(row.get("reason") == "unloaded" for row in client.get_model_repository_index()))

    with closing(server.client()) as client:
        for _ in range(10):
            turn(client)
        threads, files, size = sizes(server)
        for _ in range(TURNS):
            turn(client)
        found = sizes(server)
    assert found[0] < threads + TURNS
    assert found[1] < files + TURNS
    assert found[2] < size + GROWTH_BYTES_MAX


@pytest.mark.parametrize("at", ["instance_initialize", "instance_finalize", ""])
def test_threads_end_with_their_instances(serve, model, backends, wait_until, at):
    """Those of an unloaded model are gone at once, also if its backend fails to begin or to end."""
    model("thread", None, MISUSE, "instance_group { count: 2 }\n" + parameter("AT", at) + parameter("DO", "error"))
    server = serve(backends, EXPLICIT)

    def threads():
        return sum(name.startswith("thread_") for name in server.threads())

    with closing(server.client()) as client:
        if at == "instance_initialize":
            with pytest.raises(InferenceServerException, match="failed at instance_initialize"):
                client.load_model("thread")
        else:
            client.load_model("thread")
            assert answer(server, "thread") == [1]
            assert threads() == 2
            client.unload_model("thread")
    wait_until(lambda: not threads())


def test_failures_at_load_leave_nothing(serve, model, backends):
    """A model that fails to load may be tried as often as one likes, and is served once its fault is mended."""
    path = model("m", None, MISUSE, parameter("AT", "instance_initialize") + parameter("DO", "error")) / "config.pbtxt"
    server = serve(backends, EXPLICIT)

    def fail(client):
        with pytest.raises(InferenceServerException, match="failed at instance_initialize"):
            client.load_model("m")

    with closing(server.client()) as client:
        for _ in range(5):
            fail(client)
        threads, files, _ = sizes(server)
        for _ in range(TURNS):
            fail(client)
        found = sizes(server)
        assert found[0] < threads + TURNS
        assert found[1] < files + TURNS
        path.write_text(MISUSE)
        client.load_model("m")
    assert answer(server, "m") == [1]


def test_two_models_and_two_versions(serve, model, backends, wait_until):
    """Models of one backend, and versions of one model, live for themselves."""
    versions = model("versions", None, IDENTITY, "version_policy { all { } }\n")
    (versions / "2").mkdir()
    model("other", None, IDENTITY)
    server = serve(backends, EXPLICIT, "--load-model=*")
    with closing(server.client()) as client:
        assert [answer(server, "versions", version) for version in ("1", "2")] == [[7], [7]]

        def executions():
            statistics = client.get_inference_statistics("versions")["model_stats"]
            return [(each["version"], each["execution_count"]) for each in statistics]

        wait_until(lambda: executions() == [("1", 1), ("2", 1)])
        client.unload_model("versions")
        assert answer(server, "other") == [7]
        shutil.rmtree(versions / "1")
        client.load_model("versions")
        assert answer(server, "versions", "2") == [7]
        assert not client.is_model_ready("versions", "1")


class Gate:
    """A model of the backend `gate`: closed while the file `hold` is in its folder."""

    def __init__(self, folder):
        self.hold = folder / "hold"
        self.hold.touch()

    def open(self):
        self.hold.unlink()


@pytest.fixture
def gate(model):
    return lambda name="gate", more="": Gate(model(name, None, GATE, more))


def in_flight(server):
    """How many requests the server has taken and not answered, but for this one."""
    lines = server.request("GET", "/metrics", port=server.metrics_port).body.decode().splitlines()
    return int(next(line for line in lines if line.startswith("pyruntime_requests_in_flight ")).split()[1]) - 1


def test_unload_while_requests_are_under_way(serve, gate, backends, wait_until):
    """Requests that a model has, and those that wait for it, are answered before it goes; no more are taken."""
    held = gate()
    server = serve(backends, EXPLICIT, "--load-model=gate")
    with ThreadPoolExecutor(5) as threads, closing(server.client()) as client:
        asked = [threads.submit(answer, server, "gate") for _ in range(4)]
        wait_until(lambda: in_flight(server) == 4)
        client.unload_model("gate")
        assert server.refusal("gate", INPUT)[1] == "Request for unknown model: 'gate' has no available versions"
        assert not any(each.done() for each in asked)
        held.open()
        assert [each.result() for each in asked] == [[7]] * 4
    assert server.request("GET", "/v2/models/gate/ready").status != 200


def test_reload_while_requests_are_under_way(serve, gate, backends, wait_until, tmp_path):
    """The old version answers the requests that it has; the new one takes the next."""
    held = gate()
    server = serve(backends, EXPLICIT, "--load-model=gate")
    with ThreadPoolExecutor(5) as threads, closing(server.client()) as client:
        asked = [threads.submit(answer, server, "gate") for _ in range(2)]
        wait_until(lambda: in_flight(server) == 2)
        (tmp_path / "gate" / "config.pbtxt").write_text(IDENTITY)
        client.load_model("gate")
        assert answer(server, "gate") == [7]
        assert not any(each.done() for each in asked)
        held.open()
        assert [each.result() for each in asked] == [[7]] * 2


def test_end_under_load(serve, gate, backends, wait_until):
    """A server that is stopped first answers all accepted requests."""
    held = gate(more="instance_group { count: 2 }\n")
    server = serve(backends)
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(answer, server, "gate") for _ in range(16)]
        wait_until(lambda: in_flight(server) == 16)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Waiting for 16 in-flight requests to complete." in server.log)
        held.open()
        assert [each.result() for each in asked] == [[7]] * 16
    assert server.wait_exit() == 0


def test_end_of_a_stream(serve, model, backends, wait_until):
    """Responses that are still to come are sent, too."""
    model("repeat", None, 'backend: "repeat"\n' + REPEAT)
    server = serve(backends)
    with server.streaming("repeat", IN=list(range(200)), DELAY=[2] * 200, WAIT=[0]) as events:
        assert next(events)["IDX"] == 0
        server.process.send_signal(signal.SIGTERM)
        assert [event["IDX"] for event in events] == list(range(1, 200))
    assert server.wait_exit() == 0


def test_end_while_a_backend_does_not(serve, gate, backends, wait_until):
    """A backend that does not come back holds no server up for longer than it was told to wait."""
    gate()
    server = serve(backends, "--exit-timeout-secs=1")
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(answer, server, "gate") for _ in range(2)]
        wait_until(lambda: in_flight(server) == 2)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        # The client's error for a bare hang-up depends on its library.
        assert all(each.exception() is not None for each in asked)
    assert "Exit timeout expired with 2 requests in flight" in server.log
    assert "gate_0: did not finish within" in server.log


def test_requests_that_are_lost(serve, model, backends):
    """A client may wait no longer for a backend that never answers; others are answered, and the server ends."""
    model("forgets", None, MISUSE, parameter("MISUSE", "forget"))
    model("works", None, MISUSE)
    server = serve(backends, "--exit-timeout-secs=1")
    with closing(server.grpc()) as client:
        tensor = tritonclient.grpc.InferInput("INPUT0", [1], "INT32").set_data_from_numpy(INPUT["INPUT0"])
        for _ in range(3):
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                client.infer("forgets", [tensor], client_timeout=1)
    assert answer(server, "works") == [1]
    server.stop()
    assert "forgets_0: did not finish within" in server.log


def test_unload_of_a_model_that_lost_requests(serve, model, backends, wait_until):
    """A model that does not come to an end is given up in time: its name can be used again."""
    path = model("m", None, MISUSE, parameter("MISUSE", "forget")) / "config.pbtxt"
    server = serve(backends, EXPLICIT, "--load-model=m", "--exit-timeout-secs=1")
    with closing(server.grpc()) as client, closing(server.client()) as control:
        tensor = tritonclient.grpc.InferInput("INPUT0", [1], "INT32").set_data_from_numpy(INPUT["INPUT0"])
        answers = queue.SimpleQueue()
        call = client.async_infer("m", [tensor], lambda result, error: answers.put(error))
        wait_until(lambda: in_flight(server) == 1)
        call.cancel()
        assert "CANCELLED" in str(answers.get(timeout=LIMIT_S))
        control.unload_model("m")
        wait_until(lambda: "m_0: did not finish within" in server.log)
        path.write_text(MISUSE)
        control.load_model("m")
    assert answer(server, "m") == [1]


def test_a_crash_is_told(serve, model, backends):
    """A crash in a backend ends the server, whose log names the library and the function."""
    model("m", None, MISUSE + parameter("AT", "execute") + parameter("DO", "segfault"))
    server = serve(backends)
    with pytest.raises((OSError, HTTPConnectionClosed)):
        answer(server, "m")
    assert server.wait_exit() == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in server.log
    assert re.search(
        r'^  Binary file ".*/libtriton_misuse\.so", at TRITONBACKEND_ModelInstanceExecute\+0x', server.log, re.MULTILINE
    )


def test_a_backend_that_goes_elsewhere(serve, model, backends, tmp_path_factory):
    """A backend changes the folder of the server's process: relative paths of options keep their meaning."""
    here = tmp_path_factory.mktemp("here")
    model("m", None, MISUSE, parameter("AT", "model_initialize") + parameter("DO", "leave"))
    directory = Path(backends.partition("=")[2])
    (here / "backends").symlink_to(directory)
    (here / "models/later/1").mkdir(parents=True)
    (here / "models/later/config.pbtxt").write_text(IDENTITY)
    server = serve(
        "--model-repository=models",
        "--backend-directory=backends",
        "--trace-config=triton,file=traces.json",
        "--trace-config=rate=1",
        "--trace-config=level=TIMESTAMPS",
        EXPLICIT,
        "--load-model=m",
        wrapper=("env", "-C", str(here)),
    )
    assert os.readlink(f"/proc/{server.process.pid}/cwd") == "/"
    with closing(server.client()) as client:
        client.load_model("later")
        assert {row["name"] for row in client.get_model_repository_index()} == {"m", "later"}
    assert answer(server, "later") == [7]
    server.stop()
    assert (here / "traces.json").exists()


def test_a_process_that_a_backend_forks(serve, model, backends, wait_until):
    """A signal that ends it does not affect the server."""
    model("m", None, MISUSE, parameter("AT", "execute") + parameter("DO", "fork"))
    server = serve(backends)
    before = set(server.family())
    assert server.infer("m", {"INPUT0": np.array([7], np.int32)}).as_numpy("OUTPUT0").tolist() == [1]
    (child,) = set(server.family()) - before
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not child.is_alive())
    assert server.is_ready()
    assert "Signal (15) received" not in server.log


def stack(*words):
    """The output of `pyruntime stack ...`, whose status must be 0."""
    command = [sys.executable, "-m", "pyruntime", "stack", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_stacks(serve, model, gate, backends, wait_until):
    """`pyruntime stack` shows each instance with its place and its activity."""
    name = f"gate_of_the_test_{os.getpid()}"  # that no model of another server has
    held = gate(name, "instance_group { count: 2 kind: KIND_CPU }\n")
    model(f"{name}_other", None, IDENTITY)
    server = serve(backends)
    pid = server.process.pid
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(answer, server, name)
        wait_until(lambda: "gate: 1 requests" in server.log)
        shown = stack(name)
        held.open()
        assert asked.result() == [7]
    heads = [f"{name}_0_{number} of {name} version 1, process {pid}" for number in (0, 1)]
    assert [line for line in shown.splitlines() if " of gate" in line] == heads
    assert "gate_of_the_tes" in server.threads()
    thread = "Thread gate_of_the_tes of the server (native code): executes "
    lines = sorted(line for line in shown.splitlines() if line.startswith("Thread "))
    assert re.fullmatch(re.escape(thread) + r"a batch, which it was given \d+\.\d{3} s ago; 0 wait behind it", lines[0])
    assert lines[1] == thread + "nothing; 0 requests are not done with"
    for _ in range(2):
        assert stack(name, "--instance", f"{name}_0_1").splitlines() == [heads[1], "", lines[1], ""]
    with closing(server.client()) as client:
        assert client.is_server_live()


def test_stacks_of_what_is_gone(serve, model, backends, wait_until):
    """An instance that has ended is not found any more."""
    name = f"m_of_{os.getpid()}"
    model(name, None, IDENTITY)
    server = serve(backends, EXPLICIT, f"--load-model={name}")
    assert stack(name).startswith(f"{name}_0 of {name} ")
    with closing(server.client()) as client:
        client.unload_model(name)
        wait_until(lambda: all(row.get("reason") == "unloaded" for row in client.get_model_repository_index()))
    command = [sys.executable, "-m", "pyruntime", "stack", name]
    assert subprocess.run(command, capture_output=True, text=True).returncode == 1
