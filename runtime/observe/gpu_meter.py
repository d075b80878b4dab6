# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads how busy GPUs are, through NVML. All calls block, for milliseconds, and the first one for seconds."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p

from pyruntime.runtime.observe.machine import GpuReading
from pyruntime.utils.gpu.nvml import LIBRARY, Nvml


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class GpuMeter:
    """The GPUs of the machine that have a UUID. Not thread-safe."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Raises OSError if the library does not exist or finds no driver."""
        self._nvml = Nvml(library)
        self._devices = [
            (device, uuid) for device in self._nvml.devices() if (uuid := self._nvml.text("GetUUID", device))
        ]
        # The driver counts energy since it was loaded; Triton reports it since the server started.
        self._energy_at_start = [self._energy_mj(device) for device, _ in self._devices]

    def __repr__(self) -> str:
        return f"<GpuMeter [{len(self._devices)} GPUs]>"

    def close(self) -> None:
        """Release the driver."""
        self._nvml.close()

    def read(self) -> list[GpuReading]:
        """The current readings of all GPUs."""
        return [
            self._read(device, uuid, at_start)
            for (device, uuid), at_start in zip(self._devices, self._energy_at_start, strict=True)
        ]

    def _read(self, device: c_void_p, uuid: str, energy_at_start: int | None) -> GpuReading:
        rates, memory = _Utilization(), self._nvml.memory(device)
        has_rates = self._nvml.call("GetUtilizationRates", device, byref(rates))
        usage_mw = self._nvml.number("GetPowerUsage", device, c_uint)
        limit_mw = self._nvml.number("GetPowerManagementLimit", device, c_uint)
        energy_mj = self._energy_mj(device)
        return GpuReading(
            uuid,
            rates.gpu / 100 if has_rates else None,
            None if memory is None else memory.total,
            None if memory is None else memory.used,
            None if usage_mw is None else usage_mw / 1000,
            None if limit_mw is None else limit_mw / 1000,
            None if energy_mj is None or energy_at_start is None else (energy_mj - energy_at_start) / 1000,
        )

    def _energy_mj(self, device: c_void_p) -> int | None:
        return self._nvml.number("GetTotalEnergyConsumption", device, c_ulonglong)
