# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries that say which requests are executed together: see tests/native/strategy.cc.

The oldest request waits for as long as a batch may still grow, which is longer than the test lasts.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.http import InferInput
from tritonclient.utils import InferenceServerException

from .harness.models import parameters

CONFIG = """
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group { kind: KIND_CPU count: 1 }
"""
# A question that the thread would have to answer itself, and never could.
ASKED = "the server cannot be asked by the thread that answers for it"
DYNAMIC = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 600000000 }\n"


@pytest.fixture(scope="module")
def backends(install_backends):
    """The folder of the backend."""
    return install_backends("identity")


@pytest.fixture
def server(serve, backends, tmp_path, monkeypatch):
    """`server(*options)`: a server whose strategies log their calls."""
    log = tmp_path / ".strategies"
    log.touch()
    monkeypatch.setenv("STRATEGY_LOG", str(log))

    def start(*options, **how):
        server = serve(f"--backend-directory={backends}", *options, **how)
        server.strategy_log = log
        return server

    return start


@pytest.fixture
def model(write_model, tmp_path, compile_library):
    """`model(**parameters)`: a model, and the library as its parameters say."""

    def model(more=DYNAMIC, **values):
        return write_model(tmp_path, "m", None, CONFIG + more, parameters(**values))

    return model


@pytest.fixture
def strategy(compile_library):
    """The library."""
    return compile_library("strategy.cc")


def told(server):
    return server.strategy_log.read_text().splitlines()


@pytest.fixture
def check_batches(wait_until):
    """`check_batches(server, {size: count})`: batches of these sizes were executed, as soon as they are counted."""

    def check_batches(server, sizes):
        wait_until(lambda: batches(server) == sizes)

    return check_batches


@pytest.fixture
def send(wait_until):
    """`send(server, a=1, ...)`: send requests of these ids and numbers, each as soon as the strategy was asked before.

    The numbers that come back, by id.
    """

    def send(server, **numbers):
        with ThreadPoolExecutor(len(numbers)) as threads:
            answers = {}
            for name, number in numbers.items():
                arrays = {"INPUT0": np.array([[number]], np.int32)}
                answers[name] = threads.submit(server.infer, "m", arrays, request_id=name)
                wait_until(lambda name=name: any(f"include {name} " in line for line in told(server)))
            return {name: int(answer.result().as_numpy("OUTPUT0")[0, 0]) for name, answer in answers.items()}

    return send


def batches(server):
    """How many batches of which size were executed."""
    with closing(server.client()) as client:
        (stats,) = client.get_inference_statistics("m")["model_stats"]
    return {row["batch_size"]: row["compute_infer"]["count"] for row in stats["batch_stats"]}


def test_it_closes_a_batch(server, model, strategy, send, check_batches):
    """A batch is executed when the strategy does not want the next request in it, which begins another one."""
    model(LIMIT=6, TRITON_BATCH_STRATEGY_PATH=strategy)
    server = server()
    numbers = {"a": 3, "b": 3, "c": 3, "d": 1, "e": 1, "f": 1}
    assert send(server, **numbers) == numbers
    check_batches(server, {2: 1, 4: 1})
    server.stop()
    first = ["begin", "include a yes", "include b yes", "include c no", "end"]
    second = ["begin", "include c yes", "include d yes", "include e yes", "include f yes", "end"]
    assert told(server) == ["initialize", *first, *second, "finalize"]


def test_a_request_that_it_never_wants(server, model, strategy, send, check_batches):
    """It begins a batch all the same. Triton asks for ever, and answers no request any more."""
    model(LIMIT=6, TRITON_BATCH_STRATEGY_PATH=strategy)
    server = server()
    numbers = {"a": 9, "b": 9, "c": 6, "d": 0, "e": 0}
    assert send(server, **numbers) == numbers
    check_batches(server, {1: 1, 4: 1})


@pytest.mark.parametrize("place", ["version", "model", "backend"])
def test_where_it_is_found(server, model, strategy, send, check_batches, place, backends, tmp_path_factory):
    """By its name in the folder of the version, of the model, or of the backend."""
    folder = model(LIMIT=1)
    options = []
    if place == "backend":
        copy = tmp_path_factory.mktemp("copy")
        shutil.copytree(backends, copy, dirs_exist_ok=True)
        options = [f"--backend-directory={copy}"]
    places = {"version": folder / "1", "model": folder, "backend": copy / "identity" if options else None}
    shutil.copy(strategy, places[place] / "batchstrategy.so")
    server = server(*options)
    numbers = {"a": 1, "b": 1, "c": 0, "d": 0, "e": 0}
    assert send(server, **numbers) == numbers
    check_batches(server, {1: 1, 4: 1})


