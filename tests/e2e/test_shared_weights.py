# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large weights are in memory once, however many instances a model has: files are mapped, frameworks are forked.

The memory is the proportional set size (PSS) of the stubs and of the launchers that they share memory with: what each
process has for itself, and its part of what several have.
"""

from contextlib import closing

import numpy as np
import pytest

# The weights are a matrix of 100 MiB.
SIZE = 5120
WEIGHTS_MIB = SIZE * SIZE * 4 >> 20
GROUP = "instance_group {{ kind: KIND_CPU count: {} }}\n"
TENSORS = f"""
input {{ name: "x" data_type: TYPE_FP32 dims: [ 1, {SIZE} ] }}
output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1, {SIZE} ] }}
"""
MODULE = f"""
import torch

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty({SIZE}, {SIZE}))

    def forward(self, x):
        return x @ self.weight
"""


def used_by(server, name):
    """The memory of a model's processes in MiB, after requests to it."""
    stubs = server.stubs()
    assert stubs
    for _ in range(3 * len(stubs)):
        server.infer(name, {"x": np.ones((1, SIZE), np.float32)})
    return sum(map(pss, {*(each.pid for each in stubs), *launchers_of(stubs)})) / 1024


def launchers_of(stubs):
    """The processes that the stubs' guardians were forked from."""
    return {parent(parent(each.pid)) for each in stubs}


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def pss(pid):
    """The proportional set size of a process in KiB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def check(server):
    """Three more instances take less than one more copy of the weights: 1.2 times as much in all, for 500 MiB."""
    used = {}
    with closing(server.client()) as client:
        for name in ("one", "four"):
            client.load_model(name)
            used[name] = used_by(server, name)
            client.unload_model(name)
            server.settle()
    assert used["one"] > WEIGHTS_MIB, used
    assert used["four"] - used["one"] < WEIGHTS_MIB, used


def test_safetensors(serve, model):
    """Weights of a torch.nn.Module are mapped; torch is imported once for all instances."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    for name, count in (("one", 1), ("four", 4)):
        folder = model(name, None, 'backend: "pytorch"\n' + TENSORS + GROUP.format(count))
        (folder / "1" / "model.py").write_text(MODULE)
        safetensors.save_file({"weight": torch.ones(SIZE, SIZE)}, folder / "1" / "model.safetensors")
    check(serve("--model-control-mode=explicit"))


def test_external_data(serve, model, tmp_path):
    """Weights of ONNX are mapped as ONNX Runtime has rearranged them, if a file has them so: see the guide."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnxruntime)")
    onnx = pytest.importorskip("onnx", reason="onnx, which makes the models, is not installed (pip install onnx)")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("W", floats, [SIZE, SIZE], np.ones((SIZE, SIZE), np.float32).tobytes(), raw=True)
    tensors = [[helper.make_tensor_value_info(name, floats, [1, SIZE])] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["y"])], "g", *tensors, [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "plain.onnx", save_as_external_data=True, location="plain.bin")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns that the file is for this kind of processor
    options.optimized_model_filepath = str(tmp_path / "model.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    onnxruntime.InferenceSession(tmp_path / "plain.onnx", options, providers=["CPUExecutionProvider"])
    for name, count in (("one", 1), ("four", 4)):
        folder = model(name, None, GROUP.format(count))
        for file in ("model.onnx", "weights.bin"):
            (folder / "1" / file).hardlink_to(tmp_path / file)
    check(serve("--model-control-mode=explicit"))
