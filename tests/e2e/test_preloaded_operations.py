# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""LD_PRELOAD loads a library of custom operations into the whole server, for all models, as for Triton."""

import os

import numpy as np
import pytest

CONFIG = """
backend: "pytorch" max_batch_size: 4 instance_group { kind: KIND_CPU }
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] }
"""
MODULE = """
import torch

class Scaling(torch.nn.Module):
    def forward(self, x):
        return torch.ops.test.scale(x)
"""


def test_operations_of_torch(serve, model, compile_library):
    """Two models without model_operations use the operation; the libraries of torch are on the library path."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    from torch.utils.cpp_extension import include_paths, library_paths

    options = [option for path in include_paths() for option in ("-isystem", path)]
    options += [option for path in library_paths() for option in (f"-L{path}", "-Wl,--no-as-needed")]
    options += ["-lc10", "-ltorch_cpu", "-ltorch"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    library = compile_library("torch_custom_op.cc", "-std=c++20", abi, "-DFACTOR=2", *options)
    for name in ("first", "second"):
        (model(name, None, CONFIG) / "1" / "model.py").write_text(MODULE)
    preloaded = f"LD_PRELOAD={library}:{os.environ.get('LD_PRELOAD', '')}"
    server = serve(wrapper=("env", preloaded, f"LD_LIBRARY_PATH={':'.join(library_paths())}"))
    for name in ("first", "second"):
        answer = server.infer(name, {"x": np.ones((1, 3), np.float32)}).as_numpy("OUTPUT__0")
        assert answer.tolist() == [[2, 2, 2]]
