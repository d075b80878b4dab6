# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Implicit states of the backends of frameworks: the server keeps what the framework has as inputs and outputs.

A model adds IN to SUM, its state, and returns the sum as OUT and as NEXT, the next state. One of each framework goes
through the same tests; those of ONNX Runtime alone are about what all backends share.
"""

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .harness.ensembles import chain

PATIENT = "max_sequence_idle_microseconds: 100000000 "
STATE = 'input_name: "SUM" output_name: "NEXT" data_type: TYPE_INT64 dims: [ 1 ] '
TENSORS = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
ANY_SUMS = TENSORS.replace('"OUT" data_type: TYPE_INT64 dims: [ 1 ]', '"OUT" data_type: TYPE_INT64 dims: [ -1 ]')
START = 'control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]'
TWO_INSTANCES = "instance_group { kind: KIND_CPU count: 2 }\n"
LENIENT = ("--exit-on-error=false", "--strict-readiness=false")


def batching(*states, more=""):
    listed = ", ".join(f"{{ {state} }}" for state in states)
    return f"sequence_batching {{ {PATIENT} {more} state [ {listed} ] }}\n"


def write_onnx(version_dir, dims=("rows", 1)):
    onnx = pytest.importorskip("onnx", reason="onnx, which makes the models, is not installed (pip install onnx)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnxruntime)")
    helper, names = onnx.helper, ("IN", "SUM", "OUT", "NEXT")
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, list(dims)) for name in names]
    nodes = [helper.make_node("Add", ["IN", "SUM"], ["OUT"]), helper.make_node("Identity", ["OUT"], ["NEXT"])]
    save_onnx(version_dir, nodes, tensors[:2], tensors[2:])


def save_onnx(version_dir, nodes, inputs, outputs):
    import onnx

    graph = onnx.helper.make_graph(nodes, "sum", inputs, outputs)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, version_dir / "model.onnx")


SUM_MODULE = """
import torch

class Sum(torch.nn.Module):
    def forward(self, a, before):
        total = a + before
        return {"OUT": total, "NEXT": total.clone()}
"""

UNNAMED_MODULE = """
import torch

class Sum(torch.nn.Module):
    def forward(self, *x):
        return sum(x), sum(x) * 2
"""

# The second number is how many rows have a request, the third how many there are.
READY_MODULE = """
import torch

class Sum(torch.nn.Module):
    def forward(self, IN, READY, SUM):
        total = IN + SUM
        rows = torch.tensor([[int(READY.sum()), len(READY)]]).expand(len(IN), 2)
        return {"OUT": torch.cat([total, rows], 1), "NEXT": total}
"""


def torch_module():
    pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    namespace = {}
    exec(SUM_MODULE, namespace)
    return namespace["torch"], namespace["Sum"]()


def write_torchscript(version_dir):
    torch, module = torch_module()
    example = torch.zeros(1, 1, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the format, and of dicts
        torch.jit.trace(module, (example, example), strict=False).save(version_dir / "model.pt")


def write_exported(version_dir):
    torch, module = torch_module()
    rows = torch.export.Dim("rows")
    examples = (torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64))
    torch.export.save(
        torch.export.export(module, examples, dynamic_shapes=({0: rows}, {0: rows})), version_dir / "model.pt2"
    )


# Writes the model of a module in its first argument to the second one, compiled. It is a program, since the compiler
# leaves processes behind.
COMPILED = """
import sys
import torch

