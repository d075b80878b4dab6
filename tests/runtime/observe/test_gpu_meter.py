# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs, by a library that stands for NVIDIA's: compiled here, with its functions and its structures."""

import subprocess

import pytest

from pyruntime.runtime.observe.gpu_meter import GpuMeter
from pyruntime.runtime.observe.machine import GpuReading

pytestmark = pytest.mark.processes

# Two GPUs: one that tells everything, and one that tells nothing but its name.
SOURCE = r"""
#include <stdio.h>
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
static int devices[2];
static unsigned long long energy = 5000;
static int opened;
int nvmlInit_v2(void) { opened++; return INIT; }
int nvmlShutdown(void) { return --opened; }
#if INIT == 0
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return COUNT; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { *device = &devices[index]; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
  return snprintf(uuid, length, "GPU-%d", device == &devices[1]) < (int)length ? 0 : 7;
}
int nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *rates) {
  if (device != &devices[0]) return 3;
  rates->gpu = 25; rates->memory = 99;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory) {
  if (device != &devices[0]) return 3;
  memory->total = 80ULL << 30; memory->free = 60ULL << 30; memory->used = 20ULL << 30;
  return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
  *milliwatts = 70500; return device != &devices[0];
}
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned int *milliwatts) {
  *milliwatts = 300000; return device != &devices[0];
}
#if !OLD
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
  if (device != &devices[0]) return 3;
  *millijoules = energy += 1500;
  return 0;
}
#endif
#endif
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A function that compiles such a library, and returns its path."""

    def compile(init=0, count=0, old=0):
        folder = tmp_path_factory.mktemp("nvml")
        source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
        source.write_text(SOURCE)
        options = [
            f"-DINIT={init}",
            f"-DCOUNT={count}",
            f"-DOLD={old}",
            "-Wall",
            "-Werror",
            "-Wno-unused-variable",
            "-shared",
            "-fPIC",
        ]
        subprocess.run(["cc", *options, "-o", library, source], check=True)
        return str(library)

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
