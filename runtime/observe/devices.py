# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the machine's devices every --metrics-interval-ms, and keeps the latest readings for the metrics page.

A thread reads them, because the kernel needs milliseconds to sum up the times of many processors, as does a GPU driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from pyruntime.runtime.observe.gpu_meter import GpuMeter
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

_LOG = logging.getLogger("pyruntime.metrics")


class Devices:
    """The devices and their latest readings. `open_gpus` raises OSError if there are no GPUs."""

    def __init__(
        self, cpu: bool, gpu: bool, proc: Path = Path("/proc"), open_gpus: Callable[[], GpuMeter] = GpuMeter
    ) -> None:
        self._cpu = cpu
        self._gpu = gpu
        self._proc = proc
        self._open_gpus = open_gpus
        self._meter: GpuMeter | None = None
        self._times: CpuTimes | None = None
        self._utilization: float | None = None
        self._memory: Memory | None = None
        self._gpus: list[GpuReading] = []

    def lines(self) -> str:
        """The families of the latest readings."""
        return gpu_lines(self._gpus) + cpu_lines(self._utilization, self._memory)

    def machine(self) -> tuple[float | None, Memory | None]:
        """The latest utilization of the processors, and the memory; None for what was not read."""
        return self._utilization, self._memory

    async def run(self, interval_s: float) -> None:
        """Read all devices every `interval_s` seconds, until cancelled."""
        if not self._cpu and not self._gpu:
            return
        if self._gpu:
            await asyncio.to_thread(self._open)
        try:
            while True:
                await asyncio.to_thread(self.read)
                await asyncio.sleep(interval_s)
        finally:
            if self._meter is not None:
                self._meter.close()

    def read(self) -> None:
        """Read all devices now. Blocks. The page omits readings that fail."""
        if self._meter is not None:
            self._gpus = self._meter.read()
        if not self._cpu:
            return
        times, before = cpu_times(self._text("stat")), self._times
        self._utilization = None if times is None else utilization(before or times, times)
        self._times = times
        self._memory = memory(self._text("meminfo"))

    def _open(self) -> None:
        try:
            self._meter = self._open_gpus()
        except OSError as exc:
            _LOG.debug("no metrics of GPUs: %s", exc)

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text()
        except OSError:
            return ""
