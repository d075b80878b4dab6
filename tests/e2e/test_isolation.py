# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native backends in processes of their own: the same behaviour as in the server's process, and the differences."""

import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils.shared_memory as system_memory

from .harness.models import parameters

BACKENDS = ["identity", "repeat", "calls", "metrics", "misuse", "lifecycle", "requests", "server_steps", "states"]
ISOLATED = 'parameters { key: "EXECUTION_MODE" value { string_value: "process" } }\n'
NUMBERS = {
    "BOOL": bool,
    **{f"{kind}{bits}": f"{kind.lower()}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": ml_dtypes.bfloat16,
}
DATATYPES = [*NUMBERS, "STRING"]
REPEAT = (Path(__file__).parent.parent / "native/repeat.pbtxt").read_text()
MISUSE = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
STEPS = """
input [ { name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
IN_OUT = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ] output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
# A state that begins with 7, and whether the backend changes it in place.
STATE = """
sequence_batching { max_sequence_idle_microseconds: 60000000 state [ {
  input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: -1
  initial_state { data_type: TYPE_INT32 dims: 1 data_file: "seven" name: "first" }
  use_same_buffer_for_input_output: %s
} ] }
"""
# Adds 100 in Python.
HUNDRED = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", request.inputs()[0].as_numpy() + 100)])
            for request in requests
        ]
"""
LEVELS = "max_batch_size: 4 dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
# A library that a model wants before its backend's: each has the same symbol.
PRELOADED = "int number_of_preload(void) { return NUMBER; }\n"
# The traces of a crash.
NATIVE_STACK = re.escape("Current thread's C stack trace (most recent call first):")
IN_BACKEND = r'  Binary file ".*/libtriton_misuse\.so", at TRITONBACKEND_ModelInstanceExecute\+0x'
ONE = {"INPUT0": np.array([7], np.int32)}
SOME = {"INPUT": np.arange(3, dtype=np.int32)}


def tensors(datatype, dims="-1"):
    """One tensor in, one out."""
    tensor = f"data_type: TYPE_{datatype} dims: [ {dims} ]"
    return f'input [ {{ name: "INPUT" {tensor} }} ]\noutput [ {{ name: "OUTPUT" {tensor} }} ]\n'


def repeated(count, delay_ms=0):
    """The inputs of a request that has so many responses, as JSON."""
    return {"IN": list(range(10, 10 + count)), "DELAY": [delay_ms] * count, "WAIT": [0]}


@pytest.fixture(scope="session")
def backends(install_backends):
    """The option that says where the backends are."""
    return f"--backend-directory={install_backends(*BACKENDS)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, backends):
    """A server of many models, each in a process of its own."""
    repository = tmp_path_factory.mktemp("isolated")

    def write(name, backend, config, more=""):
        write_model(repository, name, None, f'backend: "{backend}"\n{ISOLATED}{config}{more}')

    for datatype in DATATYPES:
        write(f"identity_{datatype}", "identity", tensors(datatype), "max_batch_size: 8 dynamic_batching { }")
    write("identity", "identity", tensors("INT32"))
    write("repeat", "repeat", REPEAT)
    write("calls", "calls", tensors("INT32"), parameters(MODEL="identity"))
    write("calls_repeat", "calls", REPEAT, parameters(MODEL="repeat"))
    write("steps", "server_steps", STEPS)
    write("failing", "misuse", MISUSE, parameters(AT="execute", DO="error"))
    write("throwing", "misuse", MISUSE, parameters(AT="execute", DO="throw_exception"))
    for name, in_place in (("replaced", "false"), ("changed", "true")):
        write(name, "states", MISUSE.replace("PUT0", ""), STATE % in_place)
        (repository / name / "initial_state").mkdir()
        (repository / name / "initial_state/seven").write_bytes(b"\7\0\0\0")
    write_model(repository, "python", HUNDRED, 'backend: "python"\n' + tensors("INT32"))
    write_model(repository, "levels", HUNDRED, 'backend: "python"\n' + tensors("FP32"), LEVELS)
    with serving(repository, backends, "--allow-client-shm=true") as server:
        yield server


class TestRequests:
    @pytest.mark.parametrize("datatype", DATATYPES)
    def test_identity(self, server, datatype):
        """Tensors of every type arrive and leave as they are, by HTTP and by gRPC."""
        texts = [b"", b"\0\xff", b"x" * 100_000]
        array = np.array([texts], object) if datatype == "STRING" else np.array([[0, 1, 1]]).astype(NUMBERS[datatype])
        tensor = tritonclient.grpc.InferInput("INPUT", array.shape, datatype.replace("STRING", "BYTES"))
        tensor.set_data_from_numpy(array)
        with closing(server.grpc()) as client:
            other = client.infer(f"identity_{datatype}", [tensor])
        for result in (server.infer(f"identity_{datatype}", {"INPUT": array}), other):
            assert np.array_equal(result.as_numpy("OUTPUT"), array)

    @pytest.mark.parametrize("size", [0, 1, 1 << 22])
    def test_sizes(self, server, size):
        """From nothing to more than any buffer on the way."""
        array = np.arange(size, dtype=np.int32)
        assert np.array_equal(server.infer("identity", {"INPUT": array}).as_numpy("OUTPUT"), array)

    def test_parameters(self, server):
        """Parameters arrive and leave, with their types."""
        given = {"text": "\u00e4", "number": -(1 << 40), "truth": False}
        assert server.infer("identity", SOME, parameters=given).get_response()["parameters"] == given

    def test_client_memory(self, server):
        """Inputs are read where the client has them, and outputs written to where it wants them."""
        array = np.arange(1000, dtype=np.int32)
        name = f"isolated_{server.port}"
        region = system_memory.create_shared_memory_region(name, f"/{name}", 2 * array.nbytes)
        try:
            system_memory.set_shared_memory_region(region, [array])
            with closing(server.grpc()) as client:
                client.register_system_shared_memory(name, f"/{name}", 2 * array.nbytes)
                given = tritonclient.grpc.InferInput("INPUT", [1000], "INT32")
                given.set_shared_memory(name, array.nbytes)
                wanted = tritonclient.grpc.InferRequestedOutput("OUTPUT")
                wanted.set_shared_memory(name, array.nbytes, array.nbytes)
                client.infer("identity", [given], outputs=[wanted])
                client.unregister_system_shared_memory(name)
            found = system_memory.get_contents_as_numpy(region, np.int32, [1000], offset=array.nbytes)
            assert np.array_equal(found, array)
        finally:
            system_memory.destroy_shared_memory_region(region)

    def test_errors(self, server):
        """An error that a backend returns is the answer, with its code, and so is an exception that it throws."""
        assert server.refusal("failing", ONE) == (503, "failed at execute")
        assert server.refusal("throwing", ONE) == (
            500,
            "TRITONBACKEND_ModelInstanceExecute threw an exception: thrown at execute",
        )

    def test_many_at_once(self, server):
        """Requests of many clients, each of which gets its own response."""

        def ask(number):
            array = np.full((1, 4), number, np.int32)
            return np.array_equal(server.infer("identity_INT32", {"INPUT": array}).as_numpy("OUTPUT"), array)

        with ThreadPoolExecutor(16) as clients:
            assert all(clients.map(ask, range(200)))


class TestDecoupled:
    @pytest.mark.parametrize("model", ["repeat", "calls_repeat"])
    @pytest.mark.parametrize("count", [0, 1, 200])
    def test_repeat(self, server, model, count):
        """Responses come one by one, in order, whether the client asks the model or a model that asks it."""
        events = server.stream(model, **repeated(count))
        assert [(event["OUT"], event["IDX"]) for event in events] == [(10 + index, index) for index in range(count)]

    def test_the_client_goes_away(self, server, wait_until):
        """A backend sees the cancellation of its request."""
        with server.streaming("repeat", **repeated(100_000, 1)) as events:
            assert next(events)["OUT"] == 10
        wait_until(lambda: "repeat: cancelled before response" in server.log)


class TestStates:
    def steps(self, server, model, *actions):
        """The states that the requests of a sequence read. Other sequences run at the same time."""
        inputs = {"IN": np.zeros(1, np.int32)}

        def sequence(number):
            return [
                server.infer(
                    model,
                    inputs,
                    request_id=action,
                    sequence_id=number,
                    sequence_start=index == 0,
                    sequence_end=index == len(actions) - 1,
                ).get_response()["parameters"]["contents"]
                for index, action in enumerate(actions)
            ]

        with ThreadPoolExecutor(3) as clients:
            first, *others = clients.map(sequence, range(1, 4))
        assert others == [first, first]
        return first

    def test_replaced(self, server):
        """A state is read by the next request of its sequence, also if it is updated after the response."""
        read = self.steps(server, "replaced", "read", "grow", "read", "after", "read")
        assert read == ["07000000", "07000000", "07" * 8, "07" * 8, "07" * 16]

    def test_changed_in_place(self, server):
        """What is in the memory of the input is the state, with or without an update."""
        read = self.steps(server, "changed", "add", "touch", "late", "read")
        assert read == [f"{first:02}000000" for first in (7, 8, 9)] + ["0a000000"]

    def test_another_size(self, server):
        """A state that is changed in place has the size that it began with."""
        inputs, flags = {"IN": np.zeros(1, np.int32)}, {"sequence_start": True, "sequence_end": True}
        status, message = server.refusal("changed", inputs, request_id="grow", sequence_id=9, **flags)
        assert (status, "changes it in place" in message) == (500, True)


class TestCalls:
    def test_calls(self, server):
        """A native model calls one in another process, and one in Python."""
        assert server.infer("calls", SOME).as_numpy("OUTPUT").tolist() == [0, 1, 2]
        found = server.infer("calls", SOME, parameters={"model": "python"})
        assert found.as_numpy("OUTPUT").tolist() == [100, 101, 102]

    def test_large(self, server):
        """The inputs and outputs of a call may be larger than a message."""
        array = np.arange(1 << 20, dtype=np.int32)
        found = server.infer("calls", {"INPUT": array}, parameters={"model": "python"})
        assert np.array_equal(found.as_numpy("OUTPUT"), array + 100)

    def test_failures(self, server):
        """The caller gets the same error as a client of the called model."""
        assert server.refusal("calls", SOME, parameters={"model": "none"}) == (503, "model 'none' is not ready")
        assert server.refusal("calls", SOME, parameters={"model": "repeat"})[1] == "model 'repeat' is decoupled"
        status, message = server.refusal("calls", SOME, parameters={"model": "failing"})
        assert (status, "unexpected inference output 'OUTPUT' for model 'failing'" in message) == (400, True)

    def test_priority(self, server):
        """A call has the level in the queue that the backend gives it."""
        steps = ("new levels -1", "priority 3", "input INPUT 1 1", "data INPUT 5", "callbacks", "infer")
        command = {"COMMAND": np.array(["\n".join(steps)], object)}
        assert "output OUTPUT FP32 [1,1] 105" in server.infer("steps", command).as_numpy("RESULT")[0].decode()
        page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
        counts = [f'dequeued_requests_total{{level="{level}",model="levels",version="1"}}' for level in (1, 2, 3)]
        assert [page.partition(count)[2].split()[0] for count in counts] == ["0", "0", "1"]

    def test_itself(self, server):
        """A model that calls itself and has one instance gets an error instead of waiting for ever."""
        assert "wait" in server.refusal("calls", SOME, parameters={"model": "calls"})[1]

    def test_questions(self, server):
        """The server answers a backend as it does in its own process."""
        answers = {
            "live": "true",
            "ready": "true",
            "model_ready python -1": "true",
            "model_ready none -1": "false",
            "batch identity_INT8 -1": "2",
            "transaction repeat -1": "2",
            "transaction none -1": "Not found: Request for unknown model: 'none' is not found",
            "load python": "Unavailable: explicit model load / unload is not allowed if polling is enabled",
        }
        script = "\n".join(answers).encode()
        found = server.infer("steps", {"COMMAND": np.array([script], object)}).as_numpy("RESULT")[0].decode()
        assert found.splitlines() == [f"{step.split()[0]}: {answer}" for step, answer in answers.items()]


def faulty(model, name, **values):
    """A model of misuse.cc that does what its parameters say."""
    return model(name, None, f'backend: "misuse"\n{ISOLATED}{MISUSE}{parameters(**values)}')


class TestCrashes:
    @pytest.mark.parametrize(("crash", "cause"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT")])
    def test_crash(self, serve, model, backends, crash, cause):
        """A backend that crashes takes its own process with it and no other; that is started again."""
        faulty(model, "mortal", AT="execute", DO=crash)
        faulty(model, "bystander", MISUSE="")
        server = serve(backends)
        crashed, bystander = server.stub("mortal_0"), server.stub("bystander_0")
        for _ in range(2):
            status, message = server.refusal("mortal", ONE)
            assert (status, message.rpartition(": ")[2]) == (500, f"killed by {cause}")
            assert server.infer("bystander", ONE).as_numpy("OUTPUT0").tolist() == [1]
        assert re.search(rf"^E.*mortal_0: {NATIVE_STACK}", server.log, re.MULTILINE)
        assert re.search(rf"^E.*mortal_0: {IN_BACKEND}", server.log, re.MULTILINE)
        assert "mortal_0: Fatal Python error: " in server.log
        assert not crashed.is_alive()
        assert server.stub("bystander_0") == bystander

    def test_one_of_many_requests(self, serve, model, backends):
        """Crashes of one model do not affect requests to another."""
        model("steps", None, f'backend: "server_steps"\n{ISOLATED}{STEPS}instance_group {{ count: 2 kind: KIND_CPU }}')
        faulty(model, "mortal", AT="execute", DO="abort")
        server = serve(backends)
        assert len(server.stubs("steps_0_0")) == len(server.stubs("steps_0_1")) == 1
        question = {"COMMAND": np.array([b"live"], object)}
        with ThreadPoolExecutor(4) as clients:
            crashes = [clients.submit(server.refusal, "mortal", ONE) for _ in range(3)]
            found = list(clients.map(lambda _: server.infer("steps", question), range(9)))
        assert {result.as_numpy("RESULT")[0] for result in found} == {b"live: true\n"}
        assert {crash.result()[0] for crash in crashes} == {500}

    def test_at_load(self, serve, model, backends):
        """A backend that crashes while it loads is a model that cannot be served, and others are."""
        faulty(model, "mortal", AT="model_initialize", DO="segfault")
        faulty(model, "bystander", MISUSE="")
        server = serve(backends, "--exit-on-error=false", "--strict-readiness=false")
        with closing(server.client()) as client:
            rows = {row["name"]: row for row in client.get_model_repository_index()}
        assert (rows["mortal"]["state"], rows["bystander"]["state"]) == ("UNAVAILABLE", "READY")
        assert "killed by SIGSEGV" in rows["mortal"]["reason"]
        assert server.infer("bystander", ONE).as_numpy("OUTPUT0").tolist() == [1]

    @pytest.mark.parametrize("at", ["instance_initialize", "model_initialize"])
    def test_errors_at_load(self, serve, model, backends, at):
        """The reason of a failed load has the backend's error, with its code, as in the server's process."""
        faulty(model, "mortal", AT=at, DO="error")
        server = serve(backends, "--exit-on-error=false", "--strict-readiness=false")
        with closing(server.client()) as client:
            (row,) = client.get_model_repository_index()
        assert row["reason"] == f"Unavailable: failed at {at}"

    def test_processes_that_it_leaves_behind(self, serve, model, backends, wait_until):
        """A process that a backend forks without executing a program ends with its stub, as with a Python model."""
        faulty(model, "parent", AT="execute", DO="fork")
        server = serve(backends)
        parent = server.stub("parent_0")
        server.infer("parent", ONE)
        (child,) = (each for each in server.stubs("parent_0") if each != parent)
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: not child.is_alive())
        wait_until(server.is_ready)


class TestLibraries:
    def test_preloaded_for_one_model_only(self, serve, model, compile_library):
        """Two models preload libraries with the same symbol: each backend finds its own model's."""
        for number in (1, 2):
            config = f'backend: "preloading"\n{ISOLATED}{IN_OUT}{parameters(PRELOAD_LIBRARIES="own.so")}'
            folder = model(f"model{number}", None, config)
            shutil.copy(compile_library("preloading.cc"), folder / "libtriton_preloading.so")
            command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", folder / "own.so", f"-DNUMBER={number}"]
            subprocess.run(command, input=PRELOADED, text=True, check=True)
        server = serve()
        for number in (1, 2, 1):
            found = server.infer(f"model{number}", {"IN": np.zeros(1, np.int64)})
            assert found.as_numpy("OUT").tolist() == [number]

    def test_a_library_that_is_not_there(self, serve, model, backends):
        """A model without its libraries is not served, and its owner reads which one it was."""
        config = f'backend: "identity"\n{ISOLATED}{tensors("INT32")}{parameters(PRELOAD_LIBRARIES="nowhere.so")}'
        model("lacking", None, config)
        server = serve(backends, "--exit-on-error=false", "--strict-readiness=false")
        with closing(server.client()) as client:
            (row,) = client.get_model_repository_index()
        assert row["state"] == "UNAVAILABLE"
        assert row["reason"].startswith(
            "Not found: unable to preload library 'nowhere.so' for model 'lacking': nowhere.so: "
        )


class TestLife:
    def test_from_load_to_unload(self, serve, model, backends, wait_until):
        """The backend completes the configuration; each step is in its order, in the one process of the instance."""
        model("lifecycle", None, f'backend: "lifecycle"\n{ISOLATED}{IN_OUT}')
        server = serve(
            backends,
            "--backend-config=lifecycle,some=thing",
            "--model-control-mode=explicit",
            "--load-model=lifecycle",
        )
        with closing(server.client()) as client:
            assert client.get_model_config("lifecycle")["max_batch_size"] == 8
            server.infer("lifecycle", {"IN": np.zeros((1, 1), np.int64)})
            assert client.is_model_ready("lifecycle")
            (statistics,) = client.get_inference_statistics("lifecycle")["model_stats"]
            # What the backend reports for the model, and for its instance.
            assert statistics["memory_usage"] == [
                {"type": "CPU_PINNED", "id": 0, "byte_size": 2 << 40},
                {"type": "GPU", "id": 3, "byte_size": 2 * 4096},
            ]
            client.unload_model("lifecycle")
        wait_until(lambda: " Finalize lifecycle: " in server.log)
        log = server.log
        steps = [
            "Initialize lifecycle",
            "ModelInitialize lifecycle",
            "ModelInstanceInitialize lifecycle_0",
            "ModelInstanceExecute lifecycle_0",
            "ModelInstanceFinalize lifecycle_0",
            "ModelFinalize lifecycle",
            "Finalize lifecycle",
        ]
        places = [log.index(f" {step}: ") for step in steps]
        assert places == sorted(places)
        for line in ('"some":"thing"', "Model completes: yes", "ModelInstanceReady lifecycle_0: ", " common.h:"):
            assert line in log
        wait_until(lambda: not server.stubs())

    def test_without_completion(self, serve, model, backends):
        """The backend sees that it may not complete the configuration."""
        model("lifecycle", None, f'backend: "lifecycle"\n{ISOLATED}{IN_OUT}')
        server = serve(backends, "--disable-auto-complete-config")
        assert "Model completes: no" in server.log
        with closing(server.client()) as client:
            assert client.get_model_config("lifecycle").get("max_batch_size", 0) == 0

    def test_metrics(self, serve, model, backends):
        """Metrics of two models stand in one family, from the beginning."""
        config = 'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        config += 'output [ { name: "OUTPUT0" data_type: TYPE_FP64 dims: [ 2 ] } ]\n'
        for name in ("first", "second"):
            model(name, None, f'backend: "metrics"\n{ISOLATED}{config}{parameters(METRIC="isolated")}')
        server = serve(backends)

        def lines():
            page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
            return [line for line in page.splitlines() if "isolated" in line]

        assert 'isolated_total{model="second"} 0' in lines()
        server.infer("first", {"INPUT0": np.array([0.25, 1.5, 9], np.float32)})
        found = lines()
        assert found.count("# TYPE isolated_total counter") == 1
        for line in [
            'isolated_total{model="first"} 3',
            'isolated_last{model="first"} 9',
            'isolated_size_bucket{model="first",le="2"} 2',
            'isolated_size_bucket{model="first",le="+Inf"} 3',
            'isolated_size_sum{model="first"} 10.75',
            'isolated_size_count{model="second"} 0',
        ]:
            assert line in found
