# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models with `platform: "custom"` on a real server: libraries made against custom.h, each in a stub of its own."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

LIBRARIES = Path(__file__).parent.parent / "native/custom"
ADD_SUB = (LIBRARIES / "add_sub.pbtxt").read_text()
IDENTITY = """
platform: "custom" parameters { key: "NO_BATCH" value { string_value: "" } }
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "INPUT1" data_type: TYPE_STRING dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OUTPUT1" data_type: TYPE_STRING dims: [ 2 ] } ]
"""
FAULTY = (LIBRARIES / "faulty.pbtxt").read_text()
PARAMETERS = (LIBRARIES / "parameters.pbtxt").read_text()
SEQUENCES = """
platform: "custom" max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  STRATEGY
  max_sequence_idle_microseconds: 600000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
}
"""
# The faults of faulty.c, by the value of its input.
NOTHING_WRONG, PAYLOAD_ERROR, _, EXECUTE_ERROR, CRASH, NO_OUTPUT = range(6)
WORDS = "it is the test's fault"


@pytest.fixture
def custom(model, compile_library):
    """`custom(name, source, config, *options)`: a model with a library compiled of `source`, None for without one."""

    def custom(name, source, config, *options):
        folder = model(name, None, config)
        if source is not None:
            shutil.copy(compile_library(f"custom/{source}", *options), folder / "1" / "libcustom.so")
        return folder

    return custom


def do(fault):
    """The inputs that have faulty.c do something."""
    return {"IN": np.array([[fault]], np.int32)}


def test_both_protocols(custom, deploy):
    """A library answers clients of HTTP, binary and JSON, and of gRPC."""
    custom("add_sub", "add_sub.c", ADD_SUB)
    server = deploy()
    arrays = {"INPUT0": np.array([[1, 2]], np.int32), "INPUT1": np.array([[10, 20]], np.int32)}
    for binary in (True, False):
        result = server.infer("add_sub", arrays, binary=binary)
        assert result.as_numpy("OUTPUT0").tolist() == [[11, 22]]
        assert result.as_numpy("OUTPUT1").tolist() == [[-9, -18]]
    inputs = [tritonclient.grpc.InferInput(name, [1, 2], "INT32") for name in arrays]
    for tensor, array in zip(inputs, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    with closing(server.grpc()) as client:
        assert client.infer("add_sub", inputs).as_numpy("OUTPUT0").tolist() == [[11, 22]]
    with closing(server.client()) as client:
        assert client.get_model_metadata("add_sub")["platform"] == "custom"


def test_batches(custom, deploy, wait_until):
    """Requests that are batched are payloads of one call."""
    batching = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }"
    custom("add_sub", "add_sub.c", ADD_SUB + batching)
    server = deploy()

    def add(value):
        arrays = {"INPUT0": np.array([[value]], np.int32), "INPUT1": np.array([[1]], np.int32)}
        return server.infer("add_sub", arrays).as_numpy("OUTPUT0").item()

    with ThreadPoolExecutor(4) as clients:
        assert list(clients.map(add, range(4))) == [1, 2, 3, 4]
    wait_until(lambda: "add_sub executes 4 payloads" in server.log)


def test_large_and_odd(custom, deploy):
    """A library of version 2 reads large tensors, and BYTES, where they are."""
    custom("identity", "identity.c", IDENTITY)
    server = deploy()
    large = np.random.default_rng(1).random(4 << 20, np.float32)
    texts = np.array([b"", bytes(range(256)) * 1000], object)
    for _ in range(3):
        result = server.infer("identity", {"INPUT0": large, "INPUT1": texts})
        assert (result.as_numpy("OUTPUT0") == large).all()
        assert result.as_numpy("OUTPUT1").tolist() == texts.tolist()
        result = server.infer("identity", {"INPUT0": large[:1], "INPUT1": texts}, outputs=["OUTPUT0"])
        assert result.as_numpy("OUTPUT0").tolist() == large[:1].tolist()
        assert result.as_numpy("OUTPUT1") is None


def test_what_it_is_told(custom, serve, tmp_path):
    """The path is that of the repository; each instance has a name of its own, as such libraries know it."""
    custom("parameters", "parameters.c", PARAMETERS + "instance_group { count: 2 kind: KIND_CPU }")
    server = serve()
    with closing(server.client()) as client:
        version = client.get_server_metadata()["version"]
    texts = server.infer("parameters", {"IN": np.zeros(1, np.int32)}).as_numpy("TEXTS").tolist()
    assert texts[0] in (b"parameters_0_0_cpu", b"parameters_0_1_cpu")
    assert texts[1:] == [version.encode(), os.fsencode(tmp_path)]
    assert len(server.stubs("parameters_0_0")) == len(server.stubs("parameters_0_1")) == 1


