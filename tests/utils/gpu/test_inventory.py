# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a machine: by a file of the stand-in, and by a library that stands for NVML."""

import pytest

from pyruntime.utils.gpu.driver import GpuProperties
from pyruntime.utils.gpu.inventory import find_gpus, seen_by_cuda
from pyruntime.utils.gpu.machine import parse_machine
from pyruntime.utils.gpu.nvml import find_by_nvml
from pyruntime.utils.gpu.visible import VISIBLE


def test_stand_in(machine, monkeypatch):
    """GPUs that a file describes, with defaults, and only those that are visible."""
    machine.describe({"uuid": "GPU-1"}, {"uuid": "GPU-2", "total_bytes": 100, "used_bytes": 30})
    assert [gpu.uuid for gpu in find_gpus()] == ["GPU-1", "GPU-2"]
    monkeypatch.setenv(VISIBLE, "GPU-2")
    assert find_gpus() == [GpuProperties(0, "GPU-2", "Stand-in", (8, 0), 100, 70, False)]


def test_cuda_sees_what_was_visible_when_it_was_initialized(machine, monkeypatch):
    """As long as a process has used no GPU nobody knows; afterwards the variable has no effect."""
    assert seen_by_cuda() is None
    monkeypatch.setenv(VISIBLE, "GPU-2,GPU-1")
    assert machine.gpu(0).properties().uuid == "GPU-2"
    monkeypatch.setenv(VISIBLE, "1")
    assert seen_by_cuda() == ["GPU-2", "GPU-1"]
    assert machine.gpu(1).properties().uuid == "GPU-1"


def test_faults():
    """A machine has the faults of its file, none if that names none."""
    assert parse_machine('{"gpus": []}').faults == {}
    assert parse_machine('{"gpus": [], "faults": {"open": "CUDA_ERROR_NOT_SUPPORTED"}}').faults == {
        "open": "CUDA_ERROR_NOT_SUPPORTED"
    }


def test_no_driver(tmp_path):
    """A machine without the library has no GPUs."""
    assert find_by_nvml(str(tmp_path / "libnvidia-ml.so.1")) == []


@pytest.fixture
def build(compile_library):
    """A function that compiles such a library, and returns its path: see tests/native/nvml_slices.c."""

    def compile(init=0, old=0, slices=1):
        return str(compile_library("nvml_slices.c", f"-DINIT={init}", f"-DOLD={old}", f"-DSLICES={slices}"))

    return compile


@pytest.mark.processes
def test_nvml(build):
    """A partitioned GPU is its slices, and one that tells nothing is left out."""
    assert find_by_nvml(build()) == [
        GpuProperties(0, "GPU-0", "A100", (8, 6), 40, 39, False),
        GpuProperties(1, "MIG-1", "A100 MIG 1g.5gb", (8, 6), 5, 4, True),
    ]


@pytest.mark.processes
def test_no_slices(build):
    """A partitioned GPU without slices is none that CUDA can use."""
    assert [gpu.uuid for gpu in find_by_nvml(build(slices=0))] == ["GPU-0"]


@pytest.mark.processes
def test_old_nvml(build):
    """A library from before MIG knows whole GPUs only."""
    assert [gpu.is_slice for gpu in find_by_nvml(build(old=1))] == [False, False]


@pytest.mark.processes
def test_nvml_without_a_driver(build):
    """A library that finds no driver has no GPUs."""
    assert find_by_nvml(build(init=9)) == []
