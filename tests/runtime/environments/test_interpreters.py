# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Pythons are known by running them."""

import asyncio
import os
import sys

import numpy as np
import pytest

from pyruntime.runtime.environments.interpreters import Examined, examine, find, find_uv, require_fit
from pyruntime.utils.errors import LoadError

pytestmark = pytest.mark.processes

OURS = sys.version_info[:3]


def ask(interpreter, variables=os.environ):
    return asyncio.run(examine(str(interpreter), variables))


def test_ours():
    """A Python says its version, its numpy and its path."""
    found = ask(sys.executable)
    assert (found.version, found.numpy, found.problem) == (OURS, np.__version__, "")
    assert found.version_text == "{}.{}.{}".format(*OURS)
    assert os.__file__.rpartition("/")[0] in found.path


def test_other(other_environment):
    """Every other Python is accepted, too."""
    found = ask(other_environment / "bin" / "python")
    assert found.version[:2] == tuple(map(int, other_environment.name.partition("-")[2].split(".")))
    assert found.numpy
    require_fit(found, "python", "")


def test_numpy_that_prints(tmp_path):
    """Other output of the Python at its start and end is ignored."""
    (tmp_path / "numpy.py").write_text(
        "import atexit; __version__ = '1.2'; print('hello'); atexit.register(print, 'bye')"
    )
    assert ask(sys.executable, {"PYTHONPATH": str(tmp_path)}).numpy == "1.2"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import libmissing", "has a numpy that cannot be imported: ModuleNotFoundError: No module named 'libmissing'"),
        ("raise SystemExit(3)", "has a numpy that cannot be imported: SystemExit: 3"),
    ],
)
def test_broken_numpy(tmp_path, source, message):
    """A numpy that cannot be imported is not one that is missing, and says why itself."""
    (tmp_path / "numpy.py").write_text(source)
    found = ask(sys.executable, {"PYTHONPATH": str(tmp_path)})
    with pytest.raises(LoadError, match=message):
        require_fit(found, sys.executable, "install it")


@pytest.mark.parametrize(
    "problem", ["ModuleNotFoundError: No module named 'numpy'", "ImportError: No module named numpy"]
)
def test_no_numpy(problem):
    """Where numpy is missing, the error says where, and what to do."""
    with pytest.raises(LoadError, match=r"'/py' has no numpy, without which no model can run: install it$"):
        require_fit(Examined((3, 9, 1), "", problem, ()), "/py", "install it")


def test_too_old():
    """For a Python that is too old, the error is its version, even if it lacks numpy, too."""
    with pytest.raises(LoadError, match=r"'/py' is Python 3\.7\.16, and models run under Python 3\.8 or newer"):
        require_fit(Examined((3, 7, 16), "", "ImportError: No module named numpy", ()), "/py", "install it")
    require_fit(Examined((3, 8, 0), "1.19.5", "", ()), "/py", "")


def test_no_python(tmp_path, program):
    """A program that answers something else is no Python."""
    with pytest.raises(LoadError, match=r"/echo' is no Python: it was asked what it is, and said 'hello\\n'"):
        ask(program(tmp_path / "echo", "echo hello"))


def test_not_a_program(tmp_path):
    """A file that cannot be executed is an error in one sentence."""
    path = tmp_path / "python"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)
    with pytest.raises(LoadError, match="cannot be started: Exec format error"):
        ask(path)


def test_find_ours():
    """Our own Python is taken wherever it will do."""
    found = asyncio.run(find(""))
    assert found.interpreter == sys.executable
    assert asyncio.run(find(f">={OURS[0]}.{OURS[1]}")) == found
    assert found.tag.startswith("{}.{}.{} linux ".format(*OURS))


def test_find_on_path(tmp_path, monkeypatch, program):
    """Else the newest on PATH that will do; a shim that leads to none is passed over, like one that is too old."""
    says = 'printf \'pyruntime examines {"version": [3, %d, 1], "numpy": "", "problem": "", "path": []}\''
    program(tmp_path / "python3.9", says % 9)
    program(tmp_path / "python3.10", says % 10)
    program(tmp_path / "python3.12", "echo no such version >&2", "exit 127")
    program(tmp_path / "python3", says % 7)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert asyncio.run(find("<3.11")).interpreter == str(tmp_path / "python3.10")
    assert asyncio.run(find("~=3.9.0")).interpreter == str(tmp_path / "python3.9")
    assert asyncio.run(find("<3.8")) is None
    assert asyncio.run(find(">=4")) is None


def test_find_uv(tmp_path, monkeypatch, program):
    """uv is looked for beside our own Python, which need not be on PATH, and then on PATH."""
    on_path = program(tmp_path / "path" / "uv")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert find_uv() == on_path
    beside = program(tmp_path / "bin" / "uv")
    assert find_uv() == beside
