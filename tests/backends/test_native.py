# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native backends as those models have them that run them in a process of their own: here, in that of the test."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pyruntime.stub.pb_utils import Tensor
from pyruntime.testing import Code, InferenceError, LoadError, Request

IN_OUT = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ] output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
# responses.cc can return its input, too.
ECHO = IN_OUT + 'output [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]'
DECOUPLED = "model_transaction_policy { decoupled: true }"
REPEAT = (Path(__file__).parent.parent / "native/repeat.pbtxt").read_text()
NOTHING = {"IN": [0]}
STATE = """
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  state [ { input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ] } ]
}
"""


def parameter(key, value):
    """A parameter of a configuration."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def identity(datatype="TYPE_INT32", dims="[ -1 ]", more=""):
    """A configuration of identity.cc."""
    tensor = f"data_type: {datatype} dims: {dims}"
    return f'input [ {{ name: "INPUT" {tensor} }} ] output [ {{ name: "OUTPUT" {tensor} }} ] {more}'


# The state that states.cc changes.
STATES = """
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching { state [ { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [ -1 ] } ] }
"""


def numbers(result):
    """The outputs of a result as lists."""
    return {name: array.tolist() for name, array in result.outputs.items()}


@pytest.fixture
def native(load_model, compile_library, tmp_path):
    """`native(source, config, name="m", backend="test")`: a model with a library compiled of `source`."""

    def native(source, config, name="m", backend="test", **how):
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        shutil.copy(compile_library(source), folder / f"libtriton_{backend}.so")
        mode = parameter("EXECUTION_MODE", "process")
        (folder / "config.pbtxt").write_text(f'backend: "{backend}" {mode} {config}')
        return load_model(folder, **how)

    return native


class TestTensors:
    @pytest.mark.parametrize("number", ["BOOL", "UINT8", "INT16", "UINT64", "FP16", "FP32", "FP64", "INT64"])
    def test_numbers(self, native, number):
        """Numbers of any datatype go in and come out."""
        model = native("identity.cc", identity(f"TYPE_{number}"))
        result = model.infer({"INPUT": [0, 1, 1]})["OUTPUT"]
        assert (result.tolist(), result.dtype) == ([0, 1, 1], model.infer({"INPUT": [0]})["OUTPUT"].dtype)

    def test_bf16(self, native):
        """BF16, which numpy does not have, is passed as bytes."""
        half = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2
        tensor = Tensor._from_region(*_in_memory("BF16", [2], half.tobytes()))
        result = native("identity.cc", identity("TYPE_BF16")).infer({"INPUT": tensor})["OUTPUT"]
        assert result.astype(np.float32).tolist() == [1.0, 2.0]

    def test_texts(self, native):
        """BYTES are encoded as on the wire, in both directions."""
        texts = [[b"one", b""], ["zw\u00f6lf".encode(), bytes(range(256))]]
        model = native("identity.cc", identity("TYPE_STRING", "[ 2, 2 ]"))
        assert model.infer({"INPUT": np.array(texts, object)})["OUTPUT"].tolist() == texts

    @pytest.mark.parametrize("datatype", ["TYPE_STRING", "TYPE_FP32"])
    def test_nothing(self, native, datatype):
        """Tensors without elements."""
        array = np.array([], object if datatype == "TYPE_STRING" else np.float32)
        assert native("identity.cc", identity(datatype)).infer({"INPUT": array})["OUTPUT"].shape == (0,)

    def test_large(self, native):
        """Tensors of some megabytes."""
        array = np.random.default_rng(1).integers(0, 1 << 30, 1 << 20, np.int32)
        assert (native("identity.cc", identity()).infer({"INPUT": array})["OUTPUT"] == array).all()

    def test_reshape(self, native):
        """The backend sees the shapes of the reshape, and the client does not."""
        model = native("identity.cc", identity(dims="[ 4 ] reshape { shape: [ 2, 2 ] }"))
        assert model.infer({"INPUT": [1, 2, 3, 4]})["OUTPUT"].tolist() == [1, 2, 3, 4]

    def test_outputs(self, native):
        """Outputs that were never written, have no elements or no dimension; parameters of all types."""
        outputs = {"SCALAR": "FP32", "EMPTY": "BF16", "TWICE": "INT8", "UNWRITTEN": "STRING", "HUGE": "UINT8"}
        tensors = ",".join(
            f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ -1 ] }}' for name, kind in outputs.items()
        )
        model = native("responses.cc", f"{ECHO} output [ {tensors} ]")
        result = model.infer(NOTHING, request_id="answer", requested_outputs=list(outputs)[:3])
        assert result["SCALAR"].tolist() == 1.0
        assert result["TWICE"].tolist() == [2]
        assert result["EMPTY"].shape == (0, 4)
        told = {name: result.parameters[name] for name in ("text", "number", "yes", "no", "float")}
        assert told == {"text": "Gr\u00fc\u00dfe", "number": -(1 << 63), "yes": True, "no": False, "float": -0.5}


class TestRequests:
    def test_everything(self, native):
        """The backend sees all properties of the request."""
        request = Request(
            NOTHING,
            request_id="describe",
            parameters={"text": "a", "number": -3, "yes": True, "half": 0.5},
            correlation_id=7,
            sequence_start=True,
            timeout=1000,
        )
        told = native("requests.cc", IN_OUT).infer(request).parameters
        assert (told["id"], told["correlation id"], told["flags"], told["timeout"]) == ("describe", "7", 1, 1000)
        assert [told[f"parameter {name}"] for name in ("text", "number", "yes", "half")] == ["a", -3, True, 0.5]
        assert told["input 0 name"] == "IN"
        assert (told["input 0 datatype"], told["input 0 shape"], told["input 0 bytes"]) == ("INT64", "1", 8)
        assert told["outputs"] == "OUT:CPU0 "
        assert told["cancelled"] is False

    def test_sequence_by_text(self, native):
        """The id of a sequence may be a text."""
        told = native("requests.cc", IN_OUT).infer(NOTHING, request_id="describe", correlation_id="abc").parameters
        assert told["correlation text"] == "abc"

    def test_requested_outputs(self, native):
        """The backend sees the requested outputs, and only those are in the response."""
        config = IN_OUT + 'output [ { name: "OTHER" data_type: TYPE_INT64 dims: [ 1 ] } ]'
        told = native("requests.cc", config).infer(NOTHING, request_id="describe", requested_outputs=["OTHER"])
        assert told.parameters["outputs"] == "OTHER:CPU0 "

    def test_batch(self, native):
        """A batch of requests is a batch of the backend's."""
        model = native("identity.cc", identity(dims="[ 1 ]", more="max_batch_size: 8"))
        results = model.execute([{"INPUT": np.full((rows, 1), rows, np.int32)} for rows in (1, 2, 3)])
        assert [result["OUTPUT"].tolist() for result in results] == [[[1]], [[2]] * 2, [[3]] * 3]

    def test_lost(self, native):
        """A request that is released ends when the backend lets go of what could have answered it."""
        model = native("responses.cc", ECHO + DECOUPLED)
        (kept,) = model.start([Request(NOTHING, request_id="keep")])
        (then,) = model.start([Request(NOTHING, request_id="let go")])
        assert [result["IN"].tolist() for result in then] == [[0]]
        (lost,) = kept
        assert "sent no final response" in lost.error.message


