# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs, by a library that stands for NVIDIA's: compiled here, with its functions and its structures."""

import pytest

from pyruntime.runtime.observe.gpu_meter import GpuMeter
from pyruntime.runtime.observe.machine import GpuReading

pytestmark = pytest.mark.processes


@pytest.fixture
def build(compile_library):
    """A function that compiles such a library, and returns its path: see tests/native/nvml_meter.c."""

    def compile(init=0, count=0, old=0):
        return str(compile_library("nvml_meter.c", f"-DINIT={init}", f"-DCOUNT={count}", f"-DOLD={old}"))

    return compile


def test_gpus(build):
    """Each GPU is read, with None for values that it lacks. Energy is counted from the start."""
    meter = GpuMeter(build())
    assert repr(meter) == "<GpuMeter [2 GPUs]>"
    assert meter.read() == [GpuReading("GPU-0", 0.25, 80 << 30, 20 << 30, 70.5, 300.0, 1.5), GpuReading("GPU-1")]
    assert meter.read()[0].energy == 3.0
    meter.close()


def test_an_older_library(build):
    """A function that the library does not have yet counts as failed."""
    assert GpuMeter(build(old=1)).read()[0] == GpuReading("GPU-0", 0.25, 80 << 30, 20 << 30, 70.5, 300.0, None)


def test_no_count(build):
    """A library that does not say how many there are has none."""
    assert GpuMeter(build(count=999)).read() == []


def test_no_driver(build):
    """There is a library, but nothing behind it."""
    with pytest.raises(OSError, match="NVML cannot be initialized: error 9"):
        GpuMeter(build(init=9))


def test_no_library():
    """Most machines without GPUs have none."""
    with pytest.raises(OSError, match="no-such-library"):
        GpuMeter("no-such-library.so.1")
