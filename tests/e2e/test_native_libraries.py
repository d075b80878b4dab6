# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries beside those of backends: a model's own are in the process before its backend is."""

import subprocess
from contextlib import closing

import numpy as np
import pytest

CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
# Says that it is loaded.
LIBRARY = """
#include <stdio.h>
%s
__attribute__((constructor)) static void start(void) { fputs("loaded " NAME "\\n", stderr); }
"""


@pytest.fixture
def backends(install_backends):
    """The option that says where the backend is."""
    return f"--backend-directory={install_backends('identity')}"


def preload(names):
    """The parameter that names libraries."""
    return f'parameters {{ key: "PRELOAD_LIBRARIES" value {{ string_value: "{names}" }} }}'


def compile_own(path, code="", *options):
    """A model's own library."""
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path, f'-DNAME="{path.name}"', *options]
    subprocess.run(command, input=LIBRARY % code, text=True, check=True)


def test_each_model_has_its_own(serve, model, backends, tmp_path_factory):
    """Libraries are loaded in their order, by name those in the model's folder, also for a backend's second model."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "elsewhere.so"
    compile_own(elsewhere, "int first(void); int second(void) { return first(); }")
    compile_own(model("a", None, CONFIG, preload(f"own.so:{elsewhere}")) / "own.so", "int first(void) { return 1; }")
    compile_own(model("b", None, CONFIG, preload("late.so")) / "late.so")
    model("c", None, CONFIG)
    server = serve(backends, "--model-control-mode=explicit", "--load-model=a")
    assert [line for line in server.log.splitlines() if line.startswith("loaded ")] == [
        "loaded own.so",
        "loaded elsewhere.so",
    ]
    with closing(server.client()) as client:
        client.load_model("b")
        client.load_model("c")
    assert "loaded late.so" in server.log.splitlines()
    for name in "abc":
        assert server.infer(name, {"INPUT0": np.arange(3, dtype=np.int32)}).as_numpy("OUTPUT0").tolist() == [0, 1, 2]


def test_a_library_that_is_not_there(serve, model, backends):
    """A model without its libraries is not served, and its owner reads which one it was."""
    model("a", None, CONFIG, preload("nowhere.so"))
    model("b", None, CONFIG)
    server = serve(backends, "--exit-on-error=false", "--strict-readiness=false")
    with closing(server.client()) as client:
        rows = {row["name"]: row for row in client.get_model_repository_index()}
    assert rows["a"]["state"] == "UNAVAILABLE"
    assert rows["a"]["reason"].startswith(
        "Not found: unable to preload library 'nowhere.so' for model 'a': nowhere.so: cannot"
    )
    assert rows["b"]["state"] == "READY"
