# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The fixture in a pytest of its own, as it is in the tests of people who write models."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pyruntime.testing

pytestmark = pytest.mark.processes

PYTEST = str(Path(sys.executable).with_name("pytest"))
MODEL = """
import triton_python_backend_utils as pb_utils
TOP

class TritonPythonModel:
    def initialize(self, args):
        print("loaded", args["model_name"])
    def execute(self, requests):
        EXECUTE
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
    def finalize(self):
        print("finalized")
        END
"""
CONFIG = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""


@pytest.fixture
def project(tmp_path):
    """A folder with the model `models/echo`; runs pytest there on a test file, and returns what that printed."""

    def run(tests, end="", folder=".", options=(), top="", execute=""):
        model = tmp_path / "models/echo/1"
        model.mkdir(parents=True)
        code = MODEL.replace("END", end).replace("TOP", top).replace("EXECUTE", execute)
        (model / "model.py").write_text(code)
        (model.parent / "config.pbtxt").write_text(CONFIG)
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        (tmp_path / "tests").mkdir()
        (tmp_path / "tests/test_it.py").write_text(textwrap.dedent(tests))
        command = [PYTEST, "-q", "-rA", "-p", "no:cacheprovider", *options, str(tmp_path / "tests")]
        return subprocess.run(command, cwd=tmp_path / folder, capture_output=True, text=True).stdout

    return run


def test_load_model(project):
    """A model is loaded, asked, and closed after the test; paths begin at the root, wherever pytest is started."""
    out = project(
        """
        def test_echo(load_model):
            assert load_model("models/echo").infer({"IN": [1]})["OUT"].tolist() == [1]
            print("asked")
        """,
        folder="tests",
    )
    assert "1 passed" in out
    assert out.index("loaded echo") < out.index("asked") < out.index("finalized")


def test_paths_of_callees(project):
    """Paths of callees begin there, too; other callees are left as they are."""
    out = project(
        """
        def test_echo(load_model):
            model = load_model("models/echo", callees={"a": "models/echo", "b": len}, backend_directory="models")
            assert model._instance.callees.has("a", "1") and model._instance.callees.has("b", "")
        """,
        folder="tests",
    )
    assert "1 passed" in out
    assert out.count("finalized") == 2


def test_end_that_fails(project):
    """An exception in finalize is an error of the test."""
    out = project("def test_echo(load_model): load_model('models/echo')", end="raise ValueError('at the end')")
    assert "1 passed, 1 error" in out
    assert "ValueError: at the end" in out


def test_failures_without_frames_of_ours(project):
    """A failed request shows the test and the model, and nothing between them; `--full-trace` shows all."""
    tests = """
        def test_echo(load_model):
            load_model("models/echo").infer({"IN": [1]}, request_id="raise")
    """
    out = project(tests, execute="raise ValueError('exploded')")
    assert "tests/test_it.py" in out
    assert "models/echo/1/model.py" in out
    assert "ValueError: exploded" in out
    assert str(Path(pyruntime.testing.__file__).parent.parent) not in out


def test_failed_loads_without_frames_of_ours(project):
    """So does a failed load, also without the frames of the import system."""
    out = project(
        """
        from pyruntime.testing import load_model

        def test_echo():
            load_model("models/echo")
        """,
        top="import nothing_of_this_name",
    )
    assert "models/echo/1/model.py" in out
    assert "No module named 'nothing_of_this_name'" in out
    assert "<frozen" not in out
    assert str(Path(pyruntime.testing.__file__).parent.parent) not in out


def test_full_trace(project):
    """`--full-trace` shows all frames."""
    tests = "def test_echo(load_model): load_model('models/echo').infer({'IN': [1]})"
    out = project(tests, execute="raise ValueError('exploded')", options=["--full-trace"])
    assert "testing/model.py" in out
    assert "stub/batches.py" in out


def test_costs_nothing_unless_it_is_used(project):
    """A pytest that tests no models imports no numpy for it, and nothing of ours but the plugin."""
    out = project(
        """
        import sys

        def test_nothing():
            assert "numpy" not in sys.modules
            ours = {name for name in sys.modules if name.startswith("pyruntime")}
            assert ours == {"pyruntime", "pyruntime.testing", "pyruntime.testing.plugin"}
        """,
        options=["-p", "no:hypothesispytest"],
    )
    assert "1 passed" in out


def test_what_there_is():
    """All that the package names is there, and nothing else."""
    for name in pyruntime.testing.__all__:
        assert getattr(pyruntime.testing, name).__name__ == name
    with pytest.raises(AttributeError, match=r"module 'pyruntime\.testing' has no attribute 'nothing'"):
        pyruntime.testing.nothing  # noqa: B018
