# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `pyruntime inspect` and `new model --from` make of a file; tests/e2e/test_inspect.py has real files."""

import ast
import json
import os

import pytest
from google.protobuf import text_format

from pyruntime.backends.toolkit.contents import Contents
from pyruntime.runtime.cli import inspect_file, main, new_of_file
from pyruntime.runtime.cli.inspection import BY_SUFFIX, Inspection
from pyruntime.runtime.config.parse import parse_model_config

CONFIG = """
name: "other" backend: "onnxruntime" platform: "onnxruntime_onnx" default_model_filename: "some.onnx" max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ 3, -1 ] }
input { name: "S" data_type: TYPE_STRING dims: [ 1 ] reshape { } }
output { name: "B" data_type: TYPE_BF16 dims: [ 2 ] } dynamic_batching { preferred_batch_size: 4 }
instance_group { kind: KIND_CPU count: 2 }
"""


@pytest.fixture
def found(monkeypatch, tmp_path):
    """`found(config, contents, problem)`: what the backend says of some.onnx, which exists, and its path."""
    path = tmp_path / "files" / "some.onnx"
    path.parent.mkdir()
    path.write_bytes(b"model")

    def say(config=CONFIG, contents=None, problem=""):
        inspection = Inspection(path, parse_model_config(config, "config.pbtxt"), contents, problem)
        for module in (inspect_file, new_of_file):
            monkeypatch.setattr(module, "inspect", lambda wanted: inspection)
        return path

    return say


