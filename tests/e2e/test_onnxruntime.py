# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "onnxruntime": ONNX models by the Python package of ONNX Runtime, and their custom operations."""

import json
import shutil
import subprocess
import sys
import sysconfig
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
from tritonclient import grpc

from .harness.operations import libraries, mapped
from .harness.waiting import LIMIT_S

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnxruntime)")
onnx = pytest.importorskip("onnx", reason="onnx, which makes the models, is not installed (pip install onnx)")

from onnx import TensorProto, helper  # noqa: E402

FLOATS = (TensorProto.FLOAT, ["rows", 3])
LENIENT = ("--exit-on-error=false", "--strict-readiness=false")
EXPLICIT = ("--model-control-mode=explicit",)
OPTIONS = 'backend: "onnxruntime" instance_group [ { kind: KIND_CPU count: 1 } ]\n'


def onnx_model(nodes, inputs, outputs, initializers=()):
    """An ONNX model. `nodes` are (operation, inputs, outputs, domain); tensors are name=(type, shape)."""
    made = [helper.make_node(kind, taken, given, domain=domain) for kind, taken, given, domain in nodes]
    tensors = [[helper.make_tensor_value_info(name, *of) for name, of in each.items()] for each in (inputs, outputs)]
    graph = helper.make_graph(made, "graph", *tensors, list(initializers))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def add_sub(shape=("rows", 3)):
    floats = (TensorProto.FLOAT, list(shape))
    nodes = [("Add", ["A", "B"], ["SUM"], ""), ("Sub", ["A", "B"], ["DIFFERENCE"], "")]
    return onnx_model(nodes, {"A": floats, "B": floats}, {"SUM": floats, "DIFFERENCE": floats})


def scaling():
    """OUT is IN, multiplied by what the custom operation "Scale" says."""
    return onnx_model([("Scale", ["IN"], ["OUT"], "test")], {"IN": FLOATS}, {"OUT": FLOATS})


@pytest.fixture
def onnx_folder(model):
    """`onnx_folder(name, model, config=OPTIONS)`: the folder of a model of model.onnx."""

    def write(name, made, config=OPTIONS):
        folder = model(name, None, config)
        onnx.save(made, folder / "1" / "model.onnx")
        return folder

    return write


def reasons(server):
    with closing(server.client()) as client:
        return {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}


def scaled(server, name):
    return server.infer(name, {"IN": np.ones((1, 3), np.float32)}).as_numpy("OUT").tolist()[0][0]


def batching(server, *names):
    """`max_batch_size` and the dims of the first input of each model."""
    with closing(server.client()) as client:
        configs = [client.get_model_config(name) for name in names]
    return [(config["max_batch_size"], config["input"][0]["dims"]) for config in configs]


def test_a_model_of_a_file_alone(serve, onnx_folder):
    """The backend is found by the file, and the configuration completed by it, with Triton's defaults."""
    onnx_folder("bare", add_sub(), None)
    (onnx_folder("broken", add_sub(), None) / "1" / "model.onnx").write_bytes(b"no model")
    server = serve(*LENIENT)
    with closing(server.client()) as client:
        config = client.get_model_config("bare")
    assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert (config["max_batch_size"], config["instance_group"][0]["count"]) == (4, 2)
    assert "dynamic_batching" in config
    assert [(each["name"], each["data_type"], each["dims"]) for each in (*config["input"], *config["output"])] == [
        (name, "TYPE_FP32", [3]) for name in ("A", "B", "SUM", "DIFFERENCE")
    ]
    assert "model.onnx' cannot be loaded: onnx runtime error " in reasons(server)["broken"]
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)
    answer = server.infer("bare", {"A": first, "B": second})
    assert answer.as_numpy("SUM").tolist() == (first + second).tolist()
    assert answer.as_numpy("DIFFERENCE").tolist() == (first - second).tolist()


def test_batches(serve, onnx_folder):
    """Requests that wait together are one call of the framework, and every one gets its rows and its outputs."""
    more = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }\n"
    more += 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }\n'
    onnx_folder("batched", add_sub(), OPTIONS + "max_batch_size: 4\n" + more)
    server = serve()
    rows = [np.full((count, 3), count, np.float32) for count in (1, 3)]
    with closing(server.grpc()) as client:
        answers: Queue = Queue()
        for array in rows:
            inputs = [grpc.InferInput(name, array.shape, "FP32") for name in ("A", "B")]
            for each in inputs:
                each.set_data_from_numpy(array)
            client.async_infer("batched", inputs, lambda result, error: answers.put((result, error)))
        done = [answers.get(timeout=LIMIT_S) for _ in rows]
    assert [error for _, error in done] == [None, None]
    found = sorted(result.as_numpy("SUM").tolist() for result, _ in done)
    assert found == sorted((array * 2).tolist() for array in rows)
    statistics = json.loads(server.request("GET", "/v2/models/batched/stats").body)["model_stats"][0]
    assert (statistics["execution_count"], statistics["inference_count"]) == (1, 4)