exec(sys.argv[1])
rows = torch.export.Dim("rows", max=64)
examples = tuple(torch.zeros(2, 1, dtype=torch.int64) for _ in range(2))
program = torch.export.export(Sum(), examples, dynamic_shapes=({0: rows}, {0: rows}))
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
"""


@functools.cache
def compiled():
    """A package of AOTInductor, which takes some time to make."""
    torch_module()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt2")
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, "-c", COMPILED, SUM_MODULE, path]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        with open(path, "rb") as file:
            return file.read()


def write_compiled(version_dir):
    (version_dir / "model.pt2").write_bytes(compiled())


def write_module(version_dir):
    torch_module()
    (version_dir / "model.py").write_text(SUM_MODULE)


def write_jax(version_dir):
    jax = pytest.importorskip("jax", reason="jax is not installed (pip install jax)")
    export = pytest.importorskip("jax.export", reason="this jax has no jax.export (pip install -U jax)")
    with jax.enable_x64(True):
        rows = jax.ShapeDtypeStruct((*export.symbolic_shape("rows"), 1), np.int64)
        made = export.export(jax.jit(lambda IN, SUM: {"OUT": IN + SUM, "NEXT": IN + SUM}), platforms=["cpu"])
        (version_dir / "model.jax").write_bytes(made(IN=rows, SUM=rows).serialize())


def write_openvino(version_dir):
    openvino = pytest.importorskip("openvino", reason="openvino is not installed (pip install openvino)")
    from openvino import opset13 as ops

    taken = [ops.parameter([-1, 1], np.int64, name=name) for name in ("IN", "SUM")]
    made = [ops.add(*taken), ops.add(*taken)]
    for node, name in zip(made, ("OUT", "NEXT"), strict=True):
        node.output(0).get_tensor().set_names({name})
    openvino.save_model(openvino.Model(made, taken, "sum"), version_dir / "model.xml")


# Writes the model into the folder that is its argument. It is a program, since TensorFlow is never unloaded.
SAVED_MODEL = """
import sys
import tensorflow as tf

integers = tf.TensorSpec([None, 1], tf.int64)


class Sum(tf.Module):
    @tf.function(input_signature=[integers, integers])
    def add(self, IN, SUM):
        return {"OUT": IN + SUM, "NEXT": IN + SUM}


model = Sum()
tf.saved_model.save(model, sys.argv[1], signatures={"serving_default": model.add})
"""


def write_tensorflow(version_dir):
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed (pip install tensorflow-cpu)")
    subprocess.run(
        [sys.executable, "-c", SAVED_MODEL, version_dir / "model.savedmodel"], check=True, capture_output=True
    )


# What writes the model of each framework into the folder of a version, and the configuration but for its state.
FRAMEWORKS = {
    "onnxruntime": (write_onnx, 'backend: "onnxruntime"\n'),
    "torchscript": (write_torchscript, 'backend: "pytorch"\n' + TENSORS),
    "exported": (write_exported, 'backend: "pytorch"\n' + TENSORS),
    "compiled": (write_compiled, 'backend: "pytorch"\n' + TENSORS),
    "module": (write_module, 'backend: "pytorch"\n' + TENSORS),
    "jax": (write_jax, 'backend: "jax"\n'),
    "openvino": (write_openvino, 'backend: "openvino"\n'),
    "tensorflow": (write_tensorflow, 'backend: "tensorflow"\n'),
}


def send(server, name, id, value, start=False, end=False, **options):
    flags = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
    return server.infer(name, {"IN": np.full((1, 1), value, np.int64)}, **flags, **options)


def ask(server, name, id, value, **options):
    return send(server, name, id, value, **options).as_numpy("OUT").ravel().tolist()


def refusal(server, name, id, value, **options):
    return server.refusal(name, {"IN": np.full((1, 1), value, np.int64)}, sequence_id=id, **options)


def config_of(server, name):
    with closing(server.client()) as client:
        return client.get_model_config(name)


def reasons_of(server):
    with closing(server.client()) as client:
        return {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}


# Has the model "m" add its input three times, in a sequence of its own.
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor, start = request.inputs()[0], pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        sums = []
        for flags in (start, 0, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END):
            response = pb_utils.InferenceRequest(
                model_name="m", requested_output_names=["OUT"], inputs=[tensor], correlation_id=99, flags=flags).exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            sums.append(response.output_tensors()[0].as_numpy())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(sums, 1))])
"""
CALLER_CONFIG = 'backend: "python"\n' + ANY_SUMS


