# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes the metrics of the machine's processors, memory and GPUs from the texts of /proc. (pure)

devices.py reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyruntime.runtime.observe import built_in
from pyruntime.runtime.observe.built_in import BuiltIn
from pyruntime.runtime.observe.exposition import labels_text

# The fields of the line `cpu` in /proc/stat: user nice system idle iowait irq softirq steal. The two fields after them,
# for guests, are included in the first two.
_IDLE, _IOWAIT, _TIMES = 3, 4, 8


class CpuTimes(NamedTuple):
    """The times of all processors together since the machine started, in ticks."""

    total: int
    idle: int


class Memory(NamedTuple):
    """The machine's memory, in bytes."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU; None for readings that it lacks. Bytes, watts, joules; `utilization` is from 0.0 to 1.0."""

    uuid: str
    utilization: float | None = None
    memory_total: float | None = None
    memory_used: float | None = None
    power_usage: float | None = None
    power_limit: float | None = None
    energy: float | None = None


def cpu_times(stat: str) -> CpuTimes | None:
    """Parse /proc/stat; None if it is malformed."""
    line = stat.partition("\n")[0].split()
    try:
        times = [int(field) for field in line[1 : _TIMES + 1]]
    except ValueError:
        return None
    if line[:1] != ["cpu"] or len(times) <= _IOWAIT:
        return None
    return CpuTimes(sum(times), times[_IDLE] + times[_IOWAIT])


def utilization(before: CpuTimes, after: CpuTimes) -> float:
    """The fraction of the time between two readings that the processors were busy; 0.0 if no time passed."""
    total = after.total - before.total
    if total <= 0:
        return 0.0
    return min(max(1.0 - (after.idle - before.idle) / total, 0.0), 1.0)


def memory(meminfo: str) -> Memory | None:
    """Parse /proc/meminfo; None if it is malformed. Memory that the kernel can free at once counts as unused."""
    fields = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            fields[name] = int(number[0]) << 10
    total, available = fields.get("MemTotal"), fields.get("MemAvailable")
    return None if total is None or available is None else Memory(total, max(0, total - available))


def cpu_lines(utilization: float | None, memory: Memory | None) -> str:
    """The families of processors and memory, without those that are None."""
    lines = []
    if utilization is not None:
        lines.append(built_in.CPU_UTILIZATION.lines([built_in.CPU_UTILIZATION.sample("", utilization)]))
    if memory is not None:
        lines.append(built_in.CPU_MEMORY_TOTAL.lines([built_in.CPU_MEMORY_TOTAL.sample("", memory.total)]))
        lines.append(built_in.CPU_MEMORY_USED.lines([built_in.CPU_MEMORY_USED.sample("", memory.used)]))
    return "".join(lines)


_GPU_FAMILIES: tuple[tuple[BuiltIn, Callable[[GpuReading], float | None]], ...] = (
    (built_in.GPU_UTILIZATION, lambda gpu: gpu.utilization),
    (built_in.GPU_MEMORY_TOTAL, lambda gpu: gpu.memory_total),
    (built_in.GPU_MEMORY_USED, lambda gpu: gpu.memory_used),
    (built_in.GPU_POWER_USAGE, lambda gpu: gpu.power_usage),
    (built_in.GPU_POWER_LIMIT, lambda gpu: gpu.power_limit),
    (built_in.GPU_ENERGY, lambda gpu: gpu.energy),
)


def gpu_lines(gpus: Sequence[GpuReading]) -> str:
    """The families of GPUs; "" without GPUs."""
    families = []
    for family, read in _GPU_FAMILIES:
        samples = [
            family.sample(labels_text({"gpu_uuid": gpu.uuid}), value)
            for gpu in gpus
            if (value := read(gpu)) is not None
        ]
        families.append(family.lines(samples))
    return "".join(families)
