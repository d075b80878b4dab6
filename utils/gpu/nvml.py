# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""NVML, NVIDIA's management library, which comes with the driver; and the GPUs that it finds.

It needs no context, which would take some hundred megabytes of each GPU. It is called by ctypes and not through a
package: the few functions have had the same plain arguments for ten years. All calls block, for milliseconds, and the
first one for seconds.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, List, Optional, Type, Union

from pyruntime.utils.gpu.driver import GpuProperties

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
# NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE.
_TEXT_BYTES = 96


class MemoryInfo(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Nvml:
    """The library, initialized. Not thread-safe."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Raises OSError if the library does not exist or finds no driver."""
        self._library = ctypes.CDLL(library)
        status = self._status("nvmlInit_v2")
        if status != _SUCCESS:
            raise OSError(f"NVML cannot be initialized: error {status}")

    def close(self) -> None:
        """Release the driver."""
        self._status("nvmlShutdown")

    def devices(self) -> List[c_void_p]:
        """The GPUs that this process may access, in the order of their bus."""
        count = c_uint()
        if not self.call("GetCount_v2", byref(count)):
            return []
        found = []
        for index in range(count.value):
            device = c_void_p()
            if self.call("GetHandleByIndex_v2", c_uint(index), byref(device)):
                found.append(device)
        return found

    def slices(self, device: c_void_p) -> Optional[List[c_void_p]]:
        """The MIG slices of a GPU, None if it is not partitioned. CUDA cannot use one that is, and has no slices."""
        is_partitioned, pending, count = c_uint(), c_uint(), c_uint()
        if (
            not self.call("GetMigMode", device, byref(is_partitioned), byref(pending))
            or not is_partitioned.value
            or not self.call("GetMaxMigDeviceCount", device, byref(count))
        ):
            return None
        found = []
        for index in range(count.value):
            part = c_void_p()
            if self.call("GetMigDeviceHandleByIndex", device, c_uint(index), byref(part)):
                found.append(part)
        return found

    def text(self, what: str, device: c_void_p) -> str:
        """A property that is text, such as "GetUUID"; empty if the device lacks it."""
        text = (c_char * _TEXT_BYTES)()
        has_text = self.call(what, device, text, c_uint(_TEXT_BYTES))
        return text.value.decode(errors="replace") if has_text else ""

    def number(self, what: str, device: c_void_p, kind: Type[Union[c_uint, c_ulonglong]]) -> Optional[int]:
        """A property that is a number, such as "GetPowerUsage"; None if the device lacks it."""
        number = kind()
        return int(number.value) if self.call(what, device, byref(number)) else None

    def memory(self, device: c_void_p) -> Optional[MemoryInfo]:
        """The memory of a device, None if it does not tell."""
        memory = MemoryInfo()
        return memory if self.call("GetMemoryInfo", device, byref(memory)) else None

    def call(self, what: str, *arguments: Any) -> bool:
        """Call a function for a device, and return whether it succeeded. Those that the library lacks fail."""
        return self._status(f"nvmlDevice{what}", *arguments) == _SUCCESS

    def _status(self, function: str, *arguments: Any) -> int:
        """Call a function and return its status; -1 if the library is too old to have it."""
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:
            return -1


def find_by_nvml(library: str = LIBRARY) -> List[GpuProperties]:
    """The GPUs of the machine in the order of their bus; a GPU that is partitioned is its MIG slices.

    Empty if there is no driver.
    """
    try:
        nvml = Nvml(library)
    except OSError:
        return []
    try:
        found = []
        for device in nvml.devices():
            slices = nvml.slices(device)
            parts = [device] if slices is None else slices
            found += [_properties(nvml, part, device, slices is not None) for part in parts]
        return [each._replace(ordinal=ordinal) for ordinal, each in enumerate(filter(None, found))]
    finally:
        nvml.close()


def _properties(nvml: Nvml, device: c_void_p, whole: c_void_p, is_slice: bool) -> Optional[GpuProperties]:
    """The properties of a device, None if it does not tell; `whole` is the GPU that it is, or is a slice of."""
    memory, major, minor = nvml.memory(device), c_int(), c_int()
    uuid = nvml.text("GetUUID", device)
    if not uuid or memory is None or not nvml.call("GetCudaComputeCapability", whole, byref(major), byref(minor)):
        return None
    name = nvml.text("GetName", device) or nvml.text("GetName", whole)
    return GpuProperties(0, uuid, name, (major.value, minor.value), memory.total, memory.free, is_slice)