@pytest.mark.parametrize("framework", FRAMEWORKS)
class TestEveryFramework:
    @pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
    def test_sums(self, framework, strategy, deploy, model, wait_until):
        """Sequences in turns on two instances, called in all ways: each has its state, until its instance dies."""
        if framework == "compiled" and strategy.startswith("oldest"):
            pytest.skip("another process may have to compile it again, and the strategy is not the framework's")
        write, config = FRAMEWORKS[framework]
        write(model("m", None, config + TWO_INSTANCES, batching(STATE, more=strategy)) / "1")
        model("through", None, chain("m", more="max_batch_size: 4\n"))
        model("caller", CALLER, CALLER_CONFIG)
        server = deploy()
        assert [each["name"] for each in config_of(server, "m")["output"]] == ["OUT"]
        assert [ask(server, "m", 1, 5, start=True), ask(server, "m", 1, 5), ask(server, "m", 1, 5)] == [[5], [10], [15]]
        ids = (1, 2, 3, 4)
        names = {1: "m", 2: "through", 3: "m", 4: "through"}
        with ThreadPoolExecutor(len(ids)) as pool:
            for step in (1, 2, 3):
                flags = {"start": step == 1}
                sums = list(pool.map(lambda id, flags=flags: ask(server, names[id], id, 10**id, **flags), ids))
                assert sums == [[step * 10**id] for id in ids]
        assert server.infer("caller", {"IN": np.full((1, 1), 7, np.int64)}).as_numpy("OUT").tolist() == [[7, 14, 21]]
        old = server.stub("m_0_0")
        os.kill(old.pid, signal.SIGKILL)
        wait_until(lambda: server.stubs("m_0_0") and server.stubs("m_0_0") != [old])
        lost = {id for id in ids if is_lost(server, names[id], id)}
        assert len(lost) == 2
        for id in ids:
            assert ask(server, names[id], id, 1, start=id in lost) == [1 if id in lost else 3 * 10**id + 1]


def is_lost(server, name, id):
    """Whether the sequence has ended: then a request must begin it. Otherwise the request adds nothing."""
    try:
        ask(server, name, id, 0)
    except InferenceServerException as exc:
        return "must specify the START flag" in exc.message()
    return False


@pytest.fixture
def onnx_sum(model):
    """`onnx_sum(name, *states, more="", dims=("rows", 1))`: the folder of a model of ONNX Runtime with these states."""

    def write(name, *states, more="", dims=("rows", 1)):
        folder = model(name, None, FRAMEWORKS["onnxruntime"][1], batching(*states, more=more))
        write_onnx(folder / "1", dims)
        return folder

    return write


