# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel that `pip install` installs, in an environment that has nothing else of ours."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from pyruntime.runtime.cli import main

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyruntime", "runtime", "stub", "utils", "backends", "testing", "include")
FILES = ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")

SAME_OBJECTS = """
import sys
import c_python_backend_utils, triton_python_backend_utils
from pyruntime.stub import c_pb_utils, pb_utils
for facade, module in ((triton_python_backend_utils, pb_utils), (c_python_backend_utils, c_pb_utils)):
    assert facade.__file__.startswith(sys.prefix), facade.__file__
    assert all(getattr(facade, name) is getattr(module, name) for name in module.__all__)
for name in ("utils", "stub", "runtime", "testing", "backends"):
    assert name not in sys.modules
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(f"{name} can be imported")
"""
TEST = """
def test_scale(load_model, tmp_path):
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text('''
        backend: "scale"
        input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
        output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
        parameters { key: "factor" value { string_value: "2" } }
    ''')
    assert load_model(tmp_path / "m").infer({"INPUT": [1, 2]})["OUTPUT"].tolist() == [2, 4]
"""
MODEL = """
import triton_python_backend_utils as pb_utils

def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])

pb_utils.Logger.log_info(5)
"""


pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of a virtual environment with our wheel in it. Its requirements are those of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, source / name)
    # Extensions that are newer than their sources are not compiled again, as long as they lie where the build has them.
    built = source / f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}/pyruntime/runtime/native"
    built.mkdir(parents=True)
    for extension in (source / "runtime/native").glob("*.so"):
        shutil.move(extension, built)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("pyruntime-*.whl")
    # As scripts/wheel does. The program that it runs is installed beside this interpreter.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder / "repaired", wheel]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stderr
    environment = folder / "environment"
    venv.create(environment)
    packages = environment / f"lib/python{sysconfig.get_python_version()}/site-packages"
    (wheel,) = folder.glob("repaired/*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", packages, wheel], check=True)
    # Links in files of that folder are not followed, so that our own sources are not found by it.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def run(environment, *command, **options):
    """The output of a command in the environment."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
    done = subprocess.run(
        [environment / "bin/python", *command], capture_output=True, text=True, env=variables, **options
    )
    return done.stdout + done.stderr


def test_modules(environment, tmp_path):
    """Models' two modules are there, under names of their own, and none of our folders is."""
    assert run(environment, "-c", SAME_OBJECTS, cwd=tmp_path) == ""


def test_extensions(environment, tmp_path):
    """The parts in C and C++ are there."""
    code = (
        "from pyruntime.runtime.native import _http2, _triton; from pyruntime.utils import _frames; "
        "from pyruntime.stub import _plain; "
        "print(_http2.__file__, _triton.__file__, _frames.__file__, _plain.__file__)"
    )
    said = run(environment, "-c", code, cwd=tmp_path).split()
    assert [Path(path).is_relative_to(environment) for path in said] == [True] * 4, said


def test_platform(environment):
    """One wheel is for all versions of Python, and for any Linux that is not older than this one."""
    (wheel,) = environment.parent.glob("repaired/*.whl")
    assert re.fullmatch(r"pyruntime-.*-cp311-abi3-.*manylinux_2_\d+_\w+\.whl", wheel.name)


def test_library(environment, tmp_path):
    """The library for HTTP/2 that is used is the wheel's own."""
    code = "from pyruntime.runtime.native import _http2; print(open('/proc/self/maps').read())"
    said = run(environment, "-c", code, cwd=tmp_path)
    (path,) = {line.split()[-1] for line in said.splitlines() if "libnghttp2" in line}
    assert Path(path).is_relative_to(environment)


def test_command(environment, tmp_path):
    """The command line is whole, and the package has the version that it prints."""
    version = run(environment, "-m", "pyruntime", "version", cwd=tmp_path)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", version)
    assert run(environment, "-c", "import pyruntime; print(pyruntime.__version__)", cwd=tmp_path) == version