def test_warm_up(serve, onnx_folder):
    """The session executes the samples of model_warmup before the model is ready; one that it refuses ends the load."""
    taken, picked = (TensorProto.INT64, ["rows"]), (TensorProto.FLOAT, ["rows"])
    values = helper.make_tensor("values", TensorProto.FLOAT, [2], [5, 6])
    picking = onnx_model([("Gather", ["values", "AT"], ["OUT"], "")], {"AT": taken}, {"OUT": picked}, [values])
    for name, at in (("warm", 1), ("cold", 9)):
        sample = 'inputs { key: "AT" value { data_type: TYPE_INT64 dims: [ 1 ] input_data_file: "at" } }'
        folder = onnx_folder(name, picking, OPTIONS + f'model_warmup {{ name: "s" batch_size: 1 count: 3 {sample} }}\n')
        (folder / "warmup").mkdir()
        (folder / "warmup" / "at").write_bytes(np.array([at]).tobytes())
    server = serve(*LENIENT)
    (found,) = json.loads(server.request("GET", "/v2/models/warm/stats").body)["model_stats"]
    assert (found["execution_count"], found["inference_stats"]["success"]["count"]) == (3, 3)
    assert server.infer("warm", {"AT": np.array([[0]])}).as_numpy("OUT").tolist() == [[5]]
    assert "indices element out of data bounds, idx=9" in reasons(server)["cold"]


def test_texts(serve, onnx_folder):
    """BYTES are strings of ONNX, in UTF-8; others are refused, with the name of the input."""
    strings = (TensorProto.STRING, ["rows", 2])
    onnx_folder("texts", onnx_model([("Identity", ["S"], ["R"], "")], {"S": strings}, {"R": strings}), None)
    server = serve()
    texts = np.array([["a", "\u00e9\u00e8"], ["", "d"]], object)
    answer = server.infer("texts", {"S": texts}).as_numpy("R")
    assert [[each.decode() for each in row] for row in answer] == texts.tolist()
    _, message = server.refusal("texts", {"S": np.array([[b"\xff", b"b"]], object)})
    assert message == "input 'S' has an element that is not valid UTF-8, which strings of ONNX must be"


def test_without_batching(serve, onnx_folder):
    """A fixed first dimension is no batch; an output without dimensions has one."""
    total = onnx_model([("ReduceSum", ["A"], ["T"], "")], {"A": (TensorProto.FLOAT, [2, 3])}, {"T": FLOATS})
    total.graph.node[0].attribute.append(helper.make_attribute("keepdims", 0))
    total.graph.output[0].CopyFrom(helper.make_tensor_value_info("T", TensorProto.FLOAT, []))
    onnx_folder("total", total, None)
    server = serve()
    with closing(server.client()) as client:
        config = client.get_model_config("total")
    assert (config["max_batch_size"], config["input"][0]["dims"], config["output"][0]["dims"]) == (0, [2, 3], [1])
    assert server.infer("total", {"A": np.ones((2, 3), np.float32)}).as_numpy("T").tolist() == [6]


def test_a_model_that_batches_only_by_default(serve, onnx_folder):
    """`max_batch_size: 0` alone is as good as nothing; with an input or an output, or by the option, it is heeded."""
    zero = OPTIONS + "max_batch_size: 0\n"
    tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: [ -1, 3 ] }}'
    onnx_folder("silent", add_sub(), OPTIONS)
    onnx_folder("alone", add_sub(), zero)
    onnx_folder("output", add_sub(), zero + "output " + tensor.format("SUM"))
    onnx_folder("inputs", add_sub(), zero + "".join("input " + tensor.format(name) for name in "AB"))
    names = ("silent", "alone", "output", "inputs")
    assert batching(serve(), *names) == [(4, [3]), (4, [3]), (0, [-1, 3]), (0, [-1, 3])]
    server = serve("--backend-config=default-max-batch-size=0")
    assert batching(server, *names) == [(0, [-1, 3])] * 4


