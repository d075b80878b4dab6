# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers in /proc, and their metrics on the page."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe.machine import (
    CpuTimes,
    GpuReading,
    Memory,
    cpu_lines,
    cpu_times,
    gpu_lines,
    memory,
    utilization,
)

STAT = "cpu  10 20 30 400 50 1 2 3 10 20\ncpu0 10 20 30 400 50 1 2 3 10 20\nintr 1 2\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nHugePages_Total:   0\n"


def test_cpu_times():
    """Guests are part of what users have; to wait for a disk is to be idle."""
    assert cpu_times(STAT) == CpuTimes(516, 450)


@pytest.mark.parametrize("text", ["", "cpu", "cpu 1 2 3 4", "cpu a b c d e f", "intr 1 2 3 4 5 6 7 8"])
def test_times_that_cannot_be_read(text):
    """Times that cannot be read are None."""
    assert cpu_times(text) is None


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (CpuTimes(200, 175), 0.25),
        (CpuTimes(200, 100), 1.0),
        (CpuTimes(200, 200), 0.0),
        (CpuTimes(100, 100), 0.0),
        (CpuTimes(90, 90), 0.0),  # the kernel's idle times may go back a little
        (CpuTimes(200, 90), 1.0),
        (CpuTimes(200, 210), 0.0),
    ],
)
def test_utilization(after, expected):
    """It is that of the time between two readings."""
    assert utilization(CpuTimes(100, 100), after) == expected


def test_memory():
    """Memory that can be freed at once does not count as used."""
    assert memory(MEMINFO) == Memory(1000 << 10, 400 << 10)


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n", "MemTotal:\n:\n"])
def test_memory_that_cannot_be_read(text):
    """Memory that cannot be read is None."""
    assert memory(text) is None


def test_this_machine():
    """The files of this machine's kernel can be read."""
    times = cpu_times(Path("/proc/stat").read_text())
    assert times.total >= times.idle > 0
    found = memory(Path("/proc/meminfo").read_text())
    assert found.total > found.used > 0


def test_cpu_lines():
    """A value that could not be read has no family."""
    found = {family.name: family.samples[0].value for family in text_string_to_metric_families(cpu_lines(0.5, None))}
    assert found == {"nv_cpu_utilization": 0.5}
    page = cpu_lines(None, Memory(10, 4))
    found = {family.name: family.samples[0].value for family in text_string_to_metric_families(page)}
    assert found == {"nv_cpu_memory_total_bytes": 10, "nv_cpu_memory_used_bytes": 4}


def test_gpu_lines():
    """Each GPU has a sample in every family that it supports; without GPUs there are no families."""
    assert gpu_lines([]) == ""
    page = gpu_lines([GpuReading("GPU-1", 0.5, 100, 10, 70.5, 300, 2.5), GpuReading("GPU-2", utilization=0.0)])
    found = {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(page)
    }
    first, second = {"gpu_uuid": "GPU-1"}, {"gpu_uuid": "GPU-2"}
    assert found == {
        "nv_gpu_utilization": [(first, 0.5), (second, 0)],
        "nv_gpu_memory_total_bytes": [(first, 100)],
        "nv_gpu_memory_used_bytes": [(first, 10)],
        "nv_gpu_power_usage": [(first, 70.5)],
        "nv_gpu_power_limit": [(first, 300)],
        "nv_energy_consumption": [(first, 2.5)],
    }
