# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The reading of devices, and the page between readings."""

import asyncio

import pytest

from pyruntime.runtime.observe.devices import Devices
from pyruntime.runtime.observe.machine import GpuReading
from tests.patience import PATIENCE_S


class Gpus:
    """Stands for NVML. `read` says that it was asked."""

    def __init__(self):
        self.reads = 0
        self.closed = False

    def read(self):
        self.reads += 1
        return [GpuReading("GPU-1", utilization=self.reads / 100)]

    def close(self):
        self.closed = True


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "stat").write_text("cpu 0 0 0 100 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 4 kB\nMemAvailable: 3 kB\n")
    return tmp_path


def no_gpus():
    raise OSError("no library")


def run(devices, until):
    """Let them run, as fast as they can, until `until` is true."""

    async def check():
        async with asyncio.timeout(PATIENCE_S):
            task = asyncio.ensure_future(devices.run(0))
            while not until():  # noqa: ASYNC110 - it is a thread that makes it true
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))

    asyncio.run(check())


def test_cpu(proc):
    """The utilization is that of the time between two readings, and 0 before there are two."""
    devices = Devices(cpu=True, gpu=False, proc=proc)
    assert devices.lines() == ""
    devices.read()
    assert "\nnv_cpu_utilization 0\n" in devices.lines()
    assert "\nnv_cpu_memory_total_bytes 4096\n" in devices.lines()
    assert "\nnv_cpu_memory_used_bytes 1024\n" in devices.lines()
    (proc / "stat").write_text("cpu 25 0 0 175 0\n")
    assert "\nnv_cpu_utilization 0\n" in devices.lines()
    devices.read()
    assert "\nnv_cpu_utilization 0.25\n" in devices.lines()


def test_nothing_to_read(tmp_path):
    """Where /proc says nothing the page says nothing."""
    devices = Devices(cpu=True, gpu=False, proc=tmp_path)
    devices.read()
    assert devices.lines() == ""


def test_gpus():
    """They are read again and again, and let go of in the end."""
    gpus = Gpus()
    devices = Devices(cpu=False, gpu=True, open_gpus=lambda: gpus)
    run(devices, lambda: gpus.reads >= 3)
    assert '\nnv_gpu_utilization{gpu_uuid="GPU-1"} 0.0' in devices.lines()
    assert "nv_cpu" not in devices.lines()
    assert gpus.closed


def test_no_gpus(proc, caplog):
    """Without them there are the others."""
    caplog.set_level("DEBUG")
    devices = Devices(cpu=True, gpu=True, proc=proc, open_gpus=no_gpus)
    run(devices, devices.lines)
    assert "nv_gpu" not in devices.lines()
    assert [record.getMessage() for record in caplog.records if record.name == "pyruntime.metrics"] == [
        "no metrics of GPUs: no library"
    ]


def test_none_wanted():
    """Devices that are not wanted are not read."""
    devices = Devices(cpu=False, gpu=False, open_gpus=no_gpus)
    asyncio.run(devices.run(0))
    assert devices.lines() == ""
