# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of calls that shall lie on a GPU, with GPUs of the stand-in."""

import numpy as np
import pytest

from pyruntime.stub import gpus
from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.pb_utils import Tensor, gpu_copies
from pyruntime.stub.pb_utils.gpu_copies import copied_to_gpu
from pyruntime.stub.pb_utils.gpu_tensor import GpuTensor


@pytest.fixture(autouse=True)
def _first_use(machine, monkeypatch):
    """As in a process that has used no GPU yet."""
    monkeypatch.setattr(gpus, "opened", {})
    monkeypatch.setattr(gpu_copies, "_refused", set())
    monkeypatch.setattr(gpu_copies, "_told", set())


def test_copies():
    """Numbers are copied, strings and tensors without elements stay, and what is there already is the same object."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    tensors = [
        Tensor("A", array),
        Tensor("B", np.array([b"x"], object)),
        Tensor("C", np.zeros((0, 3))),
        Tensor("D", np.array(5, np.int8)),
    ]
    moved = copied_to_gpu(tensors, 0)
    assert [type(tensor) for tensor in moved] == [GpuTensor, Tensor, Tensor, GpuTensor]
    assert [tensor.name() for tensor in moved] == ["A", "B", "C", "D"]
    assert moved[1:3] == tensors[1:3]
    assert moved[0].__dlpack_device__() == (2, 0)
    np.testing.assert_array_equal(moved[0].as_numpy(), array)
    assert moved[3].as_numpy() == 5
    assert copied_to_gpu(moved, 0) == moved


def test_memory_is_freed():
    """The memory goes with the last tensor and capsule."""
    before = gpu_of(0).properties().free_bytes
    (moved,) = copied_to_gpu([Tensor("A", np.zeros(1000))], 0)
    assert gpu_of(0).properties().free_bytes < before
    capsule = moved.to_dlpack()
    del moved
    assert gpu_of(0).properties().free_bytes < before
    del capsule
    assert gpu_of(0).properties().free_bytes == before


def test_gpu_without_memory(machine, capfd):
    """The tensors of a call stay in main memory, and the log says so once. Those of the next one may have room."""
    tensors = [Tensor("A", np.zeros(3))]
    with machine.failing(allocate="CUDA_ERROR_OUT_OF_MEMORY"):
        for _ in range(2):
            assert copied_to_gpu(tensors, 0) == tensors
    (moved,) = copied_to_gpu(tensors, 0)
    assert not moved.is_cpu()
    assert capfd.readouterr().err.count("outputs of calls that prefer GPU 0 are in main memory: ") == 1


def test_gpu_that_cannot_be_used(machine, capfd):
    """The tensors stay in main memory, the log says why once, and nothing is tried again."""
    tensors = [Tensor("A", np.zeros(3))]
    with machine.failing(allocate="CUDA_ERROR_NOT_SUPPORTED"):
        assert copied_to_gpu(tensors, 0) == tensors
    assert copied_to_gpu(tensors, 0) == tensors
    assert copied_to_gpu(tensors, 7) == tensors
    log = capfd.readouterr().err
    for gpu in (0, 7):
        assert log.count(f"outputs of calls that prefer GPU {gpu} are in main memory: ") == 1
