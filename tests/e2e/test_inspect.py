# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime inspect` and `new model --from` with real files and the frameworks that they need."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from pyruntime.runtime.cli import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """`run(*words, status=0)`: the output of a command in this process, which ends with that exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*words, status=0):
        assert main(list(map(str, words))) == status, capsys.readouterr()
        return capsys.readouterr().out

    return run


@pytest.fixture
def onnx_file(tmp_path):
    """`onnx_file(operation, domain)`: a file in which SUM is that operation of A."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnxruntime)")
    onnx = pytest.importorskip("onnx", reason="onnx, which makes the models, is not installed (pip install onnx)")
    helper = onnx.helper

    def write(operation, domain):
        tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 3]) for name in ("A", "B")]
        graph = helper.make_graph(
            [helper.make_node(operation, ["A"], ["B"], domain=domain)], "g", *([t] for t in tensors)
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test", 1)]
        path = tmp_path / "some.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path

    return write


def test_a_backend_without_a_framework(tmp_path, run):
    """The backend's own code runs, by its name; one that completes nothing is a problem."""
    (tmp_path / "some.json").write_text("{}")
    document = json.loads(run("inspect", "some.json", "--backend", "scale", "--json", status=1))
    assert document["problem"] == "the backend 'scale' does not complete configurations"
    assert (document["input"], "operations" in document) == ([], False)


def test_an_onnx_model(tmp_path, run, onnx_file, serving):
    """What inspect says is what a server completes; the folder that `new` writes is served, and its test passes."""
    path = onnx_file("Relu", "")
    document = json.loads(run("inspect", path, "--json"))
    assert (document["max_batch_size"], document["dynamic_batching"], document["operations"]) == (4, True, {"Relu": 1})
    run("new", "model", "mine", "models", "--from", path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "models/mine"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert " passed" in done.stdout, done.stdout
    with serving(tmp_path / "models") as server:
        config = json.loads(server.request("GET", "/v2/models/mine/config").body)
        answer = server.infer("mine", {"A": np.array([[-1, 0, 2]], np.float32)}).as_numpy("B")
    assert answer.tolist() == [[0, 0, 2]]
    for noun in ("input", "output"):
        shown = [{key: each[key] for key in ("name", "data_type", "dims")} for each in config[noun]]
        assert document[noun] == shown


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        ("model.txt", b"tree\nversion=v4\nnum_class=1\nTree=0\nnum_lea"),
        ("model.pt", b""),
    ],
)
def test_a_load_says_of_a_file_what_inspect_says(tmp_path, run, serving, name, data):
    """And no framework reads it: LightGBM ends a process that reads a file which is cut off."""
    path = tmp_path / "models" / "m" / "1" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    found = json.loads(run("inspect", path, "--json", status=1))
    problem = found["problem"]
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(f'backend: "{found["backend"]}"')
    with serving(tmp_path / "models", "--exit-on-error=false", "--strict-readiness=false") as server:
        (row,) = json.loads(server.request("POST", "/v2/repository/index", b"{}").body)
    assert row["state"] == "UNAVAILABLE"
    assert problem in row["reason"]


def test_custom_operations(tmp_path, run, onnx_file, compile_library):
    """They are named without their library; with it the file is read, also as an option of the model that has it."""
    path = onnx_file("Scale", "test")
    said = run("inspect", path, "--json", status=1)
    assert json.loads(said)["custom_operations"] == ["test::Scale"]
    assert f"Load model from {path} failed" in json.loads(said)["problem"]
    library = compile_library("onnx_custom_op.cc", "-DFACTOR=2")
    assert json.loads(run("inspect", path, "--library", library, "--json"))["max_batch_size"] == 4
    run("new", "model", "mine", ".", "--from", path, "--library", library)
    shutil.copy(tmp_path / "mine/1/model.onnx", tmp_path / "mine/1/other.onnx")
    assert json.loads(run("inspect", "mine/1/other.onnx", "--json"))["input"][0]["name"] == "A"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_files_of_torch(tmp_path, run):
    """A program tells its tensors, TorchScript the names of its arguments."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")

    class Sum(torch.nn.Module):
        def forward(self, a, b):
            return torch.relu(a) + b

    rows = torch.export.Dim("rows")
    program = torch.export.export(Sum(), (torch.ones(2, 3), torch.ones(2, 3)), dynamic_shapes=({0: rows}, {0: rows}))
    torch.export.save(program, tmp_path / "sum.pt2")
    torch.jit.script(Sum()).save(tmp_path / "sum.pt")
    document = json.loads(run("inspect", "sum.pt2", "--json"))
    assert [each["name"] for each in (*document["input"], *document["output"])] == ["a", "b", "OUTPUT__0"]
    assert document["operations"] == {"aten::relu": 1, "aten::add": 1}
    document = json.loads(run("inspect", "sum.pt", "--json", status=1))
    assert (document["arguments"], document["operations"]) == (["a", "b"], {"aten::add": 1, "aten::relu": 1})
    assert "declare input and output in config.pbtxt" in document["problem"]


def test_models_of_sklearn(tmp_path, run):
    """Files that the server does not take for a model by their names."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install scikit-learn)")
    skops = pytest.importorskip("skops.io", reason="skops is not installed (pip install skops)")
    from sklearn.linear_model import LinearRegression

    skops.dump(LinearRegression().fit([[0.0, 1.0], [1.0, 0.0]], [0, 1]), tmp_path / "line.skops")
    document = json.loads(run("inspect", "line.skops", "--json"))
    assert (document["backend"], document["input"][0]["dims"]) == ("sklearn", [2])


