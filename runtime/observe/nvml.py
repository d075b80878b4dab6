# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads GPUs through NVML, NVIDIA's management library, which comes with the driver.

It calls the library by ctypes and not through a package: the few functions have had the same plain arguments for ten
years. All calls block, for milliseconds, and the first one for seconds.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_uint, c_ulonglong, c_void_p
from typing import TypeAlias

from pyruntime.runtime.observe.machine import GpuReading

LIBRARY = "libnvidia-ml.so.1"
# NVML_DEVICE_UUID_V2_BUFFER_SIZE
_UUID_BYTES = 96
_SUCCESS = 0

_Number: TypeAlias = type[c_uint] | type[c_ulonglong]


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Nvml:
    """The GPUs of the machine. Not thread-safe."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Raises OSError if the library does not exist or finds no driver."""
        self._library = ctypes.CDLL(library)
        status = self._call("nvmlInit_v2")
        if status != _SUCCESS:
            raise OSError(f"NVML cannot be initialized: error {status}")
        self._devices = list(self._find_devices())
        # The driver counts energy since it was loaded; Triton reports it since the server started.
        self._energy_at_start = [
            self._number(device, "TotalEnergyConsumption", c_ulonglong) for device, _ in self._devices
        ]

    def __repr__(self) -> str:
        return f"<Nvml [{len(self._devices)} GPUs]>"

    def close(self) -> None:
        """Release the driver."""
        self._call("nvmlShutdown")

    def read(self) -> list[GpuReading]:
        """The current readings of all GPUs."""
        return [
            self._read(device, uuid, at_start)
            for (device, uuid), at_start in zip(self._devices, self._energy_at_start, strict=True)
        ]

    def _read(self, device: c_void_p, uuid: str, energy_at_start: int | None) -> GpuReading:
        rates, memory = _Utilization(), _Memory()
        has_rates = self._call("nvmlDeviceGetUtilizationRates", device, byref(rates)) == _SUCCESS
        has_memory = self._call("nvmlDeviceGetMemoryInfo", device, byref(memory)) == _SUCCESS
        usage_mw = self._number(device, "PowerUsage", c_uint)
        limit_mw = self._number(device, "PowerManagementLimit", c_uint)
        energy_mj = self._number(device, "TotalEnergyConsumption", c_ulonglong)
        return GpuReading(
            uuid,
            rates.gpu / 100 if has_rates else None,
            memory.total if has_memory else None,
            memory.used if has_memory else None,
            None if usage_mw is None else usage_mw / 1000,
            None if limit_mw is None else limit_mw / 1000,
            None if energy_mj is None or energy_at_start is None else (energy_mj - energy_at_start) / 1000,
        )

    def _find_devices(self) -> list[tuple[c_void_p, str]]:
        """The handle and the UUID of each GPU that this process may access."""
        count = c_uint()
        if self._call("nvmlDeviceGetCount_v2", byref(count)) != _SUCCESS:
            return []
        found = []
        for index in range(count.value):
            device, uuid = c_void_p(), (c_char * _UUID_BYTES)()
            if (
                self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device)) == _SUCCESS
                and self._call("nvmlDeviceGetUUID", device, uuid, c_uint(_UUID_BYTES)) == _SUCCESS
            ):
                found.append((device, uuid.value.decode(errors="replace")))
        return found

    def _number(self, device: c_void_p, what: str, kind: _Number) -> int | None:
        """One property of a device, None if the device lacks it."""
        number = kind()
        status = self._call(f"nvmlDeviceGet{what}", device, byref(number))
        return int(number.value) if status == _SUCCESS else None

    def _call(self, function: str, *arguments: object) -> int:
        """Call a function and return its status; -1 if the library is too old to have it."""
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:
            return -1
