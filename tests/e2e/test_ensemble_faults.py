# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles of Python models and C++ backends: large tensors, clients that leave, and stubs that die, at every step."""

import os
import re
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as system_memory

from .harness.ensembles import ensemble, step
from .harness.models import parameters
from .harness.waiting import wait_until

LARGE = 4 << 20
TENSORS = (
    'input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
    'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
)
PYTHON = f'backend: "python"\n{TENSORS}'
# Adds 1. With an id that is its own name it waits, and says so, until it is cancelled or killed.
ADD = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.folder = os.path.dirname(args["model_repository"])

    def execute(self, requests):
        responses = []
        for request in requests:
            read = request.inputs()[0].as_numpy()
            if request.request_id() == self.name:
                with open(f"{self.folder}/.waiting_{self.name}", "w"):
                    pass
                while not request.is_cancelled():
                    time.sleep(0.001)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", read + 1)]))
        return responses
"""
STEPS = ("first", "second", "third")


def pipeline(*models):
    names = ["IN", *(f"t{n}" for n in range(1, len(models))), "OUT"]
    steps = [
        step(model, {"INPUT0": read}, {"OUTPUT0": written})
        for model, read, written in zip(models, names, names[1:], strict=False)
    ]
    return ensemble(*steps).replace("INT64", "INT32")


@pytest.fixture(scope="module")
def repository(tmp_path_factory, write_model, compile_library):
    folder = tmp_path_factory.mktemp("pipelines")
    for name in STEPS:
        write_model(folder, name, ADD, PYTHON)
    library = compile_library("identity.cc")
    for name, mode in (("native", "in_process"), ("isolated", "process")):
        made = write_model(folder, name, None, f'backend: "identity"\n{TENSORS}', parameters(EXECUTION_MODE=mode))
        shutil.copy(library, made / "libtriton_identity.so")
    write_model(folder, "pythons", None, pipeline(*STEPS))
    write_model(folder, "mixed", None, pipeline("first", "native", "second", "isolated", "third"))
    write_model(folder, "ends_native", None, pipeline("first", "native"))
    return folder


@pytest.fixture(scope="module")
def server(repository, serving):
    with serving(repository) as server:
        yield server


def values(count=1):
    return {"IN": np.arange(count, dtype=np.int32)}


def copied(server, name):
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    (found,) = re.findall(rf'pyruntime_ensemble_copied_bytes_total{{model="{name}",version="1"}} (\d+)', page)
    return int(found)


@pytest.mark.parametrize("name", ["pythons", "mixed", "ends_native"])
def test_large_tensors(server, name):
    """16 MiB go through all kinds of steps."""
    added = {"pythons": 3, "mixed": 3, "ends_native": 1}[name]
    result = server.infer(name, values(LARGE)).as_numpy("OUT")
    assert np.array_equal(result, values(LARGE)["IN"] + added)


@pytest.mark.parametrize("name", ["pythons", "ends_native"])
def test_no_copies(server, name):
    """Tensors go from step to step by reference; the last output of a C++ backend goes to the client as it is."""
    server.infer(name, values(LARGE))
    assert copied(server, name) == 0


def waiting_file(repository, name):
    return repository / f".waiting_{name}"


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("ensemble_name", ["pythons", "mixed"])
def test_client_leaves(server, repository, ensemble_name, name):
    """A request that is cancelled at any step ends there, and leaves nothing behind."""
    waiting_file(repository, name).unlink(missing_ok=True)
    with closing(server.grpc()) as client:
        given = tritonclient.grpc.InferInput("IN", [1000], "INT32")
        given.set_data_from_numpy(np.arange(1000, dtype=np.int32))
        call = client.async_infer(ensemble_name, [given], lambda result, error: None, request_id=name)
        wait_until(waiting_file(repository, name).exists)
        call.cancel()
        # The step would wait for ever if nobody told it.
        assert server.infer(ensemble_name, values()).as_numpy("OUT").tolist() == [3]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("ensemble_name", ["pythons", "mixed"])
def test_stub_dies(server, repository, ensemble_name, name):
    """The request fails with the step's error; the ensemble is ready again with the step, and works."""
    waiting_file(repository, name).unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as threads:
        refusal = threads.submit(server.refusal, ensemble_name, values(1000), request_id=name)
        wait_until(waiting_file(repository, name).exists)
        os.kill(server.stub(f"{name}_0").pid, signal.SIGKILL)
        status, message = refusal.result()
    assert status == 500
    assert message.startswith(f"in ensemble '{ensemble_name}', Stub process '{name}_0' is not healthy.")
    wait_until(lambda: server.request("GET", f"/v2/models/{ensemble_name}/ready").status == 200)
    assert server.infer(ensemble_name, values()).as_numpy("OUT").tolist() == [3]


