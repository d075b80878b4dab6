# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch that lie in the pages of the files they were loaded from."""

import pytest

from pyruntime.backends.pytorch.mapped_weights import share_weights

torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
# A square matrix of 1 MiB.
SIZE = 512


class Tied(torch.nn.Module):
    """Weights of which one is a part of another, one is small, and one has two bytes for each number."""

    def __init__(self):
        super().__init__()
        self.whole = torch.nn.Parameter(torch.rand(SIZE, SIZE))
        self.part = torch.nn.Parameter(self.whole.detach().t()[1:])
        self.small = torch.nn.Parameter(torch.rand(3))
        self.register_buffer("halves", torch.rand(SIZE * 2, SIZE).to(torch.bfloat16))

    def forward(self, x):
        return x @ self.whole + self.part.sum() + self.small.sum() + self.halves.float().sum()


def is_mapped(tensor, path):
    """Whether a tensor lies in a mapping of a file."""
    with open("/proc/self/maps") as file:
        ranges = [line.split()[0].split("-") for line in file if line.rstrip().endswith(str(path))]
    return any(int(start, 16) <= tensor.data_ptr() < int(stop, 16) for start, stop in ranges)


def tensors_of(module):
    return [*module.parameters(), *module.buffers()]


def check(module, path, wanted):
    """All large tensors are mapped, and the results are the same."""
    x = torch.rand(1, SIZE)
    before = wanted(x)
    share_weights(torch, tensors_of(module), str(path))
    mapped = {name for name, each in module.state_dict().items() if is_mapped(each, path)}
    assert mapped == {"whole", "part", "halves"}
    assert torch.equal(module(x), before)


def test_torchscript(tmp_path):
    path = tmp_path / "model.pt"
    made = Tied()
    torch.jit.trace(made, torch.ones(1, SIZE)).save(path)
    check(torch.jit.load(path), path, made)


def test_exported_programs(tmp_path):
    path = tmp_path / "model.pt2"
    made = Tied()
    torch.export.save(torch.export.export(made, (torch.ones(1, SIZE),)), path)
    check(torch.export.load(path).module(), path, made)


def test_other_bytes(tmp_path):
    """A tensor that was converted after it had been read, or changed, is not in the file, and stays."""
    path = tmp_path / "model.pt"
    made = {"same": torch.rand(SIZE, SIZE), "converted": torch.rand(SIZE, SIZE), "changed": torch.rand(SIZE, SIZE)}
    torch.save(made, path)
    same, converted, changed = made["same"].clone(), made["converted"].double(), made["changed"] + 1
    share_weights(torch, [same, converted, changed], str(path))
    assert [is_mapped(each, path) for each in (same, converted, changed)] == [True, False, False]
    assert torch.equal(same, made["same"])
    assert torch.equal(changed, made["changed"] + 1)


def test_writes_stay_in_the_process(tmp_path):
    """A tensor that is written to leaves the file as it is."""
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.ones(SIZE, SIZE)}, path)
    before = path.read_bytes()
    tensor = torch.ones(SIZE, SIZE)
    share_weights(torch, [tensor], str(path))
    assert is_mapped(tensor, path)
    tensor += 1
    assert path.read_bytes() == before