def test_parameters_and_memory_of_clients(server, model, strategy, wait_until):
    """It sees all that the backend will see, wherever that lies."""
    model(LIMIT=6, TRITON_BATCH_STRATEGY_PATH=strategy)
    server = server("--allow-client-shm=true")
    key = f"/pyruntime_e2e_{uuid4().hex}"
    region = shm.create_shared_memory_region("numbers", key, 4)
    try:
        shm.set_shared_memory_region(region, [np.array([[5]], np.int32)])
        with closing(server.client(concurrency=2)) as client:
            client.register_system_shared_memory("numbers", key, 4)
            tensor = InferInput("INPUT0", [1, 1], "INT32")
            tensor.set_shared_memory("numbers", 4)
            first = client.async_infer("m", [tensor], request_id="a", parameters={"more": 1})
            wait_until(lambda: "include a yes+" in told(server))
            second = InferInput("INPUT0", [3, 1], "INT32").set_data_from_numpy(np.array([[2], [0], [0]], np.int32))
            last = client.async_infer("m", [second], request_id="b")
            assert first.get_result().as_numpy("OUTPUT0").tolist() == [[5]]
            wait_until(lambda: "include b yes" in told(server))
            third = InferInput("INPUT0", [1, 1], "INT32").set_data_from_numpy(np.array([[0]], np.int32))
            client.infer("m", [third], request_id="c")
            assert last.get_result().as_numpy("OUTPUT0").tolist() == [[2], [0], [0]]
            client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(region)
    assert "include b no" in told(server)


@pytest.mark.parametrize(
    ("fault", "asked", "logged", "sizes"),
    [
        ({"FAIL": "begin"}, False, "initialization function failed for model m: no begin", {4: 1}),
        ({"FAIL": "end"}, True, "finalization function failed for model m: no end", {4: 1}),
        ({"FAIL": "include"}, True, "include function failed for model m: no include", {1: 4}),
        (
            {"THROW": "include"},
            True,
            "include function failed for model m: TRITONBACKEND_ModelBatchIncludeRequest threw an exception",
            {1: 4},
        ),
        ({"ASK": "begin"}, False, f"initialization function failed for model m: {ASKED}", {4: 1}),
        ({"ASK": "end"}, True, f"finalization function failed for model m: {ASKED}", {4: 1}),
        ({"ASK": "include"}, True, f"include function failed for model m: {ASKED}", {1: 4}),
    ],
)
def test_a_strategy_that_fails(server, model, strategy, check_batches, fault, asked, logged, sizes):
    """The log has it; a batch that it does not begin is formed without it, and a failure to answer is a no."""
    model(DYNAMIC.replace("600000000", "1"), LIMIT=100, TRITON_BATCH_STRATEGY_PATH=strategy, **fault)
    server = server()
    with ThreadPoolExecutor(4) as threads:
        arrays = [{"INPUT0": np.array([[number]], np.int32)} for number in range(4)]
        answers = list(threads.map(lambda array: server.infer("m", array, request_id="x"), arrays))
    assert [int(answer.as_numpy("OUTPUT0")[0, 0]) for answer in answers] == [0, 1, 2, 3]
    assert f"Custom batching {logged}" in server.log
    assert any("include" in line for line in told(server)) is asked
    if sizes == {1: 4}:
        check_batches(server, sizes)


def test_a_strategy_that_cannot_begin(server, model, strategy):
    """The model does not load, for its reason."""
    model(LIMIT=1, TRITON_BATCH_STRATEGY_PATH=strategy, FAIL="initialize")
    server = server("--model-control-mode=explicit")
    with closing(server.client()) as client, pytest.raises(InferenceServerException, match="no initialize"):
        client.load_model("m")
    assert told(server) == ["initialize"]


def test_no_such_library(server, model):
    """The message has the path."""
    model(LIMIT=1, TRITON_BATCH_STRATEGY_PATH="/nowhere/strategy.so")
    server = server("--model-control-mode=explicit")
    expected = "Batching library path not found: /nowhere/strategy.so"
    with closing(server.client()) as client, pytest.raises(InferenceServerException, match=expected):
        client.load_model("m")


def test_a_library_that_lacks_functions(server, model, compile_library):
    """All five of them are needed."""
    path = compile_library("strategy.cc", "-DTRITONBACKEND_ModelBatchFinalize=Other")
    model(LIMIT=1, TRITON_BATCH_STRATEGY_PATH=path)
    server = server("--model-control-mode=explicit")
    expected = f"{path} does not define all required custom batching functions for model m"
    with closing(server.client()) as client, pytest.raises(InferenceServerException, match=expected):
        client.load_model("m")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("sequence_batching {}\n", "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher"),
        ("", "model 'm' has a TRITON_BATCH_STRATEGY_PATH but no dynamic_batching: nothing is batched"),
    ],
)
def test_without_dynamic_batching(server, model, strategy, more, expected):
    """It is not loaded, and the log says so."""
    model(more, LIMIT=1, TRITON_BATCH_STRATEGY_PATH=strategy)
    server = server()
    assert expected in server.log
    assert told(server) == []