class TestPytorch:
    def test_names_of_arguments(self, deploy, model):
        """An exported program completes the configuration, and its states have the names of arguments."""
        folder = model("m", None, 'backend: "pytorch"\n', batching(STATE.replace("SUM", "before")))
        write_exported(folder / "1")
        server = deploy()
        config = config_of(server, "m")
        assert [each["name"] for each in (*config["input"], *config["output"])] == ["a", "OUT"]
        for total in (5, 10, 15):
            flags = {"sequence_id": 1, "sequence_start": total == 5}
            answer = server.infer("m", {"a": np.full((1, 1), 5, np.int64)}, **flags)
            assert answer.as_numpy("OUT").tolist() == [[total]]

    def test_indices(self, deploy, model):
        """A model whose results have no names has its state by the index in its name, and so has a control input."""
        control = START.replace('"START"', '"START__1"')
        config = 'backend: "pytorch"\n' + TENSORS.replace('"IN"', '"IN__0"').replace('"OUT"', '"OUT__1"')
        state = STATE.replace("SUM", "STATE__2").replace("NEXT", "STATE__0")
        torch_module()
        (model("m", None, config, batching(state, more=control)) / "1" / "model.py").write_text(UNNAMED_MODULE)
        server = deploy()
        for total in (12, 22, 32):
            flags = {"sequence_id": 1, "sequence_start": total == 12}
            answer = server.infer("m", {"IN__0": np.full((1, 1), 5, np.int64)}, **flags)
            assert answer.as_numpy("OUT__1").tolist() == [[total]]

    def test_too_few_arguments(self, serve, model):
        """A control input that `forward` has no argument for is named at the load."""
        write_module(model("m", None, 'backend: "pytorch"\n' + TENSORS, batching(STATE, more=START)) / "1")
        reason = reasons_of(serve(*LENIENT))["m"]
        assert (
            "has 3 inputs, with those in sequence_batching: IN, START, SUM; and its forward takes 2: a, bef" in reason
        )

    @pytest.mark.parametrize("field", ["", "use_same_buffer_for_input_output: true "])
    def test_rows_without_a_request(self, field, deploy, model):
        """A model that has READY gets rows of zeros for slots without a request, and these change no state."""
        torch_module()
        control = START.replace("START", "READY")
        config = 'backend: "pytorch" instance_group { kind: KIND_CPU count: 1 }\n' + ANY_SUMS
        (model("m", None, config, batching(STATE + field, more=control)) / "1" / "model.py").write_text(READY_MODULE)
        server = deploy()
        assert ask(server, "m", 1, 5, start=True) == [5, 1, 1]
        assert ask(server, "m", 2, 7, start=True) == [7, 1, 2]
        assert ask(server, "m", 2, 7) == [14, 1, 2]
        assert ask(server, "m", 1, 5) == [10, 1, 1]

    @pytest.mark.parametrize("field", ["", "use_same_buffer_for_input_output: true "])
    def test_a_datatype_that_numpy_lacks(self, field, deploy, model):
        """A state may be BF16."""
        torch_module()
        state = STATE.replace("INT64", "BF16") + field
        code = SUM_MODULE.replace("a + before", "a.bfloat16() + before")
        folder = model("m", None, 'backend: "pytorch"\n' + TENSORS, batching(state))
        (folder / "1" / "model.py").write_text(code.replace('"OUT": total', '"OUT": total.long()'))
        server = deploy()
        assert [ask(server, "m", 1, 5, start=True), ask(server, "m", 1, 5), ask(server, "m", 1, 5)] == [[5], [10], [15]]


