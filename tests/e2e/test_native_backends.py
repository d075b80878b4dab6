# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Backends in C++ do what those in Python do: see tests/native for what each of them is."""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from .harness.waiting import LIMIT_S

BACKENDS = ["identity", "repeat", "gather", "calls", "state", "states", "metrics"]
DTYPES = {
    "BOOL": bool,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
}
TYPES = [*DTYPES, "STRING"]
PYTHON = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + 100)])
            for request in requests
        ]
"""
# Calls a native model.
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="identity", requested_output_names=["OUTPUT0"], inputs=request.inputs()
            )
            responses.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return responses
"""
REPEAT = (
    {
        "IN": ("INT32", "-1"),
        "DELAY": ("UINT32", "-1"),
        "WAIT": ("UINT32", "1"),
    },
    {"OUT": ("INT32", "1"), "IDX": ("UINT32", "1")},
)
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def config(backend, inputs, outputs, more="", **values):
    """A config.pbtxt: tensors as (type, dims) by name, parameters, and more."""
    tensor = '{} {{ name: "{}" data_type: TYPE_{} dims: [ {} ] }}\n'
    lines = [f'backend: "{backend}"\n', more]
    lines += [tensor.format("input", name, *each) for name, each in inputs.items()]
    lines += [tensor.format("output", name, *each) for name, each in outputs.items()]
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()]
    return "".join(lines)


def one(dtype, dims="-1"):
    """One tensor in, one out."""
    return {"INPUT0": (dtype, dims)}, {"OUTPUT0": (dtype, dims)}


def two(dtype):
    """Two tensors in, two out."""
    inputs = {"INPUT0": (dtype, "-1, 2"), "INPUT1": (dtype, "1")}
    return inputs, {name.replace("IN", "OUT"): each for name, each in inputs.items()}


@pytest.fixture(scope="module")
def backends(install_backends):
    """The option that says where the backends are."""
    return f"--backend-directory={install_backends(*BACKENDS)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, backends):
    """A server of models of each backend."""
    repository = tmp_path_factory.mktemp("native")

    def write(name, *arguments, code=None, **values):
        write_model(repository, name, code, config(*arguments, **values))

    for dtype in TYPES:
        write(f"identity_{dtype}", "identity", *two(dtype), "max_batch_size: 8\ndynamic_batching { }\n")
    write("identity", "identity", *one("INT32"))
    write("isolated", "identity", *one("INT32"), EXECUTION_MODE="process")
    write("python", "python", *one("INT32"), code=PYTHON)
    write("caller", "python", *one("INT32"), code=CALLER)
    batching = "max_batch_size: 16\ndynamic_batching {{ max_queue_delay_microseconds: {} preferred_batch_size: 4 }}\n"
    write("gather", "gather", *one("FP32", "2"), batching.format(60_000_000))
    write("repeat", "repeat", *REPEAT, DECOUPLED)
    write("calls", "calls", *one("INT32"), MODEL="identity")
    write("calls_repeat", "calls", *REPEAT, DECOUPLED, MODEL="repeat")
    for name in ("metrics", "metrics2"):
        write(name, "metrics", {"INPUT0": ("FP32", "-1")}, {"OUTPUT0": ("FP64", "2")}, METRIC="of_test", LOG="hello")
    with serving(repository, backends, "--log-verbose=1") as server:
        yield server


def random_tensors(dtype):
    """Contents of both inputs, of two rows."""
    if dtype == "STRING":
        texts = np.array([b"", b"\0\xff", b"x" * 1000, "\u00e4".encode()] * 3, np.object_)
        return {"INPUT0": texts.reshape(2, 3, 2), "INPUT1": texts[:2].reshape(2, 1)}
    array = np.random.default_rng(0).integers(0, 2 if dtype == "BOOL" else 100, (2, 3, 2)).astype(DTYPES[dtype])
    return {"INPUT0": array, "INPUT1": array[:, 0, :1].copy()}


