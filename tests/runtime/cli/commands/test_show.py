# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The output of commands."""

import json

import pytest

from pyruntime.runtime.cli.commands.client import Refused, Unreachable, WrongUsage
from pyruntime.runtime.cli.commands.show import print_json, progress, run_command, show_table


@pytest.mark.parametrize(("kind", "status"), [(Refused, 1), (WrongUsage, 2), (Unreachable, 3)])
def test_failures(kind, status, capsys):
    """Each kind of failure has its exit status; text from a server cannot act on the terminal."""

    def command():
        raise kind("no \x1b[2J\nat all")

    assert run_command(command) == status
    assert capsys.readouterr() == ("", "Error: no \\u001b[2J\nat all\n")


def test_success(capsys):
    """The status is the command's own."""
    assert run_command(lambda: 0) == 0
    assert capsys.readouterr() == ("", "")


def test_interruption():
    """Ctrl-C is no failure of ours."""

    def command():
        raise KeyboardInterrupt

    assert run_command(command) == 130


def test_json(capsys):
    """One line, which any machine can read."""
    print_json({"a": ["ü\n\x9b"]})
    line = capsys.readouterr().out
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line) == {"a": ["ü\n\x9b"]}


def test_table(capsys, monkeypatch):
    """Cells have lines, and nothing in them is markup or acts."""
    monkeypatch.setenv("COLUMNS", "60")
    show_table(("Name", "Count"), [("[red]a[/red]\nb\x1b", "1"), ("c", "10")], right=("Count",))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split() for line in lines] == [["Name", "Count"], ["[red]a[/red]", "1"], ["b\\u001b"], ["c", "10"]]
    assert len({len(line) for line in lines if "u001b" not in line}) == 1, "numbers end where their heading does"


def test_narrow_table(capsys, monkeypatch):
    """A name stays whole in a narrow terminal; the other columns give way."""
    monkeypatch.setenv("COLUMNS", "40")
    show_table(["Model", "Reason"], [["a-model-with-a-long-name", "it could not be loaded because of that"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("a-model-with-a-long-name  ")
    assert max(map(len, lines)) <= 40


def test_progress_leaves_no_trace(capsys):
    """Without a terminal there is no output."""
    with progress("[red]x\x1b"):
        pass
    assert capsys.readouterr() == ("", "")
