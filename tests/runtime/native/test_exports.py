# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extension for native libraries: its name, its functions, and the headers that declare them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyruntime.runtime.native import _triton

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
HEADERS = ROOT / "include" / "triton" / "core"
GENERATED = ROOT / "runtime" / "native" / "triton" / "unsupported.cc"
LISTED = (Path(__file__).parent / "exports.txt").read_text().splitlines()
FUNCTIONS = [line for line in LISTED if not line.startswith("#")]
OURS = "PyInit__triton"
# Enumerators that have no names at run time: libraries have their numbers built in.
NUMBERS = {
    "TRITONSERVER_API_VERSION_MAJOR": 1,
    "TRITONSERVER_API_VERSION_MINOR": 34,
    "TRITONSERVER_BATCH_FIRST_DIM": 2,
    "TRITONSERVER_BATCH_UNKNOWN": 1,
    "TRITONSERVER_INDEX_FLAG_READY": 1,
    "TRITONSERVER_LOG_DEFAULT": 0,
    "TRITONSERVER_LOG_ERROR": 2,
    "TRITONSERVER_LOG_INFO": 0,
    "TRITONSERVER_LOG_ISO8601": 1,
    "TRITONSERVER_LOG_VERBOSE": 3,
    "TRITONSERVER_LOG_WARN": 1,
    "TRITONSERVER_METRIC_KIND_COUNTER": 0,
    "TRITONSERVER_METRIC_KIND_GAUGE": 1,
    "TRITONSERVER_METRIC_KIND_HISTOGRAM": 2,
    "TRITONSERVER_METRIC_PROMETHEUS": 0,
    "TRITONSERVER_MODEL_CONTROL_EXPLICIT": 2,
    "TRITONSERVER_MODEL_CONTROL_NONE": 0,
    "TRITONSERVER_MODEL_CONTROL_POLL": 1,
    "TRITONSERVER_RATE_LIMIT_EXEC_COUNT": 1,
    "TRITONSERVER_RATE_LIMIT_OFF": 0,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": 2,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": 1,
    "TRITONSERVER_REQUEST_RELEASE_ALL": 1,
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": 2,
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": 1,
    "TRITONSERVER_TXN_DECOUPLED": 2,
    "TRITONSERVER_TXN_ONE_TO_ONE": 1,
}


def read(*command):
    """The output of a command for the extension."""
    return subprocess.run([*command, _triton.__file__], capture_output=True, text=True, check=True).stdout


def test_name():
    """Libraries that need libtritonserver.so find the extension that is loaded already."""
    assert "Library soname: [libtritonserver.so]" in read("readelf", "--dynamic", "--wide")


def test_functions():
    """All functions of a server are there, and nothing else."""
    assert len(FUNCTIONS) == 281
    exported = [line.split()[-1] for line in read("nm", "--dynamic", "--defined-only").splitlines()]
    assert sorted(exported) == sorted([*FUNCTIONS, OURS])


def test_generated(tmp_path):
    """The functions without a body of ours are those that have none."""
    generated = tmp_path / "unsupported.cc"
    subprocess.run([sys.executable, ROOT / "scripts" / "generate_unsupported", generated], check=True)
    assert generated.read_text() == GENERATED.read_text()


def test_unsupported(interface):
    """A function that is not supported returns an error that names it."""
    bodies = re.findall(r"^TRITONSERVER_Error\* TRITONSERVER_(\w+)\(", GENERATED.read_text(), re.MULTILINE)
    assert "ServerOptionsNew" in bodies
    for name in bodies:
        assert interface.call(name) == (interface.UNSUPPORTED, f"TRITONSERVER_{name} is not supported")


def compiled(language, source):
    """The errors and warnings of a strict compiler for a source."""
    compiler = shutil.which("g++" if language.startswith("c++") else "gcc")
    if compiler is None:
        pytest.skip("there is no compiler here")
    options = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", f"-I{ROOT / 'include'}"]
    command = [compiler, "-x", *language.split(), *options, "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True).stderr


@pytest.mark.parametrize("header", sorted(path.name for path in HEADERS.glob("*.h")))
@pytest.mark.parametrize("language", ["c -std=c99", "c++ -std=c++11", "c++ -std=c++17"])
def test_headers(header, language):
    """Each header stands alone, in C and in C++."""
    assert compiled(language, f'#include "triton/core/{header}"\n') == ""


def test_numbers():
    """Enumerators have the numbers that libraries were built with."""
    checks = [f'static_assert({name} == {number}, "{name}");' for name, number in NUMBERS.items()]
    assert compiled("c++ -std=c++17", "\n".join(['#include "triton/core/tritonserver.h"', *checks, ""])) == ""
