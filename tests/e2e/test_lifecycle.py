# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A server's life from its first line to its exit status: starting, counting, draining, leaving nothing behind."""

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from .harness.models import ECHO, GATED

INPUT = {"IN": np.array([1])}


@pytest.fixture
def slow(model):
    """A model with a gate at execute."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_execute")
    return folder


def started(server, folder, clients, wait_until):
    """A request that has come as far as the gate."""
    request = clients.submit(server.infer, "slow", INPUT)
    wait_until((folder / "at_gate").exists)
    return request


def test_drain(slow, serve, wait_until):
    """After SIGTERM a server takes no more requests, answers the one under way, finalizes and exits with 0."""
    server = serve()
    with ThreadPoolExecutor() as clients:
        request = started(server, slow, clients, wait_until)
        server.family()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not server.is_ready())
        answer = server.request("GET", "/v2/health/ready")
        assert (answer.status, json.loads(answer.body)) == (503, {"error": "Server exiting"})
        assert server.request("GET", "/v2/health/live").status == 200
        assert server.refusal("slow", INPUT) == (503, "Server exiting")
        assert not (slow / "finalized").exists()
        (slow / "gate_execute").write_text("")
        assert request.result().as_numpy("OUT").tolist() == [1]
    assert server.wait_exit() == 0
    assert (slow / "finalized").exists()
    assert "Waiting for 1 in-flight requests to complete." in server.log
    assert "All models are stopped, unloaded." in server.log


def test_exit_without_requests(slow, serve):
    """SIGTERM without a request under way ends the server, finalize included, although connections are open."""
    server = serve()
    with server.connect() as silent:
        server.stop()
        assert silent.recv(1) == b""
    assert (slow / "finalized").exists()


def test_interrupt(slow, serve):
    """SIGINT is as good as SIGTERM, and a terminal that sends it to stubs as well does no harm."""
    server = serve()
    for process in [*server.stubs(), server.process]:
        os.kill(process.pid, signal.SIGINT)
    assert server.wait_exit() == 0
    assert (slow / "finalized").exists()


def test_second_signal(slow, serve, wait_until):
    """A second SIGTERM ends the requests that the first one would have waited for."""
    server = serve()
    with ThreadPoolExecutor() as clients:
        request = started(server, slow, clients, wait_until)
        server.family()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Waiting for 1 in-flight" in server.log)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert "slow_0' is not healthy" in str(request.exception())
    assert "Signal (15) received again: stopping without waiting" in server.log


def test_exit_timeout(slow, serve, wait_until):
    """A request that outlasts --exit-timeout-secs is cut off."""
    server = serve("--exit-timeout-secs=0")
    with ThreadPoolExecutor() as clients:
        request = started(server, slow, clients, wait_until)
        server.family()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert request.exception() is not None
    assert "Exit timeout expired with 1 requests in flight; they are cut off" in server.log


def test_finalize_that_hangs(model, serve, wait_until):
    """A finalize that does not return is cut off too."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_finalize")
    server = serve("--exit-timeout-secs=0")
    server.stop()
    assert "slow_0: did not finish within" in server.log


