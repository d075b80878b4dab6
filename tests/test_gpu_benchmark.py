# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu.py: all that does not take a GPU, with the stand-in, and what it makes of what NVIDIA's tools tell."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pyruntime.utils.gpu.inventory import STAND_IN

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def modules():
    """`modules(name)`: a module of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield import_module


@pytest.mark.processes
def test_with_the_stand_in():
    """It has a time for each way to hand a tensor over, counts contexts, and claims nothing."""
    command = [sys.executable, BENCHMARKS / "gpu.py", "--stand-in", "--mib=2", "--turns=1"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert "the stand-in, which MEASURES NO GPU" in lines[0]
    times = [line for line in lines if re.fullmatch(r"\| [12] \| [^|]+ \|( \d+ \|){4}", line)]
    assert [line.split(" | ")[:2] for line in times] == [
        *(["| 1", "main memory"], ["| 1", "GPU"], ["| 2", "main memory"], ["| 2", "GPU"]),
        ["| 2", "client's memory on the GPU"],
    ]
    goals = lines[lines.index("| Goal | Found | Met |") + 2 :]
    assert len(goals) == 6
    assert all(line.endswith("| stand-in |") for line in goals)
    # With the stand-in a process counts that has memory there, as those that take tensors of others.
    assert goals[-1].split(" | ")[1] == "host 0, brokers 1, stubs 2, others 0"


def test_bytes_to_main_memory(modules):
    """Copies from the GPU count; without a kernel the profiler has seen nothing."""
    count = modules("gpu").bytes_to_host
    kernel = ["kernel", "reduce_kernel", 0]
    copies = [
        ["gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 100],
        ["gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1000],
        ["gpu_memcpy", "Memcpy DtoD (Device -> Device)", 1000],
        ["gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 20],
    ]
    assert count([kernel]) == 0
    assert count([kernel, *copies]) == 120
    assert count(copies) is None
    assert count([]) is None


def test_what_lies_beyond_the_kernels(modules):
    """The kernel is subtracted from each call, before the median."""
    times = modules("gpu").Times([100.0, 300.0, 240.0], [40.0, 50.0, 60.0])
    assert times.beyond == [60, 250, 180]
    assert times.cells() == "50 | 180 | 60 | 250"


def test_goals(modules, capsys):
    """Whether each is met, if that is known."""
    gpu = modules("gpu")
    goals = [gpu.Goal("a", "1", True), gpu.Goal("b", "2", False), gpu.Goal("c", "3", None)]
    gpu.print_goals(goals, is_measured=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == ["| a | 1 | yes |", "| b | 2 | **no** |", "| c | 3 | not known |"]


@pytest.mark.processes
def test_contexts_by_nvml(modules, compile_library, monkeypatch):
    """Processes that NVML lists have a context. It may number them as another machine does."""
    monkeypatch.delenv(STAND_IN, raising=False)
    holders = modules("gpu_contexts").context_holders
    pids = [os.getpid(), os.getppid()]
    assert holders(pids, str(compile_library("nvml_processes.c", "-DFOREIGN=0"))) == pids[:1]
    assert holders(pids, str(compile_library("nvml_processes.c", "-DFOREIGN=1"))) is None
    assert holders(pids, "libno-such-library.so") is None
