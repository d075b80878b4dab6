# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Environments are built of a model's requirements, with uv or with pip, once."""

import asyncio
import os
import shutil
import subprocess
import sys

import pytest

from pyruntime.runtime.environments import build, interpreters
from pyruntime.runtime.environments.build import build_from_requirements, build_from_script, read_requirements
from pyruntime.runtime.environments.interpreters import find_uv
from pyruntime.utils.errors import LoadError

pytestmark = pytest.mark.processes

UV = find_uv()


@pytest.fixture(params=["pip", "uv"])
def builder(request, monkeypatch, no_index):
    """Has environments be built by one of the two programs, of packages that are here."""
    if request.param == "uv" and not UV:
        pytest.skip("there is no uv here")
    monkeypatch.setattr(build, "find_uv", lambda: UV if request.param == "uv" else None)
    return request.param


def versions(folder):
    """The packages of the tests that are in an environment, with their versions, and its Python's."""
    code = (
        "import sys, importlib.util, importlib\n"
        "for name in ('numpy', 'tiny'):\n"
        "    if importlib.util.find_spec(name): print(name, importlib.import_module(name).__version__)\n"
        "print('%d.%d' % sys.version_info[:2])"
    )
    run = subprocess.run([f"{folder}/bin/python", "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.split("\n")[:-1]


OURS = "{}.{}".format(*sys.version_info)


def test_requirements(root, tmp_path, builder, monkeypatch):
    """The requirements and numpy are installed; the environment is used again, also for the same ones elsewhere."""
    (tmp_path / "requirements.txt").write_text("-r more.txt\n# nothing else\n")
    (tmp_path / "more.txt").write_text("tiny<2\n")
    folder = asyncio.run(build_from_requirements(str(root), str(tmp_path / "requirements.txt")))
    assert versions(folder) == ["numpy 99.0", "tiny 1.0", OURS]
    monkeypatch.setattr(build, "run", None)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "req.txt").write_text("tiny<2")
    assert asyncio.run(build_from_requirements(str(root), str(elsewhere / "req.txt"))) == folder


def test_script(root, tmp_path, builder):
    """A Python file has its own requirements; its other contents do not matter."""
    path = tmp_path / "model.py"
    path.write_text('# /// script\n# requires-python = ">=3.8"\n# dependencies = ["tiny"]\n# ///\nwhat is this\n')
    folder = asyncio.run(build_from_script(str(root), str(path)))
    assert versions(folder) == ["numpy 99.0", "tiny 1.0", OURS]
    path.write_text(path.read_text() + "\nimport tiny\n")
    assert asyncio.run(build_from_script(str(root), str(path))) == folder


def test_failure(root, tmp_path, builder):
    """A package that cannot be installed is named in the error; nothing is left of the environment."""
    path = tmp_path / "requirements.txt"
    path.write_text("no-such-package-anywhere\n")
    with pytest.raises(
        LoadError, match=r"(?s)filling the environment of '.*requirements\.txt' failed: .*no-such-package"
    ):
        asyncio.run(build_from_requirements(str(root), str(path)))
    assert [name.endswith(".lock") for name in os.listdir(root)] == [True]


def test_what_is_asked_of_uv(root, tmp_path, monkeypatch, program):
    """uv makes the environment in its place, and fills it from the file itself, with its folder as the current one."""
    script = program(tmp_path / "uv", f'echo "$PWD" "$@" >> {tmp_path}/said', '[ "$1" = venv ] && mkdir "$5" || true')
    monkeypatch.setattr(build, "find_uv", lambda: script)
    path = tmp_path / "requirements.txt"
    path.write_text("-e ./package\n")
    folder = asyncio.run(build_from_requirements(str(root), str(path)))
    assert (tmp_path / "said").read_text().splitlines() == [
        f"{tmp_path} venv --no-project --python {sys.executable} {folder}",
        f"{tmp_path} pip install --python {folder}/bin/python -r {path} numpy",
    ]


def test_python_that_is_not_here(root, tmp_path, monkeypatch, program):
    """uv is asked for a Python that is not installed; without uv the error says what to install."""
    path = tmp_path / "model.py"
    path.write_text('# /// script\n# requires-python = "<3.8"\n# ///\n')
    monkeypatch.setattr(build, "find_uv", lambda: None)
    with pytest.raises(LoadError, match=r"model\.py' requires Python <3\.8, and there is none on PATH .*or uv"):
        asyncio.run(build_from_script(str(root), str(path)))
    script = program(tmp_path / "uv", f'echo "$@" >> {tmp_path}/said', '[ "$1" = venv ] && mkdir "$5" || true')
    monkeypatch.setattr(build, "find_uv", lambda: script)
    folder = asyncio.run(build_from_script(str(root), str(path)))
    assert (tmp_path / "said").read_text().splitlines() == [
        f"venv --no-project --python <3.8 {folder}",
        f"pip install --python {folder}/bin/python numpy",
    ]


@pytest.mark.parametrize("other_environment", [8], indirect=True, ids=["python3.8"])
def test_other_python(root, tmp_path, other_environment, builder, monkeypatch):
    """The environment is of the Python that the script requires, where that is on PATH."""
    found = shutil.which("python3", path=other_environment / "bin")
    minor = int(other_environment.name.rpartition(".")[2])
    monkeypatch.setattr(interpreters.shutil, "which", lambda name: found if name == f"python3.{minor}" else None)
    path = tmp_path / "model.py"
    path.write_text(f'# /// script\n# requires-python = "==3.{minor}.*"\n# ///\n')
    folder = asyncio.run(build_from_script(str(root), str(path)))
    assert versions(folder) == ["numpy 99.0", f"3.{minor}"]


def test_read_requirements(tmp_path):
    """Files are read with all that they include, each once, from the folder of whichever includes it."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("-r sub/b.txt\n-c c.txt\nfirst\n")
    (tmp_path / "sub" / "b.txt").write_text("-r ../a.txt\nsecond")
    (tmp_path / "c.txt").write_text("-r d.txt\n")
    (tmp_path / "d.txt").write_text("\ufefflimit<2\n", encoding="utf-8")
    assert read_requirements(str(tmp_path / "a.txt")) == (("first", "second"), ("limit<2",))


def test_requirements_that_include_a_lot(tmp_path, monkeypatch):
    """There is an end to how many files are read, and to how large they are."""
    path = tmp_path / "0.txt"
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt")
    (tmp_path / "4.txt").touch()
    monkeypatch.setattr(build, "FILES_MAX", 5)
    read_requirements(str(path))
    monkeypatch.setattr(build, "FILES_MAX", 4)
    with pytest.raises(LoadError, match=r"0\.txt' includes more than 4 files"):
        read_requirements(str(path))
    monkeypatch.setattr(build, "FILE_BYTES_MAX", 3)
    with pytest.raises(LoadError, match=r"0\.txt' is larger than 3 bytes"):
        read_requirements(str(path))


def test_what_cannot_be_read(tmp_path):
    """A file that is missing, or no text."""
    path = tmp_path / "requirements.txt"
    path.write_text("-r missing.txt")
    with pytest.raises(LoadError, match=r"missing\.txt', which says what a model needs, cannot be read: No such file"):
        read_requirements(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(LoadError, match="is not text in UTF-8"):
        read_requirements(str(path))
