# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Stub processes that die in different ways: the effects on requests, other stubs and the next process."""

import json
import os
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

# The request's ID selects the action. From its second life on, initialize waits at the gate if there is one.
MORTAL = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.name = args["model_instance_name"]
        lives = self.folder + "/lives_" + self.name
        if os.path.exists(lives) and os.path.exists(self.folder + "/gate"):
            with open(self.folder + "/gate") as gate:
                gate.read()
        with open(lives, "a") as file:
            file.write("x")

    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            with open(self.folder + "/executed", "a") as executed:
                executed.write("".join(f"{each}\\n" for each in array))
            getattr(self, "do_" + request.request_id())()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * array)]))
        return responses

    def do_work(self):
        pass

    def do_segfault(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_abort(self):
        os.abort()

    def do_exit(self):
        os._exit(3)

    def do_wait(self):
        with open(self.folder + "/waiting_" + self.name, "w"):
            pass
        signal.pause()
"""
INPUT = {"IN": np.array([21])}
SIGKILL = "killed by SIGKILL (not by the server; it is unknown who sent it)"


def lost(instance, cause):
    """The message of a request whose stub died under it."""
    return f"Stub process '{instance}' is not healthy. It was lost while it ran this request: {cause}"


def works(server, name="mortal"):
    """Whether an ordinary request is answered as it should be."""
    return server.infer(name, INPUT, request_id="work").as_numpy("OUT").tolist() == [42]


def row_of(server, name="mortal"):
    """The model's row in the repository index."""
    with closing(server.client()) as client:
        return next(row for row in client.get_model_repository_index() if row["name"] == name)


def model_is_ready(server, name="mortal"):
    """The model's own readiness."""
    return server.request("GET", f"/v2/models/{name}/ready").status == 200


@pytest.mark.parametrize(
    ("act", "cause"),
    [("segfault", "killed by SIGSEGV"), ("abort", "killed by SIGABRT"), ("exit", "exited with code 3")],
)
def test_death_by_its_own_hand(model, deploy, act, cause):
    """The request that was running fails with the cause; the next one waits for the new stub and is answered."""
    model("mortal", MORTAL)
    server = deploy()
    old = server.stub("mortal_0")
    assert server.refusal("mortal", INPUT, request_id=act) == (500, lost("mortal_0", cause))
    assert works(server)
    assert not old.is_alive()
    assert server.stub("mortal_0") != old
    assert f"mortal_0: stub {cause}" in server.log
    assert "mortal_0: restarts in 0 s" in server.log


def test_trace_of_a_segfault_is_in_the_log(model, deploy, wait_until):
    """Where in the model a stub crashed is in the log."""
    model("mortal", MORTAL)
    server = deploy()
    server.refusal("mortal", INPUT, request_id="segfault")
    wait_until(lambda: "mortal_0: Fatal Python error: Segmentation fault" in server.log)
    wait_until(lambda: "in do_segfault" in server.log)


def test_killed_while_idle(model, deploy, wait_until):
    """A stub that is killed while it has nothing to do is started again, and no request notices."""
    model("mortal", MORTAL)
    server = deploy()
    old = server.stub("mortal_0")
    os.kill(old.pid, signal.SIGKILL)
    wait_until(lambda: server.stubs("mortal_0") and server.stubs("mortal_0") != [old])
    assert works(server)
    assert row_of(server)["state"] == "READY"


def test_killed_while_running(model, deploy, wait_until):
    """A stub that is killed while it runs a request fails that one at once, and no other."""
    folder = model("mortal", MORTAL)
    server = deploy()
    with ThreadPoolExecutor() as clients:
        running = clients.submit(server.refusal, "mortal", INPUT, request_id="wait")
        wait_until((folder / "waiting_mortal_0").exists)
        others = [clients.submit(works, server) for _ in range(3)]
        os.kill(server.stub("mortal_0").pid, signal.SIGKILL)
        assert running.result() == (500, lost("mortal_0", SIGKILL))
        assert all(other.result() for other in others)


def test_readiness_while_restarting(model, serve, wait_until):
    """While its only stub starts again a model is not ready, nor is the server; its requests wait, others' do not."""
    folder = model("mortal", MORTAL)
    model("other", MORTAL)
    server = serve()
    os.mkfifo(folder / "gate")
    os.kill(server.stub("mortal_0").pid, signal.SIGKILL)
    wait_until(lambda: not model_is_ready(server))
    assert not server.is_ready()
    assert server.request("GET", "/v2/models/mortal/ready").body == b'{"error":"Model version not ready"}'
    assert server.request("GET", "/v2/health/live").status == 200
    assert works(server, "other")
    assert model_is_ready(server, "other")
    with ThreadPoolExecutor() as clients:
        waiting = [clients.submit(works, server) for _ in range(3)]
        (folder / "gate").write_text("")
        assert all(each.result() for each in waiting)
    assert model_is_ready(server)
    assert server.is_ready()


def test_one_of_two_instances(model, deploy, wait_until):
    """Of two instances one dies and stays away; the model is ready and the other one serves."""
    folder = model("mortal", MORTAL, more="instance_group { count: 2 kind: KIND_CPU }")
    server = deploy()
    os.mkfifo(folder / "gate")
    names = ("mortal_0_0", "mortal_0_1")
    with ThreadPoolExecutor() as clients:
        running = clients.submit(server.refusal, "mortal", INPUT, request_id="wait")
        busy = wait_until(lambda: next((name for name in names if (folder / f"waiting_{name}").exists()), None))
        os.kill(server.stub(busy).pid, signal.SIGKILL)
        assert running.result() == (500, lost(busy, SIGKILL))
    for _ in range(5):
        assert works(server)
        assert model_is_ready(server)
    (folder / "gate").write_text("")
    wait_until(lambda: (folder / f"lives_{busy}").read_text() == "xx")
    assert works(server)


def test_given_up(model, serve, wait_until):
    """A stub that dies again and again is started again later; the index and the log say why, and others serve on."""
    model("mortal", MORTAL)
    model("other", MORTAL)
    server = serve()
    for _ in range(5):
        assert server.refusal("mortal", INPUT, request_id="exit") == (500, lost("mortal_0", "exited with code 3"))
    row = wait_until(lambda: row_of(server) if row_of(server)["state"] == "UNAVAILABLE" else None)
    assert row["reason"] == (
        "instance mortal_0 is down: its process died 5 times without being ready for 30 s in between, so it is "
        "started again after longer and longer waits; the last time: exited with code 3"
    )
    assert "longer waits; the last time: exited with code 3" in server.log
    assert server.stubs("mortal_0") == []
    assert not server.is_ready()
    assert not model_is_ready(server)
    expected = f"Model 'mortal' version 1 is not available: {row['reason']}"
    for version in ("", "1"):
        assert server.refusal("mortal", INPUT, model_version=version) == (503, expected)
    generated = server.request("POST", "/v2/models/mortal/generate", '{"IN": 21}')
    assert (generated.status, json.loads(generated.body)) == (503, {"error": expected})
    ready = server.request("GET", "/v2/models/mortal/ready")
    assert (ready.status, b"its process died 5 times" in ready.body) == (400, True)
    with closing(server.grpc()) as client:
        assert not client.is_model_ready("mortal")
        tensor = tritonclient.grpc.InferInput("IN", [1], "INT64").set_data_from_numpy(INPUT["IN"])
        with pytest.raises(InferenceServerException) as caught:
            client.infer("mortal", [tensor])
    assert (caught.value.status(), caught.value.message()) == ("StatusCode.UNAVAILABLE", expected)
    assert works(server, "other")


def test_given_up_with_requests_waiting(model, deploy, wait_until):
    """Requests that wait for a stub which is given up are answered, and told so."""
    folder = model("mortal", MORTAL)
    server = deploy()
    for _ in range(4):
        server.refusal("mortal", INPUT, request_id="exit")
    with ThreadPoolExecutor() as clients:
        running = clients.submit(server.refusal, "mortal", INPUT, request_id="wait")
        wait_until((folder / "waiting_mortal_0").exists)
        waiting = [clients.submit(server.refusal, "mortal", INPUT, request_id="work") for _ in range(5)]
        # All of them have come in by now, or will find the model gone.
        os.kill(server.stub("mortal_0").pid, signal.SIGKILL)
        assert running.result() == (500, lost("mortal_0", SIGKILL))
        for each in waiting:
            status, message = each.result()
            assert status == 503
            assert "its process died 5 times" in message


def test_broken_after_its_death(model, serve, wait_until):
    """A model whose code was broken meanwhile is down when its stub dies, for that reason, until it is mended."""
    folder = model("mortal", MORTAL)
    whole = (folder / "1" / "model.py").read_text()
    server = serve()
    (folder / "1" / "model.py").write_text("raise ValueError('broken meanwhile')\n")
    os.kill(server.stub("mortal_0").pid, signal.SIGKILL)
    row = wait_until(lambda: row_of(server) if row_of(server)["state"] == "UNAVAILABLE" else None)
    assert "it is started again after longer and longer waits; the last time: " in row["reason"]
    ready = server.request("GET", "/v2/models/mortal/ready")
    assert ready.status == 400
    assert b"Model version not ready: instance mortal_0 is down: its process died 5 times" in ready.body
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    for state, count in (("ready", 0), ("starting", 0), ("down", 1)):
        assert f'pyruntime_instances{{model="mortal",state="{state}",version="1"}} {count}' in text
    assert 'nv_inference_count{model="mortal",version="1"}' in text
    assert "mortal_0: could not be restarted: ValueError: broken meanwhile" in server.log
    (folder / "1" / "model.py").write_text(whole)
    wait_until(lambda: row_of(server)["state"] == "READY")
    assert works(server, "mortal")
    assert server.is_ready()
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert 'pyruntime_instances{model="mortal",state="ready",version="1"} 1' in text


def test_killed_under_load(model, deploy, wait_until):
    """Every request is answered once, rightly or with the cause of the death, and none is executed twice."""
    folder = model("mortal", MORTAL, more="instance_group { count: 2 kind: KIND_CPU }")
    server = deploy()
    clients, lock, enough = 4, threading.Lock(), threading.Event()
    results = {}

    def ask(first):
        number = first
        while not enough.is_set():
            try:
                answer = server.infer("mortal", {"IN": np.array([number])}, request_id="work").as_numpy("OUT").item()
            except Exception as failure:
                answer = str(failure)
            with lock:
                assert number not in results
                results[number] = answer
            number += clients

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, first) for first in range(clients)]
        try:
            for round_ in range(4):
                for instance in ("mortal_0_0", "mortal_0_1"):
                    seen = len(results)
                    wait_until(lambda seen=seen: len(results) > seen + 50)
                    os.kill(server.stub(instance).pid, signal.SIGKILL)
                    lives = folder / f"lives_{instance}"
                    wait_until(lambda lives=lives, count=round_ + 2: lives.stat().st_size == count)
        finally:
            enough.set()
        for each in asking:
            each.result()

    failures = {number: answer for number, answer in results.items() if answer != 2 * number}
    assert {*failures.values()} <= {f"[500] {lost(name, SIGKILL)}" for name in ("mortal_0_0", "mortal_0_1")}
    assert len(failures) <= 8  # a death fails what its stub was running, and nothing else
    executed = Counter(map(int, (folder / "executed").read_text().split()))
    assert {number for number, times in executed.items() if times > 1} == set()
    assert {number for number in results if number not in failures} <= executed.keys()
    assert all(works(server) for _ in range(20))


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_killed_server(model, serve, wait_until, busy):
    """When the server itself is killed its stubs end by themselves, also one that executes a request for ever."""
    folder = model("mortal", MORTAL)
    server = serve()
    with ThreadPoolExecutor() as clients:
        if busy:
            request = clients.submit(server.infer, "mortal", INPUT, request_id="wait")
            wait_until((folder / "waiting_mortal_0").exists)
        assert server.stub("mortal_0").is_alive()
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.wait_exit() == -signal.SIGKILL
        assert not busy or request.exception() is not None


