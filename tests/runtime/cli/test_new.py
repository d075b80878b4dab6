# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The files that `pyruntime new` writes, and the cases that it refuses; tests/e2e/test_new.py serves what it wrote."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from pyruntime.runtime.cli import main

MODEL = {"1/model.py", "config.pbtxt", "test_mine.py"}
PYTHON = {
    "README.md",
    "backends/mine/model.py",
    "model_repository/mine_sample/1/.keep",
    "model_repository/mine_sample/config.pbtxt",
    "tests/test_mine.py",
}
CPP = PYTHON - {"backends/mine/model.py"} | {".gitignore", "CMakeLists.txt", "src/mine.cc"}
KINDS = [(["model"], MODEL), (["backend", "--python"], PYTHON), (["backend", "--cpp"], CPP)]
IDS = ["model", "python", "cpp"]


@pytest.mark.parametrize(("words", "files"), KINDS, ids=IDS)
def test_files(tmp_path, capsys, words, files):
    """All files are there and are named, and nothing in them is left to be filled."""
    assert main(["new", *words, "mine", str(tmp_path / "below")]) == 0
    folder = tmp_path / "below/mine"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == files
    out, err = capsys.readouterr()
    assert {str(folder / name) for name in files} <= set(out.splitlines())
    assert err == ""
    for name in files:
        assert re.findall(r"@\w+@|\bMine\b(?!Model)", (folder / name).read_text()) == [], name
        if name.endswith(".py"):
            ast.parse((folder / name).read_text())
        if name.endswith(".pbtxt"):
            assert f'"{(folder / name).parent.name}"' in (folder / name).read_text()


@pytest.mark.parametrize("words", [words for words, _ in KINDS], ids=IDS)
def test_here(tmp_path, monkeypatch, words, capsys):
    """In the folder that one is in, unless said otherwise."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", *words, "mine"]) == 0
    assert os.listdir() == ["mine"]
    assert "pytest" in capsys.readouterr().out


@pytest.mark.parametrize("words", [words for words, _ in KINDS], ids=IDS)
@pytest.mark.parametrize("found", [None, "pytest"])
def test_without_pytest(tmp_path, monkeypatch, words, found, capsys):
    """An installation has no pytest, and the commands that are named install it where it is not there."""
    monkeypatch.setattr("pyruntime.runtime.cli.new.find_spec", {"pytest": found}.get)
    assert main(["new", *words, "mine", str(tmp_path)]) == 0
    commands = capsys.readouterr().out.split("\n\n")[1]
    assert commands.startswith("pip install pytest\n") is (found is None)
    assert re.search(r"^(cd .* && )?pytest", commands, re.MULTILINE)


@pytest.mark.parametrize("words", [words for words, _ in KINDS], ids=IDS)
@pytest.mark.parametrize("there", ["folder", "file", "link to nowhere"])
def test_what_is_there(tmp_path, capsys, words, there):
    """It is never written to."""
    path = tmp_path / "mine"
    if there == "folder":
        path.mkdir()
    elif there == "file":
        path.write_text("kept")
    else:
        path.symlink_to(tmp_path / "nowhere")
    assert main(["new", *words, "mine", str(tmp_path)]) == 1
    assert capsys.readouterr() == ("", f"Error: '{path}' is there already, and was left as it is\n")
    assert os.listdir(tmp_path) == ["mine"]
    assert not path.is_dir() or os.listdir(path) == []


def test_nowhere(tmp_path, capsys):
    """A folder that cannot be made is no traceback."""
    (tmp_path / "file").touch()
    assert main(["new", "model", "mine", str(tmp_path / "file/below")]) == 1
    assert capsys.readouterr().err == f"Error: '{tmp_path}/file/below' cannot be written: Not a directory\n"
    assert main(["new", "model", "mine", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"Error: '{tmp_path}/file' is there already, and was left as it is\n"


@pytest.mark.parametrize("words", [words for words, _ in KINDS], ids=IDS)
def test_names(tmp_path, capsys, words):
    """A bad name is wrong usage, and no file is written."""
    assert main(["new", *words, "../mine", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("Error: '../mine' cannot be the name: it must begin with a letter")
    assert os.listdir(tmp_path) == []


def test_language(tmp_path, capsys):
    """A new backend has no default language."""
    assert main(["new", "backend", "mine", str(tmp_path)]) == 2
    assert "--cpp" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_include(capsys):
    """The folder of the headers alone, for $(...) on the command line of a compiler."""
    assert main(["--include"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    for header in ("pyruntime/backend.hpp", "triton/core/tritonbackend.h", "custom.h"):
        assert (Path(line) / header).is_file()
