# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The files of `pyruntime new` work as they are: their own tests pass, and a server serves them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SENT = np.array([[1, 2], [3, 4]], dtype=np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made("backend", "--cpp")`: the folder of a new model or backend, whose own tests have passed."""
    folders = {}

    def made(*words):
        if words not in folders:
            where = tmp_path_factory.mktemp("made")
            run(sys.executable, "-m", "pyruntime", "new", *words, "mine", cwd=where)
            said = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "mine", cwd=where)
            assert " passed" in said, said
            assert "failed" not in said, said
            folders[words] = where / "mine"
        return folders[words]

    return made


def run(*command, cwd):
    """The output of a command, which must succeed."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(server, name, factor):
    """One inference, and one that is refused."""
    assert server.infer(name, {"INPUT": SENT}).as_numpy("OUTPUT").tolist() == (SENT * factor).tolist()
    status, message = server.refusal(name, {"INPUT": SENT.astype(np.int32)})
    assert (status, "INPUT" in message) == (400, True)


def test_model(made, serving):
    """A model in Python; the folder that it was made in is a repository."""
    with serving(made("model").parent) as server:
        check(server, "mine", 2)


def test_backend_in_python(made, serving):
    """A backend in Python, and the model that uses it."""
    folder = made("backend", "--python")
    with serving(folder / "model_repository", f"--backend-directory={folder / 'backends'}") as server:
        check(server, "mine_sample", 2.5)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake here to build a backend with")
def test_backend_in_cpp(made, serving):
    """A backend in C++, built as its README says."""
    folder = made("backend", "--cpp")
    with serving(folder / "model_repository", f"--backend-directory={folder / 'backends'}") as server:
        check(server, "mine_sample", 2.5)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake here to build a backend with")
def test_backend_in_cpp_that_cannot_load(made, serving, tmp_path):
    """The backend's requirement for the configuration is the reason why the model is not loaded."""
    folder = made("backend", "--cpp")
    shutil.copytree(folder / "model_repository/mine_sample", tmp_path / "mine_sample")
    config = tmp_path / "mine_sample/config.pbtxt"
    config.write_text(config.read_text().partition("parameters")[0])
    options = [f"--backend-directory={folder / 'backends'}", "--exit-on-error=false", "--strict-readiness=false"]
    with serving(tmp_path, *options) as server:
        assert b"model 'mine_sample' needs a parameter 'factor' in its configuration" in (
            server.request("POST", "/v2/repository/index").body
        )