def test_memory_stays_flat(server):
    """Shared memory is used again: a hundred requests need no more than the first ones."""
    arrays = values(1 << 18)

    def ask(count):
        with ThreadPoolExecutor(4) as threads:
            for result in threads.map(lambda _: server.infer("mixed", arrays), range(count)):
                assert result.as_numpy("OUT")[-1] == (1 << 18) + 2

    ask(40)
    before = server.shared_bytes()
    ask(100)
    assert server.shared_bytes() <= before * 1.25


class TestMemoryOfClients:
    @pytest.fixture
    def shared(self, repository, serving):
        """A server that takes shared memory of clients, a client of it, and a region of 8 numbers in and out."""
        with (
            serving(repository, "--allow-client-shm=true") as server,
            closing(server.client()) as client,
            closing_region("ensemble_region", 64) as region,
        ):
            client.register_system_shared_memory("region", "/ensemble_region", 64)
            yield client, region

    @pytest.mark.parametrize("name", ["pythons", "mixed", "ends_native"])
    def test_in_and_out(self, shared, name):
        """A step reads the client's memory where it is, and the last output is written there."""
        client, region = shared
        system_memory.set_shared_memory_region(region, [np.arange(8, dtype=np.int32)])
        given = tritonclient.http.InferInput("IN", [8], "INT32")
        given.set_shared_memory("region", 32)
        wanted = tritonclient.http.InferRequestedOutput("OUT")
        wanted.set_shared_memory("region", 32, 32)
        for _ in range(3):
            client.infer(name, [given], outputs=[wanted])
            result = system_memory.get_contents_as_numpy(region, np.int32, [8], 32)
            added = 1 if name == "ends_native" else 3
            assert result.tolist() == [each + added for each in range(8)]


@contextmanager
def closing_region(name, size):
    region = system_memory.create_shared_memory_region(name, f"/{name}", size)
    try:
        yield region
    finally:
        system_memory.destroy_shared_memory_region(region)


def test_a_step_is_replaced_under_load(serving, tmp_path, write_model):
    """Requests that have begun end with the models of their beginning; none fails while a step is loaded again."""
    for name in STEPS:
        write_model(tmp_path, name, ADD, PYTHON)
    write_model(tmp_path, "e", None, pipeline(*STEPS))
    with serving(tmp_path, "--model-control-mode=explicit", "--load-model=e") as server:
        stop = threading.Event()

        def ask():
            count = 0
            while not stop.is_set():
                assert server.infer("e", values()).as_numpy("OUT").tolist() == [3]
                count += 1
            return count

        with ThreadPoolExecutor(4) as threads, closing(server.client()) as client:
            asking = [threads.submit(ask) for _ in range(4)]
            try:
                for name in STEPS:
                    (tmp_path / name / "1" / "changed").touch()
                    client.load_model(name)
            finally:
                stop.set()
            assert all(each.result() for each in asking)


def test_responses_from_a_cache(serving, tmp_path, write_model):
    """An ensemble and its steps may have response caches."""
    cached = "response_cache { enable: true }\n"
    write_model(tmp_path, "first", ADD, PYTHON, cached)
    write_model(tmp_path, "second", ADD, PYTHON)
    write_model(tmp_path, "steps", None, pipeline("first", "second"))
    write_model(tmp_path, "whole", None, pipeline("first", "second"), cached)
    with serving(tmp_path, "--cache-config=local,size=10000000") as server, closing(server.client()) as client:
        for name, hits in (("steps", 0), ("steps", 0), ("whole", 0), ("whole", 1)):
            assert server.infer(name, values(3)).as_numpy("OUT").tolist() == [2, 3, 4]
            (found,) = client.get_inference_statistics(name)["model_stats"]
            assert found["inference_stats"]["cache_hit"]["count"] == hits
        (found,) = client.get_inference_statistics("first")["model_stats"]
        assert found["inference_stats"]["cache_hit"]["count"] == 2
