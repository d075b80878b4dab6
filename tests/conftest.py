# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of several parts of the tree need, made once for a whole run: other Pythons, and native libraries."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Examples are no measure of time: on a busy machine any of them may stand still for seconds.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

ROOT = Path(__file__).resolve().parent.parent
HOST = sys.version_info[1]
OTHERS = [minor for minor in range(8, 15) if minor != HOST]


@contextmanager
def _reserve_ports(count: int) -> Iterator[list[int]]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for sock in found:
            sock.bind(("127.0.0.1", 0))
            # Only now: others that ask for any port must not be given this one, a server that asks for it must.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield [sock.getsockname()[1] for sock in found]


@pytest.fixture(scope="session")
def reserve_ports():
    """`with reserve_ports(count) as ports`: ports that a server can have, and that meanwhile nobody else is given.

    A port that is only looked up can be another server's when ours comes to open it, and answer our questions.
    """
    return _reserve_ports


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
def other_environment(request, tmp_path_factory, worker_id):
    """The folder of a virtual environment of another Python, with its own numpy."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    folder = shared / f"environment-3.{request.param}"
    outcome = shared / f"environment-3.{request.param}.outcome"
    with open(shared / f"environment-3.{request.param}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not outcome.exists():
            outcome.write_text(_make_environment(folder, request.param))
    if problem := outcome.read_text():
        pytest.skip(problem)
    return folder


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory):
    """`compile_library(source, *options)`: the path of a library made of a C or C++ file of tests/native.

    It is compiled against our headers, and what was compiled with the same options before is not compiled again.
    """
    compilers = {".c": ["gcc", "-std=c11", "-D_DEFAULT_SOURCE"], ".cc": ["g++", "-std=c++17"]}
    missing = [command for command, *_ in compilers.values() if shutil.which(command) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]} here to compile native libraries with")
    folder = tmp_path_factory.mktemp("libraries")
    strict = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", f"-I{ROOT / 'include'}"]
    strict += os.environ.get("SANITIZERS", "").split()  # as scripts/sanitize has them
    made = {}

    def compile_library(source, *options):
        if (source, options) not in made:
            path = folder / f"lib{len(made)}.so"
            command = [*compilers[Path(source).suffix], *strict, *options, ROOT / "tests/native" / source, "-o", path]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made[source, options] = path
        return made[source, options]

    return compile_library


@pytest.fixture(scope="session")
def install_backends(tmp_path_factory, compile_library):
    """`install_backends(*names)`: a folder with a backend for each C++ file of tests/native of these names."""

    def install_backends(*names):
        folder = tmp_path_factory.mktemp("backends")
        for name in names:
            (folder / name).mkdir()
            shutil.copy(compile_library(f"{name}.cc"), folder / name / f"libtriton_{name}.so")
        return folder

    return install_backends