class TestErrors:
    def test_error(self, native):
        """A response that is an error has its code, and is that of its request alone."""
        failed, other = native("responses.cc", ECHO).execute([Request(NOTHING, request_id="error"), NOTHING])
        assert (failed.error.message, failed.error.code) == ("not today", Code.UNAVAILABLE)
        assert other.parameters["still"] == "not today"

    def test_execute(self, native):
        """An error of Execute is the answer to the requests that Execute has not released."""
        model = native("requests.cc", IN_OUT)
        lost, failed = model.execute([Request(NOTHING, request_id="fail"), NOTHING])
        assert (failed.error.message, failed.error.code) == ("cannot", Code.UNAVAILABLE)
        assert "sent no final response" in lost.error.message


class TestDecoupled:
    def test_responses(self, native):
        """Responses come in order, also those that are sent when the request was released; and their end."""
        responses = native("responses.cc", ECHO + DECOUPLED).stream(NOTHING, request_id="factory")
        assert [result["OUT"].item() for result in responses] == [0, 1, 2]

    def test_threads(self, native):
        """More responses than a client takes at a time, from several threads: none is lost, none twice."""
        responses = native("responses.cc", ECHO + DECOUPLED).stream(NOTHING, request_id="threads")
        assert sorted(result["OUT"].item() for result in responses) == list(range(1000))

    def test_one_that_waits_stops_nobody(self, native):
        """A client that takes nothing of a thousand responses is no reason for the next one to wait."""
        model = native("responses.cc", ECHO + DECOUPLED)
        slow = model.stream(NOTHING, request_id="threads")
        assert [result["OUT"].item() for result in model.stream(NOTHING, request_id="factory")] == [0, 1, 2]
        assert sorted(result["OUT"].item() for result in slow) == list(range(1000))

    def test_after_execute(self, native):
        """Responses that come when Execute has returned, from a thread of the backend's."""
        model = native("repeat.cc", REPEAT)
        many = model.stream({"IN": [4, 5, 6], "DELAY": [1, 1, 1], "WAIT": [0]})
        none = model.stream({"IN": [], "DELAY": [], "WAIT": [0]})
        assert [(result["OUT"].item(), result["IDX"].item()) for result in many] == [(4, 0), (5, 1), (6, 2)]
        assert list(none) == []


