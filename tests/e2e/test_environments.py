# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A server runs models under Pythons that are not its own, and they are models like any other."""

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            text = "%d.%d numpy %s" % (*sys.version_info[:2], np.__version__)
            outputs = [pb_utils.Tensor("OUT", numbers * 2), pb_utils.Tensor("PYTHON", np.array([text], dtype=object))]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "PYTHON" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
"""
NUMBERS = np.arange(5)


def python_of(server, name):
    """Have a model double numbers; the Python that it ran under."""
    result = server.infer(name, {"IN": NUMBERS})
    np.testing.assert_array_equal(result.as_numpy("OUT"), NUMBERS * 2)
    return result.as_numpy("PYTHON")[0].decode()


def pids(server):
    """The processes of the model's two instances."""
    return {stub.pid for stub in server.stubs("other_0_0") + server.stubs("other_0_1")}


def test_every_python(model, serve, wait_until, other_environment):
    """A model answers under each, beside one that runs in the server's own, and is started again when it dies."""
    model("other", MODEL, CONFIG % other_environment, "instance_group [ { count: 2 } ]")
    model("ours", MODEL, CONFIG.partition("parameters")[0])
    server = serve()
    minor = other_environment.name.partition("-")[2]
    assert python_of(server, "other").startswith(f"{minor} numpy ")
    assert python_of(server, "ours") == "{}.{} numpy {}".format(*sys.version_info[:2], np.__version__)
    first = pids(server)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(pids(server) - first) == 2)
    assert python_of(server, "other").startswith(f"{minor} numpy ")


@pytest.mark.parametrize("other_environment", [8], indirect=True, ids=["python3.8"])
def test_output_and_crash(model, serve, other_environment, wait_until):
    """The output of such a model is in the log; the cause of its death is in the failure of its request."""
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            print("about to go")
            os.kill(os.getpid(), signal.SIGSEGV)
    """
    model("crash", code, CONFIG % other_environment)
    server = serve()
    assert "killed by SIGSEGV" in server.refusal("crash", {"IN": NUMBERS})[1]
    wait_until(lambda: "crash_0: about to go" in server.log)


def test_archive(model, serve, tmp_path, monkeypatch):
    """An archive in the model's folder, as for Triton."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    folder = model("packed", MODEL, CONFIG % "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    made = tmp_path / ".made"
    subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", made], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    with tarfile.open(folder / "env.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(made, ".")
        for found in Path(np.__file__).parents[1].glob("numpy*"):
            tar.add(found, Path(packages.relative_to(made), found.name))
    server = serve()
    assert python_of(server, "packed") == "{}.{} numpy {}".format(*sys.version_info[:2], np.__version__)


def test_wrong_environment(model, serve):
    """A model whose environment is not there is not served, and the index says why; the others are."""
    model("wrong", MODEL, CONFIG % "nowhere")
    model("right", MODEL, CONFIG.partition("parameters")[0])
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    assert python_of(server, "right")
    index = server.request("POST", "/v2/repository/index").body.decode()
    assert "EXECUTION_ENV_PATH is 'nowhere': there is nothing at " in index