@pytest.mark.parametrize("dtype", TYPES)
def test_identity(server, dtype):
    """Tensors of every type arrive and leave as they are, batched, by HTTP and by gRPC."""
    tensors = random_tensors(dtype)
    found = server.infer(f"identity_{dtype}", tensors)
    with closing(server.grpc()) as client:
        inputs = []
        for name, array in tensors.items():
            inputs.append(tritonclient.grpc.InferInput(name, array.shape, dtype.replace("STRING", "BYTES")))
            inputs[-1].set_data_from_numpy(array)
        other = client.infer(f"identity_{dtype}", inputs)
    for name, array in tensors.items():
        for result in (found, other):
            assert np.array_equal(result.as_numpy(name.replace("IN", "OUT")), array)


def test_only_outputs_that_are_asked_for(server):
    """A backend sees the requested outputs."""
    found = server.infer("identity_INT8", random_tensors("INT8"), outputs=["OUTPUT1"]).get_response()
    assert [output["name"] for output in found["outputs"]] == ["OUTPUT1"]


def test_parameters(server):
    """Parameters of requests arrive, and those of responses leave, with their types."""
    parameters = {"text": "\u00e4", "number": -(1 << 40), "truth": False}
    found = server.infer("identity", {"INPUT0": np.arange(2, dtype=np.int32)}, parameters=parameters).get_response()
    assert found["parameters"] == parameters


