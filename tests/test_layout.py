# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of the source tree: who imports whom, what may run where, how files open.

A rule is one test over all files, which lists every file that breaks it.
"""

import ast
import configparser
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pyruntime", "runtime", "stub", "utils", "backends", "testing")
SPDX = ["# SPDX-FileCopyrightText: The pyruntime authors", "# SPDX-License-Identifier: Apache-2.0"]
HEADER_SPDX = [line.lstrip("# ") for line in SPDX]
IMPURE = {"asyncio", "socket", "os", "subprocess", "time", "threading"}
# A module is one idea; one that is longer than this has several.
MODULE_LINES_MAX = 600

HEADERS = sorted(path for path in (ROOT / "include").rglob("*") if path.is_file())

# The backends of frameworks, which run in any environment that has the framework, and what they share.
FRAMEWORKS = (
    "backends/toolkit",
    "backends/onnxruntime",
    "backends/pytorch",
    "backends/sklearn",
    "backends/jax",
    "backends/openvino",
    "backends/tensorflow",
    "backends/tensorrt",
)

# Each part of the tree and the parts that it must not import: runtime and stub both stand on utils, and on it alone.
FORBIDDEN = {"utils": {"runtime", "stub", "testing"}, "stub": {"runtime", "testing"}, "runtime": {"stub", "testing"}}
# The two packages in utils that models know by names of their own, and the module of the stub that each of them shows.
# They are no part of the language that host and stub share: neither imports them, and they import nothing else.
FACADES = {
    "triton_python_backend_utils": "pyruntime.stub.pb_utils",
    "c_python_backend_utils": "pyruntime.stub.c_pb_utils",
}

# Native code that Python can take the place of, and the module that chooses: see utils/fast_path.py. Who imports the
# first one himself has it with --no-fast-path, too; import what you need from the second one, and add it there.
CHOSEN = {
    "pyruntime.runtime.native._codecs": "runtime/native/plain.py",
    "pyruntime.utils._frames": "utils/frames.py",
    "pyruntime.stub._plain": "stub/plain.py",
}


def modules(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def is_facade(path):
    return path.parent.name in FACADES


def name_of(path):
    return str(path.relative_to(ROOT))


def package_of(path):
    """The parts of the name of a module's package. The folder pyruntime has the package that all others are in."""
    parts = path.relative_to(ROOT).parent.parts
    return parts if parts[:1] == ("pyruntime",) else ("pyruntime", *parts)


@cache
def syntax_of(path):
    return ast.parse(path.read_text())


@cache
def imported_by(path):
    """The absolute dotted name of everything that a module imports, wherever in it the import stands."""
    package = package_of(path)
    names = set()
    for node in ast.walk(syntax_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            names.update(f"{source}.{alias.name}" for alias in node.names)
    return names


def is_pure(path):
    return "(pure)" in (ast.get_docstring(syntax_of(path)) or "")


def licence_of(path):
    """The lines of a file that must name its owner and its licence; those of a program follow the first line."""
    lines = path.read_text().splitlines()
    return lines[1:3] if lines[:1] and lines[0].startswith("#!") else lines[:2]


def line_count(path):
    return len(path.read_text().splitlines())


def test_packages_are_those_of_the_tree():
    """setup.cfg lists every folder with an __init__.py, and no other but the one of headers, which has no modules."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    found = {
        init.parent.name if is_facade(init) else ".".join(package_of(init))
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
    }
    assert sorted(listed) == sorted({*found, "pyruntime.include"})


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_direction_of_imports(folder):
    """Host and stub know the language they share, and never each other."""
    parts = FORBIDDEN[folder]
    wrong = [
        (name_of(path), name)
        for path in modules(folder)
        if not is_facade(path)
        for name in sorted(imported_by(path))
        if name.split(".")[0] == "pyruntime" and parts.intersection(name.split(".")[1:2])
    ]
    assert wrong == []


@pytest.mark.parametrize("facade", FACADES)
def test_facades(facade):
    """A facade is one module of the stub under the name that models import; the host and the stub do not import it."""
    (path,) = modules(f"utils/{facade}")
    assert {name.rpartition(".")[0] for name in imported_by(path)} == {FACADES[facade]}
    assert (path.parent / "py.typed").exists()
    users = [name_of(path) for path in modules(*FORBIDDEN) for name in imported_by(path) if facade in name.split(".")]
    assert users == []


@pytest.mark.parametrize("extension", CHOSEN)
def test_native_code_is_chosen_in_one_place(extension):
    """Whatever Python can do as well comes from the module that chooses one of both, so it can be switched off."""
    users = {name_of(path) for path in modules(*FORBIDDEN) for name in imported_by(path) if name.startswith(extension)}
    assert users <= {CHOSEN[extension]}


def test_samples_have_tests():
    """Every sample model has unit tests of its own, which show how that is done."""
    samples = {path.name for path in (ROOT / "model_repository").iterdir() if path.is_dir()} - {"__pycache__"}
    assert {path.stem for path in (ROOT / "tests/model_repository").glob("*.py")} == {
        f"test_{name}" for name in samples
    }


def test_syntax_is_that_of_python_3_8():
    """Modules that may run in a stub parse on the oldest Python that a stub runs under."""
    wrong = {}
    for path in modules("stub", "utils", *FRAMEWORKS):
        try:
            ast.parse(path.read_text(), feature_version=(3, 8))
        except SyntaxError as error:
            wrong[name_of(path)] = str(error)
    assert wrong == {}


def test_pure_modules_do_nothing():
    """A module marked (pure) imports nothing with which it could wait, read or write."""
    pure = [path for path in modules(*PACKAGES) if is_pure(path)]
    assert pure
    wrong = {name_of(path): found for path in pure if (found := IMPURE & {n.split(".")[0] for n in imported_by(path)})}
    assert wrong == {}


def test_opens_with_its_licence():
    """Every Python file and every header names its owner and its licence first."""
    files = modules(*PACKAGES, "tests", "model_repository", "benchmarks", "scripts")
    assert [name_of(path) for path in files if licence_of(path) != SPDX] == []
    wrong = [name_of(path) for path in HEADERS if [line.lstrip("/* ") for line in licence_of(path)] != HEADER_SPDX]
    assert wrong == []


def test_files_are_short():
    """No module, and no header of ours, is longer than one idea needs."""
    files = modules("runtime", "stub", "utils", "testing") + [path for path in HEADERS if path.suffix != ".h"]
    assert {name_of(path): count for path in files if (count := line_count(path)) > MODULE_LINES_MAX} == {}