def test_folder_of_the_same_name(environment, tmp_path):
    """A folder `pyruntime` where a command runs does not become a part of the package."""
    (tmp_path / "pyruntime/testing").mkdir(parents=True)
    (tmp_path / "pyruntime/testing/plugin.py").write_text("raise AssertionError")
    code = "from pyruntime.testing import plugin; print(plugin.__file__)"
    said = run(environment, "-c", code, cwd=tmp_path)
    assert Path(said.rstrip("\n")).is_relative_to(environment), said


def test_uninstall(environment, tmp_path):
    """An uninstalled wheel leaves no files behind."""
    (wheel,) = environment.parent.glob("repaired/*.whl")
    venv.create(tmp_path / "own", with_pip=True)
    pip = ["-m", "pip", "--disable-pip-version-check"]
    (packages,) = tmp_path.glob("own/lib/python*/site-packages")
    before = files_of(packages)
    run(tmp_path / "own", *pip, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    # Python keeps compiled code beside the sources that it imports.
    run(tmp_path / "own", "-c", "import triton_python_backend_utils, pyruntime.stub.pb_utils")
    assert "pyruntime/__init__.py" in files_of(packages)
    run(tmp_path / "own", *pip, "uninstall", "--yes", "pyruntime")
    assert files_of(packages) == before


def test_headers(environment, tmp_path):
    """The command line says where the headers are, and all of them are there."""
    said = run(environment, "-m", "pyruntime", "--include", cwd=tmp_path)
    folder = Path(said.rstrip("\n"))
    assert folder.is_relative_to(environment)
    assert files_of(folder) == files_of(ROOT / "include")


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("words", [["model"], ["backend", "--python"], ["backend", "--cpp"]], ids=" ".join)
def test_new(environment, tmp_path, words):
    """The wheel has the files that new models and backends are made of."""
    run(environment, "-m", "pyruntime", "new", *words, "from_wheel", cwd=tmp_path)
    assert main(["new", *words, "from_wheel", str(tmp_path / "own")]) == 0
    assert files_of(tmp_path / "from_wheel") == files_of(tmp_path / "own/from_wheel") != []


def test_names_of_commands(environment, tmp_path):
    """There are two commands, ours and Triton's name, and each has its own help."""
    code = (
        "import sys; from importlib.metadata import distribution; sys.argv = ['any', '--help'];"
        "commands = distribution('pyruntime').entry_points.select(group='console_scripts');"
        "print({each.name: each.load()() for each in commands})"
    )
    said = run(environment, "-c", code, cwd=tmp_path)
    assert "{'pyruntime': 0, 'tritonserver': 0}" in said
    assert "Usage: tritonserver --model-repository" in said
    assert "Usage: pyruntime [OPTIONS] COMMAND" in said


def test_page(environment, tmp_path):
    """The files of the page are there."""
    code = "from pyruntime.runtime.frontends.http.page import files; print(files.page_files()['app.js'].contents[:7])"
    assert run(environment, "-c", code, cwd=tmp_path) == "b'// SPDX'\n"


def test_plugin(environment, tmp_path):
    """pytest finds the fixture, and that finds the backends."""
    (tmp_path / "test_it.py").write_text(TEST)
    assert "1 passed" in run(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)


def test_backends(environment, tmp_path):
    """A backend of more than one file is there with all of them."""
    code = "from pyruntime.backends.custom.model import TritonPythonModel; print(TritonPythonModel.__name__)"
    assert run(environment, "-c", code, cwd=tmp_path) == "TritonPythonModel\n"


def test_types(environment, tmp_path):
    """A strict checker knows the types of all that models use."""
    (tmp_path / "model.py").write_text(MODEL)
    found = run(environment, "-m", "mypy", "--strict", "--no-error-summary", "model.py", cwd=tmp_path)
    assert found == (
        'model.py:8: error: Argument 1 to "log_info" of "Logger" has incompatible type "int"; expected "str"'
        "  [arg-type]\n"
    )
