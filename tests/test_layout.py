# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the source tree promises about itself: who imports whom, what may run where, how files open."""

import ast
import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("runtime", "stub", "utils", "backends", "testing")
SPDX = "# SPDX-FileCopyrightText: The pyruntime authors\n# SPDX-License-Identifier: Apache-2.0\n"
IMPURE = {"asyncio", "socket", "os", "subprocess", "time", "threading"}
MODULE_LINES_MAX = 400
HEADERS = sorted(path for path in (ROOT / "include").rglob("*") if path.is_file())

# Each part of the tree and the parts that it must not import: runtime and stub both stand on utils, and on it alone.
FORBIDDEN = {"utils": {"runtime", "stub", "testing"}, "stub": {"runtime", "testing"}, "runtime": {"stub", "testing"}}
# The two packages in utils that models know by names of their own, and the module of the stub that each of them shows.
# They are no part of the language that host and stub share: neither imports them, and they import nothing else.
FACADES = {
    "triton_python_backend_utils": "pyruntime.stub.pb_utils",
    "c_python_backend_utils": "pyruntime.stub.c_pb_utils",
}


def modules(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def is_facade(path):
    return path.parent.name in FACADES


def name_of(path):
    return str(path.relative_to(ROOT))


def each_module(*folders):
    return pytest.mark.parametrize("path", modules(*folders), ids=name_of)


def imported_by(path):
    """The absolute dotted name of everything that a module imports, wherever in it the import stands."""
    package = ["pyruntime", *path.relative_to(ROOT).parent.parts]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            names.update(f"{source}.{alias.name}" for alias in node.names)
    return names


def is_pure(path):
    return "(pure)" in (ast.get_docstring(ast.parse(path.read_text())) or "")


def test_packages_are_those_of_the_tree():
    """setup.cfg lists every folder with an __init__.py, and no other but the one of headers, which has no modules."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    found = {
        init.parent.name if is_facade(init) else ".".join(["pyruntime", *init.relative_to(ROOT).parent.parts])
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
    """What models import is one module of the stub under another name, and the host and the stub do without it."""
    (path,) = modules(f"utils/{facade}")
    assert {name.rpartition(".")[0] for name in imported_by(path)} == {FACADES[facade]}
    assert (path.parent / "py.typed").exists()
    users = [name_of(path) for path in modules(*FORBIDDEN) for name in imported_by(path) if facade in name.split(".")]
    assert users == []


def test_samples_have_tests():
    """Every sample model has unit tests of its own, which show how that is done."""
    samples = {path.name for path in (ROOT / "model_repository").iterdir() if path.is_dir()} - {"__pycache__"}
    assert {path.stem for path in (ROOT / "tests/model_repository").glob("*.py")} == {
        f"test_{name}" for name in samples
    }


@each_module("stub", "utils")
def test_syntax_is_that_of_python_3_8(path):
    """Whatever may run in a stub parses on the oldest Python that a stub runs under."""
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", [path for path in modules(*PACKAGES) if is_pure(path)], ids=name_of)
def test_pure_modules_do_nothing(path):
    """A module marked (pure) imports nothing with which it could wait, read or write."""
    assert {name.split(".")[0] for name in imported_by(path)} & IMPURE == set()


@each_module(*PACKAGES, "tests", "model_repository", "benchmarks", "scripts")
def test_opens_with_its_licence(path):
    """Every file says first whose it is and under which licence."""
    text = path.read_text()
    if text.startswith("#!"):
        text = text.split("\n", 1)[1]
    assert text.startswith(SPDX)


@pytest.mark.parametrize("path", HEADERS, ids=name_of)
def test_headers(path):
    """A header says whose it is, and one of ours is not longer than a reader's patience."""
    lines = path.read_text().splitlines()
    assert [line.lstrip("/* ") for line in lines[:2]] == [line.lstrip("# ") for line in SPDX.splitlines()]
    assert path.suffix == ".h" or len(lines) <= MODULE_LINES_MAX


@each_module("runtime", "stub", "utils", "testing")
def test_modules_are_short(path):
    """No module is longer than a reader's patience."""
    assert len(path.read_text().splitlines()) <= MODULE_LINES_MAX
