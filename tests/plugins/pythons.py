# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Other Pythons of this machine, each with a virtual environment that all workers of a run share."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import allowed

HOST = sys.version_info[1]
OTHERS = [minor for minor in range(8, 15) if minor != HOST]


def find_python(minor):
    """A Python 3.`minor` of this machine that works, None if there is none."""
    installed = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [shutil.which(f"python3.{minor}"), *sorted(installed.glob(f"3.{minor}.*/bin/python"))]
    for python in filter(None, found):
        check = [python, "-c", f"import sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"]
        if subprocess.run(check, capture_output=True).returncode == 0:
            return str(python)
    return None


def _make_environment(folder, minor):
    """Make a virtual environment with numpy and nothing else; what went wrong, "" if nothing did."""
    python = find_python(minor)
    if python is None:
        return f"there is no Python 3.{minor} here"
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    # By our own pip, which need not run under the other Python.
    target = folder / "lib" / f"python3.{minor}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=1", "--only-binary=:all:"]
    command = [*pip, f"--python-version=3.{minor}", f"--target={target}", "numpy"]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"pip has no numpy for Python 3.{minor}: {done.stderr[-500:]}" if done.returncode else ""


@pytest.fixture(scope="session", params=OTHERS, ids=[f"python3.{minor}" for minor in OTHERS])
def other_environment(request, tmp_path_factory):
    """The folder of a virtual environment of another Python, with its own numpy."""
    shared = tmp_path_factory.getbasetemp()
    # A worker has a folder of its own below that of the run. Failed tests are run once more without xdist, and workers.
    if hasattr(request.config, "workerinput"):
        shared = shared.parent
    folder = shared / f"environment-3.{request.param}"
    outcome = shared / f"environment-3.{request.param}.outcome"
    with open(shared / f"environment-3.{request.param}.lock", "w") as lock, allowed():
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not outcome.exists():
            outcome.write_text(_make_environment(folder, request.param))
    if problem := outcome.read_text():
        pytest.skip(problem)
    return folder
