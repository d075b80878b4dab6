# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline of Python models and a C++ backend under load: large tensors, clients that leave, stubs that are killed.

ENSEMBLE_LOAD_S in the environment says for how long, in seconds; some minutes show what some seconds cannot.
"""

import os
import shutil
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from itertools import count, cycle

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from .harness.ensembles import ensemble, step
from .harness.waiting import LIMIT_S, wait_until

SECONDS = float(os.environ.get("ENSEMBLE_LOAD_S", "6"))
# An instance that dies five times without 30 s between is given up: in a long run each has more between its deaths.
KILL_EVERY_S = SECONDS / 4 if SECONDS < 60 else 13.0
LARGE, SMALL = 4 << 20, 1000
# So many large requests are answered at least.
LARGE_MIN = 3
# What the host may have more at the end than before, for itself, in bytes, and in descriptors. The blocks of outputs of
# a backend are kept for the next ones, as many as were ever in use, and more clients may meet in it than before.
OWN_GROWTH_MAX = 6 * 4 * LARGE
DESCRIPTORS_GROWTH_MAX = 8

TENSORS = (
    'input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
    'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
)
# Adds 1. With an id that begins with its own name it says that it waits, and waits until it is cancelled.
ADD = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.folder = os.path.dirname(args["model_repository"])

    def execute(self, requests):
        responses = []
        for request in requests:
            if request.request_id().startswith(self.name):
                with open(f"{self.folder}/.{request.request_id()}", "w"):
                    pass
                while not request.is_cancelled():
                    time.sleep(0.001)
            array = request.inputs()[0].as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]))
        return responses
"""
STEPS = ("first", "second", "third")
STEP_DIED = "in ensemble 'e', Stub process '"


@pytest.fixture
def server(serve, write_model, tmp_path, compile_library):
    for name in STEPS:
        write_model(tmp_path, name, ADD, f'backend: "python"\n{TENSORS}')
    folder = write_model(tmp_path, "native", None, f'backend: "identity"\n{TENSORS}')
    shutil.copy(compile_library("identity.cc"), folder / "libtriton_identity.so")
    models, tensors = ("first", "native", "second", "third"), ("IN", "t1", "t2", "t3", "OUT")
    steps = [
        step(model, {"INPUT0": read}, {"OUTPUT0": written})
        for model, read, written in zip(models, tensors, tensors[1:], strict=False)
    ]
    write_model(tmp_path, "e", None, ensemble(*steps).replace("INT64", "INT32"))
    return serve()


class Load:
    """The clients of a server, until `stop`. `ends` counts how their requests ended."""

    def __init__(self, server, folder):
        self.server = server
        self.folder = folder
        self.stop = threading.Event()
        self.ends = Counter()
        self.answered = Counter()  # by size
        self.requests = count(1)
        self.sent = 0
        self._lock = threading.Lock()
        self._threads = []

    def run(self, seconds, kills):
        """Clients of all kinds for some time, and stubs that die meanwhile."""
        self.stop.clear()
        works = [lambda: self.ask(LARGE), lambda: self.ask(SMALL), lambda: self.ask(SMALL), self.leave]
        self._threads = [threading.Thread(target=work) for work in [*works, *([self.kill] if kills else [])]]
        for thread in self._threads:
            thread.start()
        self.stop.wait(seconds)
        # Memory grows with the first large ones, which a busy machine may not answer in that time.
        wait_until(lambda begun=self.answered[LARGE]: self.answered[LARGE] >= begun + LARGE_MIN)
        self.stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a request is not answered"

    def ended(self, how):
        with self._lock:
            self.sent += 1
            self.ends[how] += 1

    def ask(self, size):
        """Ask, again and again: the answer is right, or says that a stub died."""
        array = np.arange(size, dtype=np.int32)
        while not self.stop.is_set():
            try:
                result = self.server.infer("e", {"IN": array}).as_numpy("OUT")
            except InferenceServerException as exc:
                is_meant = exc.status() == "500" and exc.message().startswith(STEP_DIED)
                self.ended("failed" if is_meant else repr(exc))
            else:
                self.ended("answered" if np.array_equal(result, array + 3) else "wrong")
                self.answered[size] += 1

    def leave(self):
        """Cancel a request while a step executes it; each step in its turn."""
        given = tritonclient.grpc.InferInput("IN", [SMALL], "INT32")
        given.set_data_from_numpy(np.arange(SMALL, dtype=np.int32))
        for name in cycle(STEPS):
            if self.stop.is_set():
                return
            id = f"{name}-{next(self.requests)}"
            waits, ended, errors = self.folder / f".{id}", threading.Event(), []

            def end(result, error, errors=errors, ended=ended):
                errors.append(error)
                ended.set()

            with closing(self.server.grpc()) as client:
                call = client.async_infer("e", [given], end, request_id=id)
                wait_until(lambda waits=waits, ended=ended: waits.exists() or ended.is_set())
                call.cancel()
                assert ended.wait(LIMIT_S)
            waits.unlink(missing_ok=True)
            is_meant = errors[0] is not None and (
                errors[0].status() == "StatusCode.CANCELLED" or errors[0].message().startswith(STEP_DIED)
            )
            self.ended("left" if is_meant else repr(errors[0]))

    def kill(self):
        """Kill the stub of each step in its turn, each once at least."""
        for name in cycle(STEPS):
            if self.stop.wait(KILL_EVERY_S) and self.ends["killed"] >= len(STEPS):
                return
            for stub in self.server.stubs(f"{name}_0"):
                os.kill(stub.pid, signal.SIGKILL)
                self.ends["killed"] += 1


def statistics(server):
    """How many requests to the ensemble have ended, by the server's count."""
    with closing(server.client()) as client:
        (found,) = client.get_inference_statistics("e")["model_stats"]
    return sum(found["inference_stats"][how]["count"] for how in ("success", "fail"))


def own_bytes(server):
    """The memory that the host has for itself."""
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) << 10


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_load(server, tmp_path):
    """Every request is answered, or refused with the right error, and counted once; memory is as it was."""
    load = Load(server, tmp_path)
    load.run(SECONDS / 3, kills=False)
    wait_until(lambda: statistics(server) == load.sent)
    shared, own, open_ones = server.shared_bytes(), own_bytes(server), descriptors(server)
    begun = time.monotonic()
    load.run(SECONDS, kills=True)
    print(f"{load.sent} requests, the last in {time.monotonic() - begun:.0f} s: {dict(load.ends)}")
    assert load.ends.keys() - {"failed"} == {"answered", "left", "killed"}
    assert load.ends["killed"] >= len(STEPS)
    wait_until(lambda: statistics(server) == load.sent)
    wait_until(lambda: server.request("GET", "/v2/models/e/ready").status == 200)
    assert np.array_equal(server.infer("e", {"IN": np.arange(3, dtype=np.int32)}).as_numpy("OUT"), [3, 4, 5])
    print(f"shared {shared >> 20} > {server.shared_bytes() >> 20} MiB, own {own >> 20} > {own_bytes(server) >> 20} MiB")
    assert server.shared_bytes() <= shared * 1.25
    assert own_bytes(server) <= own + OWN_GROWTH_MAX
    assert descriptors(server) <= open_ones + DESCRIPTORS_GROWTH_MAX
