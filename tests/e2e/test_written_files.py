# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Files of models that are written to in place while the models serve, as `cp new.so model/ops.so` does: libraries, and
weights that a framework maps.
"""

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


# A square matrix of 16 KiB, and one of 64 MiB: instances share weights of that size.
SMALL, LARGE = 64, 4096
PRODUCT = """
import torch

class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty({size}, {size}))

    def forward(self, x):
        return x @ self.weight
"""


def write_safetensors(version_dir, size):
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    (version_dir / "model.py").write_text(PRODUCT.format(size=size))
    safetensors.save_file({"weight": torch.ones(size, size)}, version_dir / "model.safetensors")
    return "model.safetensors", 'backend: "pytorch"', "OUTPUT__0"


def write_state_dict(version_dir, size):
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    (version_dir / "model.py").write_text(PRODUCT.format(size=size))
    torch.save({"weight": torch.ones(size, size)}, version_dir / "model.pt")
    return "model.pt", 'backend: "pytorch" runtime: "model.py"', "OUTPUT__0"


def write_torchscript(version_dir, size):
    """With weights that are mapped, which are 1 MiB at least."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    namespace = {}
    exec(PRODUCT.format(size=max(size, 512)), namespace)
    module = namespace["Product"]()
    torch.nn.init.ones_(module.weight)
    torch.jit.trace(module, torch.ones(1, max(size, 512))).save(version_dir / "model.pt")
    return "model.pt", f'backend: "pytorch" {parameters(ENABLE_WEIGHT_SHARING="true")}', "OUTPUT__0"


def write_onnx(version_dir, size):
    """With weights that ONNX Runtime does not rearrange, so that it maps them."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnxruntime)")
    onnx = pytest.importorskip("onnx", reason="onnx, which makes the models, is not installed (pip install onnx)")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("W", floats, [size, size], np.ones((size, size), np.float32).tobytes(), raw=True)
    tensors = [[helper.make_tensor_value_info(name, floats, ["rows", size])] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["y"])], "g", *tensors, [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, version_dir / "model.onnx", save_as_external_data=True, location="weights.bin")
    plain = parameters(**{"session.disable_prepacking": "1"})
    return "weights.bin", f'backend: "onnxruntime" {plain}', "y"


def write_openvino(version_dir, size):
    openvino = pytest.importorskip("openvino", reason="openvino is not installed (pip install openvino)")
    from openvino import opset13 as ops

    taken = ops.parameter([-1, size], np.float32, name="x")
    made = ops.matmul(taken, ops.constant(np.ones((size, size), np.float32)), False, False)
    made.output(0).get_tensor().set_names({"y"})
    path = version_dir / "model.xml"
    openvino.save_model(openvino.Model([made], [taken], "product"), path, compress_to_fp16=False)
    return "model.bin", 'backend: "openvino"', "y"


WRITERS = [write_safetensors, write_state_dict, write_torchscript, write_onnx, write_openvino]


@pytest.mark.parametrize(("size", "instances"), [(SMALL, 1), (LARGE, 2)], ids=["one", "two"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__.removeprefix("write_"))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_weights_change_with_the_next_load_only(serve, model, tmp_path_factory, monkeypatch, write, size, instances):
    """Whoever writes to the file writes zeros here, and cuts it off."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    folder = model("m", None, "")
    name, config, output = write(folder / "1", size)
    width = max(size, 512) if write is write_torchscript else size
    tensors = [
        f'{noun} {{ name: "{each}" data_type: TYPE_FP32 dims: [ -1, {width} ] }}'
        for noun, each in (("input", "x"), ("output", output))
    ]
    group = f"instance_group {{ kind: KIND_CPU count: {instances} }}"
    (folder / "config.pbtxt").write_text("\n".join([config, *tensors, group]))
    server = serve()
    before = pids(server)
    with open(folder / "1" / name, "r+b") as file:
        file.write(bytes((folder / "1" / name).stat().st_size))
    cut_off(folder / "1" / name)
    for _ in range(4 * instances):
        assert server.infer("m", {"x": np.ones((1, width), np.float32)}).as_numpy(output)[0][-1] == width
    assert pids(server) == before
    server.stop()
    assert not list(temporary.glob("pyruntime-*"))


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