def test_what_cannot_be_loaded(serve, onnx_folder):
    """Each message says what the model has, what the configuration wants, and where it says so."""
    tensors = (
        'input {{ name: "{}" data_type: {} dims: [ {} ] }} output {{ name: "SUM" data_type: TYPE_FP32 dims: [ 3 ] }}'
    )
    onnx_folder("fixed", add_sub((2, 3)), OPTIONS + "max_batch_size: 4\n")
    onnx_folder("named", add_sub(), OPTIONS + "max_batch_size: 4\n" + tensors.format("C", "TYPE_FP32", 3))
    onnx_folder("typed", add_sub(), OPTIONS + "max_batch_size: 4\n" + tensors.format("A", "TYPE_INT8", 3))
    onnx_folder("shaped", add_sub(), OPTIONS + "max_batch_size: 4\n" + tensors.format("A", "TYPE_FP32", "3, 1"))
    level = "optimization { graph { level: 7 } }\n"
    onnx_folder("level", add_sub(), OPTIONS + level)
    onnx_folder("mode", add_sub(), OPTIONS + 'parameters { key: "execution_mode" value { string_value: "5" } }')
    onnx_folder("decoupled", add_sub(), OPTIONS + "model_transaction_policy { decoupled: true }")
    onnx_folder("prior", add_sub(), OPTIONS + "optimization { priority: PRIORITY_MAX graph { level: 1 } }")
    server = serve(*LENIENT)
    found = reasons(server)
    assert "is decoupled, which the backend 'onnxruntime' cannot be: it answers a request once" in found["decoupled"]
    assert found["prior"] == ""
    assert (
        "model 'prior' sets optimization.priority, which has no effect on models of the backend 'onnxruntime'"
        in server.log
    )
    assert "model does not support batching while non-zero max_batch_size is specified" in found["fixed"]
    assert "unexpected inference input 'C', allowed inputs are: A, B" in found["named"]
    assert "configuration expects datatype TYPE_INT8 for input 'A', model provides TYPE_FP32" in found["typed"]
    assert "model 'shaped', tensor 'A': the model expects 2 dimensions (shape [-1,3])" in found["shaped"]
    assert "has the graph optimization level 7, which must be" in found["level"]
    assert "has the parameter execution_mode '5', which must be 0 (sequential) or 1 (parallel)" in found["mode"]


def test_a_load_says_what_the_configuration_misses_or_sets_in_vain(serve, onnx_folder):
    """An input of the file that it names nowhere, which no request could have; a parameter with a misspelt name."""
    one, other = (f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ -1, 3 ] }}' for name in ("A", "SUM"))
    tensors = f"input {one} output {other}"
    onnx_folder("half", add_sub(), OPTIONS + tensors)
    onnx_folder(
        "misspelt", add_sub(), OPTIONS + 'parameters { key: "intra_op_threads_count" value { string_value: "1" } }'
    )
    server = serve(*LENIENT)
    assert reasons(server)["half"] == (
        "Invalid argument: unable to load model 'half', configuration expects 1 inputs, model provides 2: declare 'B' "
        "in config.pbtxt, which the model needs in each request"
    )
    said = "model 'misspelt' has parameters that nothing reads, as models of the backend 'onnxruntime' have no such: "
    assert server.log.count(f"{said}'intra_op_threads_count' (did you mean 'intra_op_thread_count'") == 1


def test_weights_in_a_file_of_their_own(serve, model):
    """External data are next to the model file, which may be in a folder of its name."""
    weights = helper.make_tensor("W", TensorProto.FLOAT, [3], np.array([1, 2, 3], np.float32).tobytes(), raw=True)
    made = onnx_model([("Mul", ["A", "W"], ["P"], "")], {"A": FLOATS}, {"P": FLOATS}, [weights])
    folder = model("external", None, None) / "1" / "model.onnx"
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (folder / "weights.bin").exists()
    server = serve()
    assert server.infer("external", {"A": np.ones((1, 3), np.float32)}).as_numpy("P").tolist() == [[1, 2, 3]]


@pytest.fixture
def python_without(tmp_path_factory):
    """`python_without(package)`: the Python of an environment that has all packages of this one but that."""

    def make(package):
        folder = tmp_path_factory.mktemp("without") / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not path.name.startswith(package):
                (packages / path.name).symlink_to(path)
        return folder / "bin" / "python"

    return make


def test_an_environment_of_its_own(serve, onnx_folder, python_without):
    """A model has the framework in its environment, and the server does not. Without it the message says where."""
    python = python_without("onnxruntime")
    environment = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}\n'
    onnx_folder("own", add_sub(), OPTIONS + environment.format(sys.prefix))
    onnx_folder("without", add_sub())
    # The wrapper gets the command of a server, and executes it by another Python.
    server = serve(*LENIENT, wrapper=("bash", "-c", 'shift; exec "$0" "$@"', python))
    answer = server.infer("own", {name: np.full((2, 3), 4, np.float32) for name in ("A", "B")})
    assert answer.as_numpy("SUM").tolist() == [[8] * 3] * 2
    assert (
        "needs the package 'onnxruntime', which its environment does not have: "
        f"{python.parents[1]} (Python {sys.version.split()[0]}). Install it there (pip install pyruntime[onnxruntime], "
        "or pip install onnxruntime), or name an environment that has it in the parameter EXECUTION_ENV_PATH"
    ) in reasons(server)["without"]