class TestStatesOfTheConfiguration:
    def test_initial_state(self, deploy, onnx_sum):
        """A sequence begins with the state in the file."""
        first = 'initial_state { name: "first" data_type: TYPE_INT64 dims: [ 1 ] data_file: "first" }'
        folder = onnx_sum("m", STATE + first)
        (folder / "initial_state").mkdir()
        (folder / "initial_state" / "first").write_bytes(np.array([40]).tobytes())
        server = deploy()
        for id in (1, 2):
            assert ask(server, "m", id, 1, start=True) == [41]
            assert ask(server, "m", id, 1, end=True) == [42]

    def test_in_place(self, deploy, onnx_sum):
        """The next state takes the place of the input, of each sequence its own; a failure leaves it as it was."""
        onnx_sum("m", STATE + "use_same_buffer_for_input_output: true")
        server = deploy()
        assert ask(server, "m", 1, 5, start=True) == [5]
        assert ask(server, "m", 2, 100, start=True) == [100]
        assert ask(server, "m", 1, 5) == [10]
        assert server.refusal("m", {"IN": np.ones((1, 1), np.float32)}, sequence_id=1)[0] == 400
        assert [ask(server, "m", 1, 5, end=True), ask(server, "m", 2, 1, end=True)] == [[15], [101]]

    @pytest.mark.parametrize("field", ["", "use_same_buffer_for_input_output: true "])
    def test_an_output_that_is_a_state(self, field, deploy, model):
        """A client gets the state if it is an output of the configuration, too."""
        output = 'output [ { name: "NEXT" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
        folder = model("m", None, FRAMEWORKS["onnxruntime"][1] + TENSORS + output, batching(STATE + field))
        write_onnx(folder / "1")
        server = deploy()
        for expected in (5, 10, 15):
            answer = send(server, "m", 1, 5, start=expected == 5, outputs=["NEXT"]).as_numpy("NEXT")
            assert answer.tolist() == [[expected]]

    def test_without_batching(self, deploy, onnx_sum):
        """A state with all dimensions of the file tells that none of them is that of the batch."""
        onnx_sum("m", STATE.replace("[ 1 ]", "[ 1, 1 ]"))
        server = deploy()
        assert config_of(server, "m")["max_batch_size"] == 0
        assert [ask(server, "m", 1, 5, start=True), ask(server, "m", 1, 5)] == [[5], [10]]

    @pytest.mark.parametrize("field", ["", "use_same_buffer_for_input_output: true use_growable_memory: true"])
    def test_a_state_that_grows(self, field, deploy, model):
        """A state of a variable size has another one after each request."""
        helper, integers = onnx_helper()
        state = 'input_name: "SEEN" output_name: "NEXT" data_type: TYPE_INT64 dims: [ -1 ] '
        folder = model("m", None, FRAMEWORKS["onnxruntime"][1] + ANY_SUMS, batching(state + field))
        joined = helper.make_node("Concat", ["SEEN", "IN"], ["OUT"], axis=1)
        nodes = [joined, helper.make_node("Identity", ["OUT"], ["NEXT"])]
        inputs = [integers("IN", 1), integers("SEEN", "n")]
        save_onnx(folder / "1", nodes, inputs, [integers("OUT", "m"), integers("NEXT", "m")])
        server = deploy()
        assert ask(server, "m", 1, 1, start=True) == [0, 1]
        assert ask(server, "m", 1, 2) == [0, 1, 2]
        assert ask(server, "m", 2, 7, start=True) == [0, 7]
        assert ask(server, "m", 1, 3, end=True) == [0, 1, 2, 3]

    def test_control_inputs(self, deploy, model):
        """Control inputs are inputs of the framework like states, and no more completed than these."""
        helper, integers = onnx_helper()
        folder = model("m", None, FRAMEWORKS["onnxruntime"][1], batching(STATE, more=START))
        start = helper.make_tensor_value_info("START", 6, ["rows", 1])
        nodes = [
            helper.make_node("Cast", ["START"], ["BEGINS"], to=7),
            helper.make_node("Add", ["IN", "BEGINS"], ["MORE"]),
            helper.make_node("Add", ["MORE", "SUM"], ["OUT"]),
            helper.make_node("Identity", ["OUT"], ["NEXT"]),
        ]
        save_onnx(
            folder / "1",
            nodes,
            [integers("IN", 1), start, integers("SUM", 1)],
            [integers("OUT", 1), integers("NEXT", 1)],
        )
        server = deploy()
        assert [each["name"] for each in config_of(server, "m")["input"]] == ["IN"]
        assert [ask(server, "m", 1, 5, start=True), ask(server, "m", 1, 5), ask(server, "m", 1, 5)] == [[6], [11], [16]]

    def test_what_does_not_fit(self, serve, onnx_sum, model):
        """A state that the model file does not have fails the load; a size that memory does not have, the request."""
        onnx_sum("unknown_input", STATE.replace("SUM", "TOTAL"))
        onnx_sum("unknown_output", STATE.replace("NEXT", "LATER"))
        onnx_sum("other_type", STATE.replace("INT64", "FP32"))
        onnx_sum("other_rank", STATE.replace("[ 1 ]", "[ 1, 1, 1 ]"))
        onnx_sum("control", STATE, more=START)
        reasons = reasons_of(serve(*LENIENT))
        for name, reason in {
            "unknown_input": "unexpected inference input 'TOTAL', allowed inputs are: IN, SUM",
            "unknown_output": "unexpected inference output 'LATER', allowed outputs are: NEXT, OUT",
            "other_type": "configuration expects datatype TYPE_FP32 for input 'SUM', model provides TYPE_INT64",
            "other_rank": "the model expects 2 dimensions (shape [-1,1]) but the model configuration specifies 4",
            "control": "configuration specified sequence control 'START', but model does not provide that input",
        }.items():
            assert reason in reasons[name]


def onnx_helper():
    """The module that makes nodes, and what makes the description of a tensor of integers."""
    onnx = pytest.importorskip("onnx", reason="onnx, which makes the models, is not installed (pip install onnx)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnxruntime)")
    helper = onnx.helper
    return helper, lambda name, *dims: helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["rows", *dims])