@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        ("identity", {"uint64_param": 2**63}, {"double_param": 2.0**63}),
        ("identity", {"double_param": math.nan}, {"double_param": math.nan}),
        ("isolated", {"uint64_param": 2**63}, {"double_param": 2.0**63}),
        ("isolated", {"double_param": math.nan}, {"string_param": "nan"}),
    ],
)
def test_parameters_that_native_code_has_no_type_for(server, model, value, expected):
    """They are converted to the nearest type, and no request is lost."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1]).contents.int_contents.append(7)
    request.parameters["odd"].CopyFrom(service_pb2.InferParameter(**value))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        found = stub.ModelInfer(request, timeout=LIMIT_S).parameters["odd"]
    # Compared as text, because NaN is not equal to itself.
    assert str(found) == str(service_pb2.InferParameter(**expected))
    array = np.arange(2, dtype=np.int32)
    assert np.array_equal(server.infer(model, {"INPUT0": array}).as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("size", [0, 1, 1 << 22])
def test_sizes(server, size):
    """From nothing to more than any buffer on the way."""
    array = np.arange(size, dtype=np.int32)
    assert np.array_equal(server.infer("identity", {"INPUT0": array}).as_numpy("OUTPUT0"), array)


def test_statistics(server, wait_until, raw):
    """The statistics are those that the backend reports, once it has: it answers before it reports."""
    success, failures, inferences, executions = raw.counts(server, "identity_FP64")
    server.infer("identity_FP64", random_tensors("FP64"))
    expected = (success + 1, failures, inferences + 2, executions + 1)
    wait_until(lambda: raw.counts(server, "identity_FP64") == expected)
    with closing(server.client()) as client:
        (statistics,) = client.get_inference_statistics("identity_FP64")["model_stats"]
    assert [batch["batch_size"] for batch in statistics["batch_stats"]] == [2]


def test_gather(server):
    """Requests are executed together, and each gets its own response."""

    def ask(number):
        found = server.infer("gather", {"INPUT0": np.full((1, 2), number, np.float32)})
        return found.as_numpy("OUTPUT0").tolist(), found.get_response()["parameters"]["batch"]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(8)))
    assert found == [([[2.0 * number] * 2], 4) for number in range(8)]


def repeated(count, delay_ms=0, wait_ms=0):
    """The inputs of a request that has so many responses, as JSON."""
    return {"IN": list(range(10, 10 + count)), "DELAY": [delay_ms] * count, "WAIT": [wait_ms]}


@pytest.mark.parametrize("model", ["repeat", "calls_repeat"])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_repeat(server, model, count):
    """Responses come one by one, in their order, whether the client asks the model or a model that asks it."""
    events = server.stream(model, **repeated(count))
    assert [(event["OUT"], event["IDX"]) for event in events] == [(10 + index, index) for index in range(count)]


def test_repeat_refuses(server):
    """An error is the only response then, and the last."""
    (event,) = server.stream("repeat", IN=[1, 2], DELAY=[1], WAIT=[0])
    assert event["error"] == "expected IN and DELAY shape to match, got 2 and 1"


def test_many_requests_at_once(server):
    """The responses of one request wait for those of no other."""
    with ThreadPoolExecutor(16) as threads:
        streams = list(threads.map(lambda _: server.stream("repeat", **repeated(20, 1)), range(16)))
    for events in streams:
        assert [event["IDX"] for event in events] == list(range(20))


def test_the_client_goes_away(server, wait_until):
    """A backend sees the cancellation of its request."""
    with server.streaming("repeat", **repeated(100_000, 1)) as events:
        assert next(events)["OUT"] == 10
    wait_until(lambda: "repeat: cancelled before response" in server.log)


def test_calls(server):
    """A native model calls others, native or not, and a model in Python calls native ones."""
    inputs = {"INPUT0": np.arange(3, dtype=np.int32)}
    assert server.infer("calls", inputs).as_numpy("OUTPUT0").tolist() == [0, 1, 2]
    found = server.infer("calls", inputs, parameters={"model": "python"})
    assert found.as_numpy("OUTPUT0").tolist() == [100, 101, 102]
    found = server.infer("calls", inputs, parameters={"model": "caller"})
    assert found.as_numpy("OUTPUT0").tolist() == [0, 1, 2]


def test_calls_that_fail(server):
    """The caller gets the same error as a client of the called model."""
    inputs = {"INPUT0": np.arange(3, dtype=np.int32)}
    assert server.refusal("calls", inputs, parameters={"model": "none"}) == (503, "model 'none' is not ready")
    assert server.refusal("calls", inputs, parameters={"model": "repeat"})[1] == "model 'repeat' is decoupled"
    status, message = server.refusal("calls", inputs, parameters={"model": "metrics"})
    assert status == 400
    assert "INPUT0" in message


def test_calls_at_once(server):
    """Calls of many requests wait for each other and for nothing else."""
    inputs = {"INPUT0": np.arange(3, dtype=np.int32)}
    with ThreadPoolExecutor(16) as threads:
        answers = threads.map(lambda _: server.infer("calls", inputs, parameters={"model": "caller"}), range(64))
        assert all(answer.as_numpy("OUTPUT0").tolist() == [0, 1, 2] for answer in answers)


def test_metrics(server):
    """Metrics of a backend stand with the others, those of two models in one family."""
    for name, values in (("metrics", [0.25, 1.5, 9]), ("metrics2", [1])):
        found = server.infer(name, {"INPUT0": np.array(values, np.float32)}).as_numpy("OUTPUT0").tolist()
        assert found == [len(values), values[-1]]
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert text.count("# TYPE of_test_total counter") == 1
    lines = text.splitlines()
    for line in [
        'of_test_total{model="metrics"} 3',
        'of_test_total{model="metrics2"} 1',
        'of_test_last{model="metrics"} 9',
        'of_test_size_bucket{model="metrics",le="0.5"} 1',
        'of_test_size_bucket{model="metrics",le="2"} 2',
        'of_test_size_bucket{model="metrics",le="+Inf"} 3',
        'of_test_size_sum{model="metrics"} 10.75',
        'of_test_size_count{model="metrics2"} 1',
    ]:
        assert line in lines


def test_log(server):
    """Lines of a backend are lines of the log, each at its level, with where they come from."""
    lines = [line for line in server.log.splitlines() if line.endswith("hello")]
    assert sorted({line[0] for line in lines}) == ["E", "I", "V", "W"]
    assert all(" common.h:" in line for line in lines)
    assert len(lines) == 8


def test_metrics_end_with_their_model(serve, model, backends, wait_until):
    """A family is there as long as a model has it."""
    model("metrics", None, config("metrics", {"INPUT0": ("FP32", "-1")}, {"OUTPUT0": ("FP64", "2")}, METRIC="of_test"))
    server = serve(backends, "--model-control-mode=explicit", "--load-model=metrics")

    def metrics():
        return server.request("GET", "/metrics", port=server.metrics_port).body

    assert b"of_test_total" in metrics()
    assert server.request("POST", "/v2/repository/models/metrics/unload").status == 200
    wait_until(lambda: b"of_test" not in metrics())


def test_unload_waits_for_responses(serve, model, backends, wait_until):
    """A model that is unloaded while it responds responds to the end."""
    model("repeat", None, config("repeat", *REPEAT, DECOUPLED))
    server = serve(backends, "--model-control-mode=explicit", "--load-model=repeat")
    with server.streaming("repeat", **repeated(100, 5)) as events:
        assert next(events)["IDX"] == 0
        with ThreadPoolExecutor(1) as threads:
            unloading = threads.submit(server.request, "POST", "/v2/repository/models/repeat/unload")
            assert [event["IDX"] for event in events] == list(range(1, 100))
            assert unloading.result().status == 200
    wait_until(lambda: server.request("GET", "/v2/models/repeat/ready").status != 200)


def test_state(serve, model, backends):
    """The server keeps a sequence's state for its backend, and each sequence has its own."""
    state = 'state [ { input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ] '
    state += 'initial_state { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true name: "zero" } } ]'
    tensors = {"INPUT": ("INT32", "1")}, {"OUTPUT": ("INT32", "1")}
    # A sequence has an instance of its own, as long as it does not rest for so long.
    more = f"sequence_batching {{ max_sequence_idle_microseconds: 60000000 {state} }}\ninstance_group {{ count: 2 }}\n"
    model("state", None, config("state", *tensors, more))
    server = serve(backends)

    def add(sequence, value, **flags):
        inputs = {"INPUT": np.array([value], np.int32)}
        return server.infer("state", inputs, sequence_id=sequence, **flags).as_numpy("OUTPUT").tolist()

    assert add(1, 1, sequence_start=True) == [1]
    assert add(2, 10, sequence_start=True) == [10]
    assert add(1, 2) == [3]
    assert add(2, 20) == [30]
    assert add(1, 3, sequence_end=True) == [6]
    assert add(1, 5, sequence_start=True) == [5]
    assert add(2, 30, sequence_end=True) == [60]


