# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The headers as compilers see them: each by itself, in other standards, with more warnings than most people have."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

INCLUDE = Path(__file__).resolve().parents[2] / "include"
OURS = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.hpp"))
IN_C = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.h"))
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wold-style-cast", "-Werror"]
EXPORTED = {
    f"TRITONBACKEND_{name}"
    for name in (
        "Initialize",
        "ModelInitialize",
        "ModelFinalize",
        "ModelInstanceInitialize",
        "ModelInstanceFinalize",
        "ModelInstanceExecute",
    )
}


@pytest.fixture
def compile_text(tmp_path):
    """`compile_text(text, *options, language="c++")`: the file that it is compiled to."""

    def compile_text(text, *options, language="c++"):
        compiler = {"c++": "g++", "c": "gcc"}[language]
        if shutil.which(compiler) is None:
            pytest.skip(f"there is no {compiler} here")
        command = [compiler, "-x", language, "-", f"-I{INCLUDE}", "-fPIC", "-o", tmp_path / "compiled", *options]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tmp_path / "compiled"

    return compile_text


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
@pytest.mark.parametrize("header", [*OURS, *IN_C])
def test_alone(compile_text, header, standard):
    """A header includes everything that it needs, and may be included twice."""
    text = f"#include <{header}>\n#include <{header}>\n"
    compile_text(text, f"-std={standard}", "-fsyntax-only", *WARNINGS)


@pytest.mark.parametrize("header", IN_C)
def test_in_c(compile_text, header):
    """The headers of the C APIs are C."""
    compile_text(f"#include <{header}>\n", "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", language="c")


def test_example(compile_text):
    """The backend in the comment of backend.hpp is one, and shows nothing but the functions of one."""
    comment = "\n".join(re.findall(r"^//   ?(.*)$", (INCLUDE / "pyruntime/backend.hpp").read_text(), re.MULTILINE))
    assert "PYRUNTIME_BACKEND(Doubler)" in comment
    library = compile_text(comment, "-std=c++17", "-shared", "-fvisibility=hidden", *WARNINGS)
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in symbols.splitlines() if " T " in line} == EXPORTED


def test_no_library_to_link(compile_text):
    """A backend needs no library to link: only the server's C API and the libraries of every C++ program."""
    library = compile_text("#include <pyruntime/backend.hpp>\n" + BACKEND, "-std=c++17", "-shared")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED.*\[(\w+)", needed)) <= {"libstdc", "libm", "libgcc_s", "libc"}


BACKEND = """
class Nothing {
 public:
  explicit Nothing(const pyruntime::Model&) {}
  void Execute(pyruntime::Batch&) {}
};
PYRUNTIME_BACKEND(Nothing)
"""
