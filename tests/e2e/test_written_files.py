# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries of models whose files are written to in place while the models serve, as `cp new.so model/ops.so` does."""

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from .harness.models import parameters

ADD_SUB = (Path(__file__).parent.parent / "native/custom/add_sub.pbtxt").read_text()

TOLD = """
backend: "told" instance_group { kind: KIND_CPU }
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
SCALE = """
backend: "pytorch" instance_group { kind: KIND_CPU } model_operations { op_library_filename: "ops.so" }
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] }
"""
SCALING = """
import torch

class Scaling(torch.nn.Module):
    def forward(self, x):
        return torch.ops.test.scale(x)
"""


def pids(server):
    return sorted(stub.pid for stub in server.stubs())


def cut_off(path):
    """As `cp` begins."""
    with open(path, "r+b") as file:
        file.truncate(0)


@pytest.mark.parametrize("more", ["", parameters(EXECUTION_MODE="process")], ids=["in the server", "isolated"])
def test_a_backend_in_the_models_folder(serve, model, compile_library, more):
    """Where it runs does not matter."""
    library = model("m", None, TOLD, more) / "1" / "libtriton_told.so"
    shutil.copy(compile_library("told.cc"), library)
    server = serve()
    before = pids(server)
    cut_off(library)
    result = server.infer("m", {"INPUT0": np.array(["instance"], np.object_)})
    assert result.as_numpy("OUTPUT0")[0].startswith(b"m_0_0")
    assert pids(server) == before


def test_a_preloaded_library(serve, model, compile_library, install_backends):
    """It is a file of the model's folder."""
    folder = model("m", None, TOLD, parameters(PRELOAD_LIBRARIES="first.so"))
    shutil.copy(compile_library("neighbour.c", "-DFACTOR=2"), folder / "first.so")
    server = serve(f"--backend-directory={install_backends('told')}")
    with open(f"/proc/{server.process.pid}/maps") as maps:
        assert {line.split()[-2] for line in maps if "first.so" in line} == {"/memfd:first.so"}


def test_a_custom_library(serve, model, compile_library):
    """With two instances."""
    library = model("m", None, ADD_SUB + "instance_group { count: 2 }") / "1" / "libcustom.so"
    shutil.copy(compile_library("custom/add_sub.c"), library)
    server = serve()
    before = pids(server)
    cut_off(library)
    ones = np.ones((1, 4), np.int32)
    for _ in range(10):
        assert server.infer("m", {"INPUT0": ones, "INPUT1": ones}).as_numpy("OUTPUT0").tolist() == [[2, 2, 2, 2]]
    assert pids(server) == before


def test_custom_operations_change_with_the_next_load_only(serve, model, compile_library):
    """Another library is copied over the file: its operation multiplies by another number."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    from torch.utils.cpp_extension import include_paths, library_paths

    options = [option for path in include_paths() for option in ("-isystem", path)]
    options += [option for path in library_paths() for option in (f"-L{path}", "-Wl,--no-as-needed")]
    options += ["-std=c++20", "-lc10", "-ltorch_cpu", "-ltorch"]
    options.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    twice, thrice = (compile_library("torch_custom_op.cc", *options, f"-DFACTOR={factor}") for factor in (2, 3))
    folder = model("m", None, SCALE)
    shutil.copy(twice, folder / "ops.so")
    (folder / "1" / "model.py").write_text(SCALING)
    server = serve("--model-control-mode=explicit", "--load-model=m")
    before = pids(server)
    shutil.copyfile(thrice, folder / "ops.so")
    ones = {"x": np.ones(3, np.float32)}
    assert server.infer("m", ones).as_numpy("OUTPUT__0").tolist() == [2, 2, 2]
    assert pids(server) == before
    with closing(server.client()) as client:
        client.load_model("m")
    assert server.infer("m", ones).as_numpy("OUTPUT__0").tolist() == [3, 3, 3]
