# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.metadata

import pytest

from pyruntime.runtime.cli import main
from pyruntime.runtime.cli.options import OPTIONS


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(capsys, word):
    """`pyruntime version` prints the installed version and nothing else."""
    assert main([word]) == 0
    assert capsys.readouterr().out == f"{importlib.metadata.version('pyruntime')}\n"


@pytest.mark.parametrize("words", [["--help"], ["-c"], ["nonsense"], []])
def test_commands_besides_serve_are_typers(words, capsys):
    """Help is a success, anything else that is no command a failure."""
    assert (main(words) == 0) is (words == ["--help"])
    assert "pyruntime" in "".join(capsys.readouterr())


@pytest.mark.parametrize("word", ["--help", "--hel"])
def test_serve_help_has_every_option(word, capsys, monkeypatch):
    """`pyruntime serve --help` names every option and what becomes of it, and starts nothing."""
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["serve", word]) == 0
    words = capsys.readouterr().out.split()
    assert {f"--{name}" for name in OPTIONS} <= {word.partition("=")[0] for word in words}
    assert {"later", "no-op"} <= set(words)


def test_completion(capsys, monkeypatch):
    """A shell completes the options of serve, in any place, and of the other commands."""

    def completed(words):
        monkeypatch.setenv("_PYRUNTIME_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"pyruntime {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
        assert main([]) == 0
        return capsys.readouterr().out.split()

    assert completed("serve --http-po") == ["--http-port"]
    assert completed("serve models --log-file x --log-v") == ["--log-verbose"]
    assert completed("serve --disable-auto-complete-config --model-control") == ["--model-control-mode"]
    assert completed("infer --ur") == ["--url"]
    assert completed("top --int") == ["--interval"]
    assert completed("top --sort lat") == ["latency"]
    assert completed("inspect --li") == ["--library"]
    assert completed("inspect model --backend onnx") == ["onnxruntime"]


def test_help_of_flags(capsys, monkeypatch):
    """A flag is shown without a value, in the help of each command, and no line is longer than the terminal is wide."""
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["infer"], ["new", "backend"], [], ["doctor"], ["serve"]):
        assert main([*words, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        (line,) = [line for line in lines if line.strip("│ ").startswith("--help")]
        assert "<" not in line