class TestCustomOperations:
    def test_the_same_operation_twice(self, serve, onnx_folder, compile_library):
        """Two models with two libraries that register the same operation are served at the same time, both right.

        One library is in the version's folder, one in the model's folder, one has an absolute path.
        """
        where = {"two": ("1/ops.so", "ops.so"), "three": ("lib/ops.so", "lib/ops.so")}
        for factor, (name, (place, told)) in enumerate(where.items(), 2):
            folder = onnx_folder(name, scaling(), OPTIONS + libraries(told))
            (folder / place).parent.mkdir(exist_ok=True)
            shutil.copy(compile_library("onnx_custom_op.cc", f"-DFACTOR={factor}"), folder / place)
        onnx_folder("four", scaling(), OPTIONS + libraries(compile_library("onnx_custom_op.cc", "-DFACTOR=4")))
        server = serve()
        assert [scaled(server, name) for name in ("two", "three", "four")] == [2, 3, 4]
        assert [scaled(server, name) for name in ("four", "three", "two")] == [4, 3, 2]

    def test_a_library_goes_with_its_model(self, serve, onnx_folder, compile_library):
        """After the unload no process has the library; a new build of it is loaded without a restart of the server."""
        folder = onnx_folder("scale", scaling(), OPTIONS + libraries("ops.so"))
        shutil.copy(compile_library("onnx_custom_op.cc", "-DFACTOR=2"), folder / "1" / "ops.so")
        server = serve(*EXPLICIT, "--load-model=scale")
        assert scaled(server, "scale") == 2
        assert len(mapped(server, "ops.so")) == 1
        with closing(server.client()) as client:
            client.unload_model("scale")
            server.settle()
            assert mapped(server, "ops.so") == []
            (folder / "1" / "ops.so").unlink()
            shutil.copy(compile_library("onnx_custom_op.cc", "-DFACTOR=5"), folder / "1" / "ops.so")
            client.load_model("scale")
        assert scaled(server, "scale") == 5

    def test_libraries_that_do_not_load(self, serve, onnx_folder, compile_library):
        """The message names what is missing, the library, the version of the framework, and the environment."""
        folder = onnx_folder("other", scaling(), OPTIONS + libraries("ops.so"))
        shutil.copy(compile_library("onnx_custom_op.cc", "-DNEEDS_MISSING"), folder / "1" / "ops.so")
        onnx_folder("absent", scaling(), OPTIONS + libraries("none.so"))
        onnx_folder("without", scaling())
        useless = compile_library("onnx_custom_op.cc", "-DWITHOUT_ENTRY_POINT")
        onnx_folder("useless", scaling(), OPTIONS + libraries(useless))
        found = reasons(serve(*LENIENT))
        assert (
            f"'{folder / '1' / 'ops.so'}' needs the symbol 'OrtFunctionOfAnotherVersion', which onnxruntime "
            f"{onnxruntime.__version__} of the environment {sys.prefix} "
        ) in found["other"]
        assert "model 'absent' has the op_library_filename 'none.so', which does not exist" in found["absent"]
        assert (
            "1/model.onnx' has custom operations that no library registers: test::Scale. Name their libraries as "
            "op_library_filename in model_operations of config.pbtxt (onnx runtime error "
        ) in found["without"]
        assert f"the library '{useless}' has no function RegisterCustomOps, by which" in found["useless"]

    def test_several_libraries(self, serve, onnx_folder, compile_library):
        """All libraries of a model are registered, also one that another package brings."""
        if find_spec("onnxruntime_extensions") is None:
            pytest.skip("onnxruntime-extensions is not installed (pip install onnxruntime-extensions)")
        # In a process of its own: its import changes the environment of all later ones.
        tell = "import onnxruntime_extensions; print(onnxruntime_extensions.get_library_path())"
        extensions = subprocess.run([sys.executable, "-c", tell], check=True, capture_output=True, text=True).stdout
        strings = (TensorProto.STRING, ["rows"])
        nodes = [("Scale", ["IN"], ["OUT"], "test"), ("StringUpper", ["S"], ["U"], "ai.onnx.contrib")]
        made = onnx_model(nodes, {"IN": FLOATS, "S": strings}, {"OUT": FLOATS, "U": strings})
        made.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
        own = compile_library("onnx_custom_op.cc", "-DFACTOR=6")
        onnx_folder("both", made, OPTIONS + libraries(own, extensions.strip()))
        answer = serve().infer("both", {"IN": np.ones((1, 3), np.float32), "S": np.array([["abc"]], object)})
        assert answer.as_numpy("OUT").tolist() == [[6, 6, 6]]
        assert answer.as_numpy("U").tolist() == [[b"ABC"]]