def test_errors(custom, deploy):
    """The client gets the library's error, as INTERNAL."""
    custom("faulty", "faulty.c", FAULTY)
    server = deploy()
    payload_error = f"payload error for 'faulty_0_cpu': ({PAYLOAD_ERROR}) {WORDS}"
    assert server.refusal("faulty", do(PAYLOAD_ERROR)) == (500, payload_error)
    assert server.refusal("faulty", do(EXECUTE_ERROR)) == (
        500,
        f"execute error for 'faulty_0_cpu': ({EXECUTE_ERROR}) {WORDS}",
    )
    assert server.infer("faulty", do(NO_OUTPUT)).get_response()["outputs"] == []
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(do(PAYLOAD_ERROR)["IN"])
    with closing(server.grpc()) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("faulty", [tensor])
    assert (caught.value.status(), caught.value.message()) == ("StatusCode.INTERNAL", payload_error)


def test_models_that_cannot_be_loaded(custom, serve):
    """Each is unavailable, for a reason that the repository index has; the others are served."""
    custom("missing", None, FAULTY)
    custom("versioned", "faulty.c", FAULTY, "-DVERSION=3")
    custom("incomplete", "faulty.c", FAULTY, "-DNO_FINALIZE")
    custom("failing", "faulty.c", FAULTY, "-DINITIALIZE_ERROR=5")
    custom("good", "faulty.c", FAULTY)
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    with closing(server.client()) as client:
        rows = {row["name"]: row for row in client.get_model_repository_index()}
    assert {name: row["state"] for name, row in rows.items() if name != "good"} == dict.fromkeys(
        ["missing", "versioned", "incomplete", "failing"], "UNAVAILABLE"
    )
    assert rows["missing"]["reason"] == "Internal: unable to find Custom model 'libcustom.so' for missing"
    assert (
        rows["versioned"]["reason"] == "Internal: unable to load custom library: invalid custom version 3 is provided"
    )
    assert rows["incomplete"]["reason"].startswith(
        "Internal: unable to find 'CustomFinalize' entrypoint in custom library: "
    )
    assert rows["failing"]["reason"] == f"Internal: initialize error for 'failing': (5) {WORDS}"
    assert server.infer("good", do(NOTHING_WRONG)).as_numpy("OUT").tolist() == [[NOTHING_WRONG]]


def test_crash(custom, deploy):
    """A library that crashes takes its own stub with it and nothing else; that is started again."""
    custom("faulty", "faulty.c", FAULTY)
    custom("bystander", "faulty.c", FAULTY)
    server = deploy()
    crashed, bystander = server.stub("faulty_0"), server.stub("bystander_0")
    status, message = server.refusal("faulty", do(CRASH))
    assert (status, message.rpartition(": ")[2]) == (500, "killed by SIGSEGV")
    for name in ("faulty", "bystander"):
        assert server.infer(name, do(NOTHING_WRONG)).as_numpy("OUT").tolist() == [[NOTHING_WRONG]]
    assert not crashed.is_alive()
    assert server.stub("bystander_0") == bystander


def test_unload(custom, serve, wait_until):
    """An instance is finalized when its model is unloaded, by the thread that made it."""
    custom("faulty", "faulty.c", FAULTY, "-DFINALIZE_ERROR=9")
    server = serve("--model-control-mode=explicit", "--load-model=faulty")
    with closing(server.client()) as client:
        client.unload_model("faulty")
    wait_until(lambda: "finalized by its thread" in server.log)
    wait_until(lambda: "finalize error for 'faulty_0_cpu': error code 9" in server.log)


def test_backend_of_the_same_name(custom, serve, tmp_path_factory):
    """A native backend that is called "custom" has nothing to do with the platform."""
    backends = tmp_path_factory.mktemp("backends")
    (backends / "custom").mkdir()
    (backends / "custom" / "libtriton_custom.so").write_text("this would not load")
    custom("faulty", "faulty.c", FAULTY)
    server = serve(f"--backend-directory={backends}")
    assert server.infer("faulty", do(NOTHING_WRONG)).as_numpy("OUT").tolist() == [[NOTHING_WRONG]]


@pytest.mark.parametrize("strategy", ["oldest { max_candidate_sequences: 4 }", "direct { }"])
def test_sequences(custom, deploy, strategy):
    """The sequence scheduler gives a library its control inputs, and keeps sequences apart."""
    custom("accumulator", "accumulator.c", SEQUENCES.replace("STRATEGY", strategy))
    server = deploy()

    def say(sequence, value, **options):
        arrays = {"INPUT": np.array([[value]], np.int32)}
        return server.infer("accumulator", arrays, sequence_id=sequence, **options).as_numpy("OUTPUT").item()

    assert [say(7, 1, sequence_start=True), say(8, 100, sequence_start=True)] == [1, 100]
    assert [say(7, 2), say(8, 200), say(7, 3, sequence_end=True), say(8, 300, sequence_end=True)] == [3, 300, 6, 600]
    assert say(7, 5, sequence_start=True) == 5
