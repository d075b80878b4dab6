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
    words = set(capsys.readouterr().out.split())
    assert {f"--{name}" for name in OPTIONS} <= words
    assert {"works", "later", "no-op"} <= words


def test_serve_through_typer(capsys):
    """Should typer come to run serve, it is the same serve."""
    from pyruntime.runtime.cli.app import run

    assert run(["serve", "--http-port=x"]) == 1
    assert capsys.readouterr().err == "Error: --http-port needs an integer, not 'x'\n"