def test_death_and_request_at_once(model, serve, wait_until):
    """A request that comes in while its stub dies waits for the next stub, whichever the server sees first."""
    model("mortal", MORTAL)
    server = serve()
    for _ in range(4):
        old = server.stub("mortal_0")
        with ThreadPoolExecutor() as clients:
            # The server sees all events at once that happen while it is stopped.
            server.process.send_signal(signal.SIGSTOP)
            requests = [clients.submit(works, server) for _ in range(4)]
            os.kill(old.pid, signal.SIGKILL)
            wait_until(lambda old=old: not old.is_alive())
            server.process.send_signal(signal.SIGCONT)
            assert all(request.result() for request in requests)


def test_death_and_end_at_once(model, serve, wait_until):
    """A server that is stopped while a stub dies stops, without a failure in the restart."""
    model("mortal", MORTAL)
    server = serve()
    stub = server.stub("mortal_0")
    server.process.send_signal(signal.SIGSTOP)
    os.kill(stub.pid, signal.SIGKILL)
    wait_until(lambda: not stub.is_alive())
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGCONT)
    assert server.wait_exit() == 0, server.log


def test_end_while_restarting(model, serve, wait_until):
    """A server that is stopped while a stub initializes its model again stops."""
    folder = model("mortal", MORTAL)
    server = serve()
    os.mkfifo(folder / "gate")
    os.kill(server.stub("mortal_0").pid, signal.SIGKILL)
    wait_until(lambda: not model_is_ready(server))
    wait_until(lambda: server.stubs("mortal_0"))
    server.stop()