def test_a_table(found, capsys):
    """Properties, then tensors with the protocol's names of datatypes."""
    contents = Contents({"Add": 1, "Scale": 2}, ["test::Scale"], {"w.bin": "w.bin"}, ["a"])
    assert main(["inspect", str(found(contents=contents))]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["batches", "max_batch_size", "4,", "dynamic_batching"] in lines
    assert ["operations", "Scale", "2,", "Add", "1"] in lines
    assert ["other", "files", "w.bin"] in lines
    assert ["input", "A", "FP32", "[3,", "-1]"] in lines
    assert ["input", "S", "BYTES", "[1]"] in lines
    assert not any(line[:1] == ["arguments"] for line in lines)


def test_json(found, capsys):
    """Tensors are as in a configuration, with numbers as numbers."""
    path = found(contents=Contents({"Add": 1}))
    assert main(["inspect", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["input"][0] == {"name": "A", "data_type": "TYPE_FP32", "dims": [3, -1]}
    assert document["input"][1]["reshape"] == {}
    assert (document["file"], document["operations"], document["custom_operations"]) == (str(path), {"Add": 1}, [])


def test_a_problem(found, capsys):
    """The exit status says that a server could not complete the configuration; what is known is shown."""
    path = found('backend: "pytorch"', Contents({"test::x": 1}, ["test::x"], {}, ["a", "b"]), "it does not tell")
    assert main(["inspect", str(path)]) == 1
    out = capsys.readouterr().out
    assert "it does not tell" in out
    assert "a, b" in out
    assert "test::x: by a library in model_operations" in out
    assert "batches" not in out


def test_operations_of_a_large_model(found, capsys):
    """The table has the most frequent ones, --json all."""
    path = found(contents=Contents({f"O{number}": number for number in range(1, 31)}))
    assert main(["inspect", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "operations O30 30, O29 29" in text
    assert "and 10 more" in text


def test_unknown_files(tmp_path, capsys):
    """The message says what is missing."""
    assert main(["inspect", str(tmp_path / "none.onnx")]) == 1
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "a.unknown").touch()
    assert main(["inspect", str(tmp_path / "a.unknown")]) != 0
    assert "name one with --backend; known suffixes are " in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    assert main(["inspect", str(tmp_path / "folder")]) != 0
    assert "is a folder without saved_model.pb or config.json" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "folder" / "config.json").touch()
    assert main(["inspect", str(tmp_path / "folder" / "config.json")]) != 0
    assert "is a part of a model: name its folder" in " ".join(capsys.readouterr().err.split())
    assert {".onnx": "onnxruntime", ".pt2": "pytorch", ".skops": "sklearn"}.items() <= BY_SUFFIX.items()


def test_a_new_model(found, tmp_path, capsys):
    """Its configuration has what the file tells, and nothing that depends on the server; its test is code."""
    path = found(contents=Contents(companions={"w.bin": "w.bin"}))
    (path.parent / "w.bin").write_bytes(b"weights")
    (tmp_path / "ops.so").write_bytes(b"library")
    words = ["--from", str(path), "--library", str(tmp_path / "ops.so"), "--environment", "/environment"]
    assert main(["new", "model", "mine", str(tmp_path / "repository"), *words]) == 0
    folder = tmp_path / "repository" / "mine"
    files = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
    assert files == {"config.pbtxt", "1/model.onnx", "1/w.bin", "ops.so", "test_mine.py"}
    assert {str(folder / name) for name in files} <= set(capsys.readouterr().out.splitlines())
    config = parse_model_config((folder / "config.pbtxt").read_text(), "config.pbtxt")
    assert (config.name, config.max_batch_size, len(config.input), len(config.output)) == ("mine", 4, 2, 1)
    assert (config.platform, config.default_model_filename, len(config.instance_group)) == ("", "", 0)
    assert text_format.MessageToString(config.dynamic_batching) == ""
    assert list(config.model_operations.op_library_filename) == ["ops.so"]
    assert config.parameters["EXECUTION_ENV_PATH"].string_value == "/environment"
    text = (folder / "test_mine.py").read_text()
    ast.parse(text)
    assert '"A": np.zeros((1, 3, 1), "<f4"),' in text
    assert '"S": np.full((1, 1), b"1", np.object_),' in text
    assert 'result["B"].ndim == 2' in text


def test_libraries_of_one_name(found, tmp_path, capsys):
    """Two files cannot have the same place in the folder; nothing is written."""
    libraries = [tmp_path / name / "ops.so" for name in ("a", "b")]
    for each in libraries:
        each.parent.mkdir()
        each.write_bytes(b"library")
    words = [word for each in libraries for word in ("--library", str(each))]
    assert main(["new", "model", "mine", str(tmp_path), "--from", str(found()), *words]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"'{libraries[0]}' and '{libraries[1]}' would both be 'ops.so' in the folder of the model" in said
    assert not (tmp_path / "mine").exists()


def test_a_library_that_is_not_there(tmp_path, capsys):
    """The command says so itself: a backend would explain where models have their libraries."""
    (tmp_path / "some.onnx").write_bytes(b"model")
    assert main(["inspect", str(tmp_path / "some.onnx"), "--library", str(tmp_path / "none.so")]) == 1
    assert f"there is no library '{tmp_path / 'none.so'}'" in " ".join(capsys.readouterr().err.split())


def test_a_new_model_of_unknown_tensors(found, tmp_path, capsys):
    """It has the names of the arguments, and says what is to be corrected; there is no test to run."""
    contents = Contents(arguments=["a", "b"], optional=["b"])
    path = found('name: "x" backend: "pytorch"', contents, "it does not tell")
    assert main(["new", "model", "mine", str(tmp_path), "--from", str(path)]) == 0
    text = (tmp_path / "mine" / "config.pbtxt").read_text()
    config = parse_model_config(text, "config.pbtxt")
    assert text.startswith("# The file does not tell")
    assert [each.name for each in (*config.input, *config.output)] == ["a", "b", "OUTPUT__0"]
    assert [each.optional for each in config.input] == [False, True]
    assert not (tmp_path / "mine" / "test_mine.py").exists()
    out = capsys.readouterr().out
    assert "\npytest " not in out
    assert f"correct those in {tmp_path / 'mine' / 'config.pbtxt'}" in out


def test_a_new_model_that_is_decoupled(found, tmp_path, capsys):
    """Its test takes the responses one by one, and is named as the next step."""
    path = found(CONFIG + "model_transaction_policy { decoupled: true }")
    assert main(["new", "model", "mine", str(tmp_path), "--from", str(path)]) == 0
    text = (tmp_path / "mine" / "test_mine.py").read_text()
    ast.parse(text)
    assert "results = load_model(MODEL).stream(" in text
    assert f"\npytest {tmp_path / 'mine'}" in capsys.readouterr().out


@pytest.mark.parametrize("contents", [None, Contents()])
def test_a_new_model_of_a_broken_file(found, tmp_path, capsys, contents):
    """Nothing is written."""
    path = found('name: "x" backend: "pytorch"', contents, "it is broken")
    assert main(["new", "model", "mine", str(tmp_path), "--from", str(path)]) == 1
    assert "it is broken" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret"])
def test_files_outside_the_folder(found, tmp_path, capsys, name):
    """A file from elsewhere may not have any other file of the machine copied."""
    path = found(contents=Contents(companions={name: "w.bin"}))
    (tmp_path / "secret").write_bytes(b"secret")
    assert main(["new", "model", "mine", str(tmp_path), "--from", str(path)]) == 1
    assert "which is not below its folder" in capsys.readouterr().err
    assert "mine" not in os.listdir(tmp_path)


def test_a_folder(found, tmp_path):
    """It is copied as a whole, and the file of its name in it gets the new name."""
    path = found(contents=Contents(companions={"w.bin": "w.bin"}))
    path.unlink()
    path.mkdir()
    (path / "some.onnx").write_bytes(b"model")
    (path / "w.bin").write_bytes(b"weights")
    assert main(["new", "model", "mine", str(tmp_path), "--from", str(path)]) == 0
    assert {each.name for each in (tmp_path / "mine/1/model.onnx").iterdir()} == {"model.onnx", "w.bin"}


def test_a_name_that_is_none(found, tmp_path, capsys):
    """As for a new model in Python."""
    assert main(["new", "model", "1x", str(tmp_path), "--from", str(found())]) != 0
    assert "cannot be the name" in capsys.readouterr().err