def test_files_of_jax(tmp_path, run):
    """An export tells its tensors and its custom calls."""
    if find_spec("jax") is None:
        pytest.skip("jax is not installed (pip install jax)")
    # A process in which jax has computed must not fork, as `inspect` does here.
    save = """
import jax
from jax import export
three = jax.ShapeDtypeStruct((3,), "float32")
function = jax.jit(lambda a: jax.ffi.ffi_call("fold", three)(a))
checks = [export.DisabledSafetyCheck.custom_call("fold")]
exported = export.export(function, platforms=["cpu"], disabled_checks=checks)(a=three)
open("some.jax", "wb").write(exported.serialize())
"""
    subprocess.run([sys.executable, "-c", save], check=True, capture_output=True, cwd=tmp_path)
    document = json.loads(run("inspect", "some.jax", "--json"))
    assert (document["backend"], document["input"][0]["name"], document["custom_operations"]) == ("jax", "a", ["fold"])
    run("new", "model", "mine", ".", "--from", "some.jax")
    assert sorted(path.name for path in (tmp_path / "mine").rglob("*.*")) == [
        "config.pbtxt",
        "model.jax",
        "test_mine.py",
    ]


def test_files_of_openvino(tmp_path, run):
    """The file of the weights, of the same name, is copied too."""
    openvino = pytest.importorskip("openvino", reason="openvino is not installed (pip install openvino)")
    from openvino import opset13 as ops

    a = ops.parameter([-1, 3], np.float32, name="A")
    total = ops.add(a, ops.constant(np.ones(3, np.float32)))
    openvino.save_model(openvino.Model([total], [a], "add"), tmp_path / "some.xml")
    document = json.loads(run("inspect", "some.xml", "--json"))
    assert (document["backend"], document["max_batch_size"], document["files"]) == ("openvino", 4, ["some.bin"])
    assert (document["operations"]["Add"], document["custom_operations"]) == (1, [])
    run("new", "model", "mine", ".", "--from", "some.xml")
    assert json.loads(run("inspect", "mine/1/model.xml", "--json"))["input"][0]["name"] == "A"


def test_folders_of_tensorflow(tmp_path, run):
    """A SavedModel may have any name."""
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed (pip install tensorflow-cpu)")
    save = """
import tensorflow as tf
model = tf.Module()
model.f = tf.function(lambda A: {"B": A * 2}, input_signature=[tf.TensorSpec([None, 3], tf.float32)])
tf.saved_model.save(model, "doubling", signatures={"serving_default": model.f})
"""
    subprocess.run([sys.executable, "-c", save], check=True, capture_output=True, cwd=tmp_path)
    document = json.loads(run("inspect", "doubling", "--json"))
    assert (document["backend"], document["max_batch_size"], document["problem"]) == ("tensorflow", 4, "")
    assert (document["operations"]["Mul"], document["custom_operations"]) == (1, [])
    run("new", "model", "mine", ".", "--from", "doubling")
    assert (tmp_path / "mine/1/model.savedmodel/saved_model.pb").is_file()


def test_folders_of_transformers(tmp_path, run):
    """What save_pretrained writes is the version's folder; the architecture tells the task. The test passes."""
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    from tests.tiny_models import bert, language_model

    language_model(tmp_path / "llm")
    bert("ForSequenceClassification", tmp_path / "labels")
    document = json.loads(run("inspect", "llm", "--json"))
    assert (document["backend"], document["input"][0]["name"]) == ("transformers", "text_input")
    run("new", "model", "mine", "models", "--from", "llm")
    assert (tmp_path / "models/mine/1/config.json").is_file()
    run("new", "model", "tasks", "models", "--from", "labels")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "models"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout
    document = json.loads(run("inspect", "models/tasks/1", "--json"))
    assert [each["name"] for each in document["output"]] == ["label", "score"]


def test_broken_files(tmp_path, run):
    """They are a problem that names the file, without a word of a framework; nothing is written for them."""
    (tmp_path / "some.pt").write_bytes(b"")
    assert json.loads(run("inspect", "some.pt", "--json", status=1))["problem"] == f"'{tmp_path / 'some.pt'}' is empty"
    run("new", "model", "mine", ".", "--from", "some.pt", status=1)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("other_environment", [8], indirect=True, ids=["python3.8"])
def test_a_missing_framework(tmp_path, run, other_environment):
    """The message names the package, and the environment that lacks it."""
    (tmp_path / "some.onnx").write_bytes(b"model")
    said = run("inspect", "some.onnx", "--environment", other_environment, "--json", status=1)
    lacking = f"needs the package 'onnxruntime', which its environment does not have: {other_environment} (Python 3.8"
    assert lacking in json.loads(said)["problem"]
