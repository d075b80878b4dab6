# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large weights are in memory once, however many instances a model has: files are mapped, frameworks are forked.

The memory is the proportional set size (PSS) of the stubs and of the launchers that they share memory with: what each
process has for itself, and its part of what several have. SHARED_WEIGHTS_MIB=500 runs the tests with weights for which
four instances must take at most 1.3 times the memory of one; -s prints it.
"""

import math
import os
from contextlib import closing

import numpy as np
import pytest

# The weights are a square matrix of 100 MiB.
WEIGHTS_MIB = int(os.environ.get("SHARED_WEIGHTS_MIB", "100"))
SIZE = math.isqrt(WEIGHTS_MIB << 18)
# Loading a program of torch.export imports much of torch that nothing else needs.
MODULES_OF_EXPORT_MIB = 120
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


def check(server, wait_until, modules_mib=0):
    """Three more instances take less than one more copy of the weights.

    `modules_mib` is what each instance has for modules that it imports itself, in MiB.
    """
    used = {}
    with closing(server.client()) as client:
        for name in ("one", "four"):
            client.load_model(name)
            used[name] = used_by(server, name)
            client.unload_model(name)
            # It ends in the background: its memory must not count as that of the next model.
            wait_until(lambda: not server.stubs())
    print(f"weights {WEIGHTS_MIB} MiB, one instance {used['one']:.0f}, four {used['four']:.0f}")
    assert used["one"] > 0.99 * WEIGHTS_MIB, used
    used["four"] -= 3 * modules_mib
    assert used["four"] - used["one"] < WEIGHTS_MIB, used
    if WEIGHTS_MIB >= 500:
        assert used["four"] < 1.3 * used["one"], used


def test_safetensors(serve, model, wait_until):
    """Weights of a torch.nn.Module are mapped; torch is imported once for all instances."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    for name, count in (("one", 1), ("four", 4)):
        folder = model(name, None, 'backend: "pytorch"\n' + TENSORS + GROUP.format(count))
        (folder / "1" / "model.py").write_text(MODULE)
        safetensors.save_file({"weight": torch.ones(SIZE, SIZE)}, folder / "1" / "model.safetensors")
    check(serve("--model-control-mode=explicit"), wait_until)


@pytest.mark.parametrize("file", ["model.pt", "model.pt2"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_programs_of_torch(serve, model, wait_until, tmp_path, file):
    """With Triton's parameter the weights of TorchScript and of exported programs are mapped from their file."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")

    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(SIZE, SIZE))

        def forward(self, x):
            return x @ self.weight

    module = Product()
    if file == "model.pt":
        torch.jit.trace(module, torch.ones(1, SIZE)).save(tmp_path / file)
    else:
        torch.export.save(torch.export.export(module, (torch.ones(1, SIZE),)), tmp_path / file)
    shares = 'parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } }\n'
    for name, count in (("one", 1), ("four", 4)):
        folder = model(name, None, 'backend: "pytorch"\n' + shares + TENSORS + GROUP.format(count))
        (folder / "1" / file).hardlink_to(tmp_path / file)
    check(serve("--model-control-mode=explicit"), wait_until, MODULES_OF_EXPORT_MIB if file == "model.pt2" else 0)


def test_external_data(serve, model, wait_until, tmp_path, monkeypatch):
    """Weights of ONNX are mapped as ONNX Runtime rearranges them, and the files for that go with the last instance."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnxruntime)")
    onnx = pytest.importorskip("onnx", reason="onnx, which makes the models, is not installed (pip install onnx)")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("W", floats, [SIZE, SIZE], np.ones((SIZE, SIZE), np.float32).tobytes(), raw=True)
    tensors = [[helper.make_tensor_value_info(name, floats, [1, SIZE])] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["y"])], "g", *tensors, [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin")
    for name, count in (("one", 1), ("four", 4)):
        folder = model(name, None, GROUP.format(count))
        for file in ("model.onnx", "weights.bin"):
            (folder / "1" / file).hardlink_to(tmp_path / file)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    check(serve("--model-control-mode=explicit"), wait_until)
    assert not list(temporary.glob("pyruntime-onnxruntime-*"))