class TestCancellation:
    def test_cancelled(self, native):
        """The backend sees that a request is cancelled while it executes the request."""
        model = native("requests.cc", IN_OUT)
        request = Request(NOTHING, request_id="cancelled")
        waiting, other = model.start([request, Request(NOTHING)])
        request.cancel()
        assert next(other).parameters["cancelled"] is True
        assert next(waiting).error is not None

    def test_after_execute(self, native):
        """The same where Execute has returned."""
        count = 5000
        responses = native("repeat.cc", REPEAT).stream({"IN": list(range(count)), "DELAY": [1] * count, "WAIT": [0]})
        next(responses)
        responses.cancel()
        assert len(list(responses)) < count - 1


class TestRescheduling:
    def test_rescheduled(self, native):
        """A request that is released to be executed again is, where its model may have that."""
        model = native("reschedule.cc", IN_OUT + "sequence_batching { iterative_sequence: true }")
        for runs in (2, 4):
            assert model.infer(NOTHING, correlation_id=5, sequence_start=True)["OUT"].tolist() == [runs]

    def test_responses_after_it(self, native):
        """A response that is sent after its request was released to be executed again arrives."""
        model = native("iterate.cc", IN_OUT + DECOUPLED + "sequence_batching { iterative_sequence: true }")
        streams = model.start([Request({"IN": [count]}, correlation_id=count, sequence_start=True) for count in (1, 4)])
        assert [[result["OUT"].item() for result in stream] for stream in streams] == [[0], [3, 2, 1, 0]]

    def test_not_allowed(self, native):
        """Elsewhere it is an error that the backend reads."""
        requests = [Request(NOTHING, request_id="flags"), Request(NOTHING), Request(NOTHING)]
        *_, report = native("requests.cc", IN_OUT).execute(requests)
        assert "RESCHEDULE" in report.parameters["again 0"]


def _in_memory(datatype, shape, contents):
    from pyruntime.testing.tensors import OwnMemory, tensor_ref

    return OwnMemory(), tensor_ref("INPUT", datatype, shape, contents)


class TestLoading:
    def test_instance(self, native, caplog):
        """The instance has the properties in the configuration, which the backend has completed."""
        group = 'name: "g" kind: KIND_CPU host_policy: "near" passive: true'
        model = native("lifecycle.cc", IN_OUT + f"instance_group [ {{ {group} }} ]")
        assert model.config["max_batch_size"] == 8
        said = [line for line in caplog.messages if line.startswith("Instance ")]
        for line in ("place: CPU 0", 'host policy: {"near":{}}', "passive: yes"):
            assert f"Instance {line}" in said
        (config,) = (line for line in said if line.startswith("Instance config: "))
        assert '"max_batch_size":8' in config

    def test_end(self, native, caplog):
        """Instance, model and backend are finalized, in this order, and their log records then are kept."""
        with native("lifecycle.cc", IN_OUT):
            caplog.clear()
        steps = [line.split(":")[0] for line in caplog.messages]
        assert steps == ["ModelInstanceFinalize m_0", "Model state at the end", "ModelFinalize m", "Finalize test"]

    @pytest.mark.parametrize(
        ("name", "backend", "reason"),
        [
            ("m", "fails in Initialize", "no Initialize"),
            ("fails in ModelInitialize", "test", "no ModelInitialize"),
            ("throws in ModelInitialize", "test", "TRITONBACKEND_ModelInitialize threw an exception: nothing there"),
        ],
    )
    def test_failures(self, native, name, backend, reason):
        """The error of a backend is the reason why the model cannot be loaded."""
        with pytest.raises(LoadError, match=f"^{reason}$"):
            native("lifecycle.cc", IN_OUT, name, backend)

    def test_readiness(self, native, caplog):
        """A backend that can be asked is asked; a model of another one has no such method."""
        with native("lifecycle.cc", IN_OUT) as model:
            assert model.is_ready()
        assert any(line.startswith("ModelInstanceReady m_0") for line in caplog.messages)
        assert not hasattr(native("identity.cc", identity(), "other").instance, "is_ready")

    def test_not_what_it_is_taken_for(self, native):
        """A library that is no backend, and one that wants libraries which are nowhere."""
        with pytest.raises(LoadError, match="unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute'"):
            native("no_backend.c", IN_OUT)
        with pytest.raises(LoadError, match=r"unable to preload library 'libnobodys\.so' for model 'm'"):
            native("identity.cc", identity(more=parameter("PRELOAD_LIBRARIES", "libnobodys.so")))

    def test_what_it_cannot_be(self, native):
        """A configuration that cannot work is refused."""
        with pytest.raises(LoadError, match="has instances in threads"):
            native("identity.cc", identity(more=parameter("INSTANCE_MODE", "thread")))


