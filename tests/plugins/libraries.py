# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native libraries for tests, compiled once.

A compiled library stays in build/tests and is not compiled again as long as its source, the headers and the compiler
are the same: neither by another worker nor in the next run.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from .processes import allowed

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "tests/native"
FOLDER = ROOT / "build/tests"
COMPILERS = {".c": ["gcc", "-std=c11", "-D_DEFAULT_SOURCE"], ".cc": ["g++", "-std=c++17"]}
STRICT = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", f"-I{ROOT / 'include'}"]


@cache
def _headers():
    """A digest of all that a source may include."""
    digest = hashlib.sha256()
    for folder in (ROOT / "include", SOURCES):
        for path in sorted(path for path in folder.rglob("*.h*") if path.is_file()):
            digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.digest()


def _compile(source, options):
    """The path of a library, which is compiled now unless that was done before."""
    compiler = COMPILERS[source.suffix]
    sanitizers = os.environ.get("SANITIZERS", "").split()  # as scripts/sanitize has them
    command = [*compiler, *STRICT, *sanitizers, *map(str, options), str(source)]
    program = Path(shutil.which(compiler[0])).resolve().stat()
    made_of = f"{program.st_size} {program.st_mtime_ns}".encode() + source.read_bytes() + _headers()
    digest = hashlib.sha256(made_of).hexdigest()
    folder = FOLDER / hashlib.sha256(str(command).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    path, stamp = folder / f"lib{source.stem}.so", folder / "made-of"
    with open(folder / "lock", "w") as lock, allowed():
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != digest:
            unfinished = folder / "unfinished"
            done = subprocess.run([*command, "-o", unfinished], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            unfinished.rename(path)
            stamp.write_text(digest)
    return path


@pytest.fixture(scope="session")
def compile_library():
    """`compile_library(source, *options)`: the path of a library made of a C or C++ file of tests/native.

    It is compiled against our headers. Tests must not write to the library, nor beside it.
    """
    missing = [command for command, *_ in COMPILERS.values() if shutil.which(command) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]} here to compile native libraries with")
    return lambda source, *options: _compile(SOURCES / source, options)


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