def test_signal_while_loading(model, serve, wait_until):
    """A server that is told to stop while its models load stops."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_initialize")
    server = serve(ready=False)
    wait_until((folder / "at_gate").exists)
    assert server.request("GET", "/v2/health/live").status == 200
    assert server.request("GET", "/v2/health/ready").status == 400
    server.stop()


def test_models_that_are_ready_while_others_load(model, serve, wait_until):
    """A model serves as soon as it is loaded; the server is ready when all are."""
    folder = model("slow", GATED)
    model("quick", ECHO)
    os.mkfifo(folder / "gate_initialize")
    server = serve(ready=False)
    wait_until((folder / "at_gate").exists)
    wait_until(lambda: "successfully loaded 'quick'" in server.log)
    assert server.infer("quick", INPUT).as_numpy("OUT").tolist() == [1]
    assert not server.is_ready()
    (folder / "gate_initialize").write_text("")
    server.wait_ready()
    assert server.infer("slow", INPUT).as_numpy("OUT").tolist() == [1]


def test_port_in_use(model, serve):
    """A port that somebody else has ends the server with status 1 and one sentence."""
    model("quick", ECHO)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(ready=False, port=port)
        assert server.wait_exit() == 1
    assert f"HTTP cannot be served at 127.0.0.1:{port}: " in server.log
    assert "in use" in server.log
    assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--nobody=1", "--nobody"),
        ("--http-port=many", "--http-port"),
        ("--log-format=pretty", "--log-format must be one of default, ISO8601, json, not 'pretty'."),
    ],
)
def test_bad_option(serve, option, sentence):
    """A bad option ends the command with status 1 and one sentence."""
    server = serve(option, ready=False)
    assert server.wait_exit() == 1
    assert sentence in server.log
    assert "Traceback" not in server.log


def test_empty_repository(serve):
    """A server without models is ready, has none, and says in its log where a model would be."""
    server = serve()
    with closing(server.client()) as client:
        assert client.get_model_repository_index() == []
    assert "has no models; each folder in it is one, such as" in server.log


def statistics(server, model):
    """The statistics of a model with one version."""
    with closing(server.client()) as client:
        (stats,) = client.get_inference_statistics(model)["model_stats"]
    return stats


def test_statistics(model, serve):
    """Requests, rows, executions and failures are counted from the first one on."""
    model("counted", ECHO, more="max_batch_size: 4")
    server = serve()
    stats = statistics(server, "counted")
    assert (stats["name"], stats["version"]) == ("counted", "1")
    assert (stats["inference_count"], stats["execution_count"], stats["last_inference"]) == (0, 0, 0)
    assert stats["batch_stats"] == []
    for rows in (1, 3, 3):
        server.infer("counted", {"IN": np.zeros((rows, 2), dtype=np.int64)})
    server.refusal("counted", {"IN": np.zeros((5, 2), dtype=np.int64)})
    stats = statistics(server, "counted")
    assert (stats["inference_count"], stats["execution_count"]) == (7, 3)
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in stats["batch_stats"]] == [
        (1, 1),
        (3, 2),
    ]
    counts = {name: duration["count"] for name, duration in stats["inference_stats"].items()}
    assert counts == {
        "success": 3, "fail": 1, "queue": 3, "compute_input": 3, "compute_infer": 3, "compute_output": 3,
        "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    times = {name: duration["ns"] for name, duration in stats["inference_stats"].items()}
    assert all(times[name] > 0 for name in ("success", "fail", "compute_infer"))
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert sum(times[name] for name in parts) <= times["success"]
    assert stats["last_inference"] > 1_600_000_000_000


def test_signal_while_a_version_loads(model, serve, wait_until):
    """A version serves as soon as it is ready, and ends with the server although another one never got so far."""
    folder = model("slow", GATED, more="version_policy { all {} }")
    (folder / "2").mkdir()
    (folder / "2" / "model.py").write_text((folder / "1" / "model.py").read_text())
    os.mkfifo(folder / "gate_initialize")
    (folder / "1" / "model.py").write_text(ECHO)
    server = serve(ready=False)
    wait_until((folder / "at_gate").exists)
    wait_until(lambda: server.request("GET", "/v2/models/slow/versions/1/ready").status == 200)
    assert server.infer("slow", INPUT).as_numpy("OUT").tolist() == [1]
    assert not server.is_ready()
    server.stop()


@pytest.mark.parametrize("exit_on_error", ["true", "false"])
def test_one_instance_that_does_not_load(model, serve, wait_until, exit_on_error):
    """Where one instance fails to load the model fails, and those that did load are gone."""
    code = """
class TritonPythonModel:
    def initialize(self, args):
        if args["model_instance_name"].endswith("1"):
            raise ValueError("not me")
    def execute(self, requests):
        return []
"""
    model("half", code, more="instance_group { count: 2 }")
    server = serve(f"--exit-on-error={exit_on_error}", ready=False)
    wait_until(lambda: "failed to load 'half' version 1: Internal: ValueError: not me" in server.log)
    if exit_on_error == "true":
        assert server.wait_exit() == 1
    else:
        wait_until(lambda: server.stubs() == [])
        server.stop()
    assert "restarts in" not in server.log