class TestStates:
    def test_update(self, native):
        """The backend reads the state, and its response brings the next one."""
        model = native("state.cc", STATE)
        assert numbers(model.infer({"INPUT": [[3]]}, sequence_start=True)) == {"OUTPUT": [[3]], "OUTPUT_STATE": [[3]]}
        result = model.infer({"INPUT": [[3]], "INPUT_STATE": [[7]]})
        assert numbers(result) == {"OUTPUT": [[10]], "OUTPUT_STATE": [[10]]}

    def test_output_of_the_same_name(self, native):
        """An output that is a state of that name, too, is not sent twice."""
        model = native("state.cc", STATE + 'output [ { name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ] } ]')
        assert numbers(model.infer({"INPUT": [[3]]})) == {"OUTPUT": [[3]], "OUTPUT_STATE": [[3]]}

    @pytest.mark.parametrize(
        ("action", "expected"),
        [("read", {}), ("grow", {"STATE_OUT": [0x07070707] * 2}), ("after", {"STATE_OUT": [0x07070707] * 2})],
    )
    def test_when(self, native, action, expected):
        """A state counts that is updated before the release of the request, even if that is after the last response."""
        result = native("states.cc", STATES).infer({"IN": [0], "STATE_IN": [7]}, request_id=action)
        assert result.parameters["contents"] == "07000000"
        assert numbers(result) == expected

    def test_execution_again(self, native):
        """A state that comes without a response would be lost, so its request fails."""
        model = native("states.cc", STATES.replace("{ state", "{ iterative_sequence: true state"))
        with pytest.raises(InferenceError, match="updated a state of the sequence and sent no response after it"):
            model.infer({"IN": [0], "STATE_IN": [7]}, request_id="again")


class TestMetrics:
    def test_kinds(self, native):
        """Counters, gauges and histograms of a backend appear in a scrape until the model is closed."""
        config = f"""
            input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
            output [ {{ name: "OUTPUT0" data_type: TYPE_FP64 dims: [ 2 ] }} ] {parameter("METRIC", "isolated")}"""
        model = native("metrics.cc", config)
        assert model.infer({"INPUT0": [0.25, 1.5]})["OUTPUT0"].tolist() == [2.0, 1.5]
        assert model.infer({"INPUT0": [9.0]})["OUTPUT0"].tolist() == [3.0, 9.0]
        shown = {name: value for name, value in model.metrics().items() if name.startswith("isolated")}
        assert shown == {
            'isolated_total{model="m"}': 3.0,
            'isolated_last{model="m"}': 9.0,
            'isolated_size_bucket{model="m",le="0.5"}': 1.0,
            'isolated_size_bucket{model="m",le="1"}': 1.0,
            'isolated_size_bucket{model="m",le="2"}': 2.0,
            'isolated_size_bucket{model="m",le="+Inf"}': 3.0,
            'isolated_size_sum{model="m"}': 10.75,
            'isolated_size_count{model="m"}': 3.0,
        }
        model.close()
        assert not [name for name in model.metrics() if name.startswith("isolated")]