def test_states(serve, model, backends):
    """The server has initial states of strings from a file, and changes a state in place where the model wants that."""
    state = 'state [ {{ input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_{0} dims: -1 {1} '
    state += 'initial_state {{ data_type: TYPE_{0} dims: 1 {2} name: "first" }} }} ]'
    for name, values in {
        "shared": ("INT32", "use_same_buffer_for_input_output: true", "zero_data: true"),
        "growing": ("INT32", "use_same_buffer_for_input_output: true use_growable_memory: true", "zero_data: true"),
        "texts": ("STRING", "", 'data_file: "texts"'),
    }.items():
        more = f"sequence_batching {{ max_sequence_idle_microseconds: 60000000 {state.format(*values)} }}\n"
        folder = model(name, None, config("states", {"IN": ("INT32", "1")}, {"OUT": ("INT32", "1")}, more))
    contents = b"\3\0\0\0abc\xff"
    (folder / "initial_state").mkdir()
    (folder / "initial_state/texts").write_bytes(contents)
    server = serve(backends)

    def ask(name, action, **flags):
        inputs = {"IN": np.zeros(1, np.int32)}
        found = server.infer(name, inputs, request_id=action, sequence_id=7, **flags).get_response()["parameters"]
        return found["shape"], found["contents"], found.get("same")

    for name in ("shared", "growing"):
        assert ask(name, "add", sequence_start=True) == ("1", "00000000", True)
        assert ask(name, "touch") == ("1", "01000000", True)
        assert ask(name, "grow") == ("1", "02000000", False)
        assert ask(name, "late") == ("2", "07" * 8, True)
        assert ask(name, "read", sequence_end=True) == ("2", "08" + "07" * 7, None)
    assert ask("texts", "read", sequence_start=True, sequence_end=True) == ("1", contents.hex(), None)
