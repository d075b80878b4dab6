# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What files and folders are by their looks; tests/e2e/test_inspect.py has those that frameworks write."""

import io
import json
import pickle
import zipfile

import pytest

from pyruntime.runtime.cli.model_files import fault_of, pipeline_of

PICKLE = pickle.dumps({"a": 1})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
CUT_OFF = "is cut off"


def archive(name="m/constants.pkl"):
    """The bytes of an archive with one file: that of TorchScript by default."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as opened:
        opened.writestr(name, b"content")
    return written.getvalue()


def safetensors(size):
    """The bytes of a file with one tensor."""
    header = json.dumps({"__metadata__": {}, "a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


@pytest.mark.parametrize(
    ("name", "backend", "data"),
    [
        ("m.onnx", "onnxruntime", b"\x08\x08"),
        ("m.pt", "pytorch", archive()),
        ("m.pt2", "pytorch", archive("m/archive_format")),
        ("m.pt", "pytorch", PICKLE),
        ("m.py", "pytorch", b"class A(torch.nn.Module): pass"),
        ("m.skops", "sklearn", archive("schema.json")),
        ("m.pkl", "sklearn", PICKLE),
        ("m.json", "sklearn", b'{"learner":{}}\n'),
        ("m.json", "vllm", b'{"model":"m"}'),
        ("m.ubj", "sklearn", b"{L\x00}"),
        ("m.txt", "sklearn", b"tree\nversion=v4\nend of trees\nparameters:"),
        ("m.txt", "sklearn", b"tree\nversion=v2\n"),
        ("m.xml", "openvino", b"<net></net>\n"),
    ],
)
def test_files_that_may_be_right(tmp_path, name, backend, data):
    """The backend reads them."""
    (tmp_path / name).write_bytes(data)
    assert fault_of(tmp_path / name, backend) == ""


@pytest.mark.parametrize(
    ("name", "backend", "data", "said"),
    [
        ("m.onnx", "onnxruntime", b"", "is empty"),
        ("m.onnx", "onnxruntime", POINTER, "is a pointer of Git LFS"),
        ("m.onnx", "onnxruntime", PICKLE, "is a pickle of Python, and no onnx"),
        ("m.pt", "pytorch", archive()[:-30], CUT_OFF),
        ("m.skops", "sklearn", archive()[:-30], CUT_OFF),
        ("m.skops", "sklearn", b"text", "is no file of skops"),
        ("m.json", "sklearn", b'{"learner":{', CUT_OFF),
        ("m.json", "sklearn", b'{"other":{}}', "is no model of XGBoost"),
        ("m.ubj", "sklearn", b"{L\x00", CUT_OFF),
        ("m.txt", "sklearn", b"tree\nversion=v4\nTree=0", CUT_OFF),
        ("m.xml", "openvino", b"<net><lay", CUT_OFF),
        ("m.safetensors", "pytorch", b"\x02\0\0\0", CUT_OFF),
        ("m.safetensors", "pytorch", b"\x03\0\0\0\0\0\0\0{}", CUT_OFF),
        ("m.safetensors", "pytorch", safetensors(8)[:-1], CUT_OFF),
        ("m.safetensors", "pytorch", b"\x02\0\0\0\0\0\0\0{}", "has weights and no program: put model.py"),
        ("m.py", "pytorch", b"class TritonPythonModel: pass", "is a model in Python"),
        ("m.pb", "tensorflow", b"\x08", "reads a folder that has saved_model.pb"),
    ],
)
def test_files_that_are_wrong(tmp_path, name, backend, data, said):
    """The message names the file, and what is wrong with it."""
    path = tmp_path / name
    path.write_bytes(data)
    found = fault_of(path, backend)
    assert found.startswith(f"'{path}' ")
    assert said in found


def test_weights(tmp_path):
    """They belong to a module next to them, or to a folder of save_pretrained."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (tmp_path / "config.json").write_text("{}")
    assert "name its folder" in fault_of(path, "pytorch")
    (tmp_path / "model.py").touch()
    assert fault_of(path, "pytorch") == ""


@pytest.mark.parametrize("data", [safetensors(8), safetensors(0), b"\x02\0\0\0\0\0\0\0[]"])
def test_weights_that_may_be_right(tmp_path, data):
    """The framework says what else may be wrong with their header."""
    (tmp_path / "model.py").touch()
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    assert fault_of(path, "pytorch") == ""


def test_folders(tmp_path):
    """Backends that read folders find one file in each."""
    folder = tmp_path / "some.onnx"
    folder.mkdir()
    assert "reads a file: name the file" in fault_of(folder, "pytorch")
    for backend, member in (
        ("onnxruntime", "some.onnx"),
        ("tensorflow", "saved_model.pb"),
        ("transformers", "config.json"),
    ):
        assert f"has no file {member}, by which the backend '{backend}'" in fault_of(folder, backend)
        (folder / member).touch()
        assert fault_of(folder, backend) == f"'{folder / member}' is empty"
        (folder / member).write_bytes(b"{}")
        assert fault_of(folder, backend) == ""


def test_tasks(tmp_path):
    """The architecture names the pipeline. A language model has none, nor has what is not understood."""
    tasks = {"BertForSequenceClassification": "text-classification", "BertModel": "feature-extraction"}
    for name, task in {**tasks, "LlamaForCausalLM": "", "GPT2LMHeadModel": ""}.items():
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
        assert pipeline_of(tmp_path) == task
    for text in ("{", "[]", "{}", '{"architectures": null}', '{"architectures": [1]}'):
        (tmp_path / "config.json").write_text(text)
        assert pipeline_of(tmp_path) == ""
