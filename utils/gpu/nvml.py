# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the GPUs of the machine through NVML, NVIDIA's management library, which comes with the driver.

It needs no context, which would take some hundred megabytes of each GPU, and no package of NVIDIA's. Calls block, the
first one for up to seconds.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, List, Optional

from pyruntime.utils.gpu.driver import GpuProperties

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
# NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE.
_TEXT_BYTES = 96


class _Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


def find_by_nvml(library: str = LIBRARY) -> List[GpuProperties]:
    """The GPUs of the machine in the order of their bus; a GPU that is partitioned is its MIG slices.

    Empty if there is no driver.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return []
    if _call(nvml, "nvmlInit_v2") != _SUCCESS:
        return []
    try:
        return _Search(nvml).gpus()
    finally:
        _call(nvml, "nvmlShutdown")


def _call(library: ctypes.CDLL, function: str, *arguments: Any) -> int:
    """The status of a call; -1 if the library is too old to have the function."""
    try:
        return int(getattr(library, function)(*arguments))
    except AttributeError:
        return -1


class _Search:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def gpus(self) -> List[GpuProperties]:
        count = c_uint()
        if self._call("GetCount_v2", byref(count)) != _SUCCESS:
            return []
        found = []
        for index in range(count.value):
            device = c_void_p()
            if self._call("GetHandleByIndex_v2", c_uint(index), byref(device)) == _SUCCESS:
                slices = self._slices(device)
                found.extend([self._properties(device, device, False)] if slices is None else slices)
        return [each._replace(ordinal=ordinal) for ordinal, each in enumerate(filter(None, found))]

    def _slices(self, device: c_void_p) -> Optional[List[Optional[GpuProperties]]]:
        """The MIG slices of a GPU, None if it is not partitioned. CUDA cannot use one that is, and has no slices."""
        is_partitioned, pending, count = c_uint(), c_uint(), c_uint()
        if (
            self._call("GetMigMode", device, byref(is_partitioned), byref(pending)) != _SUCCESS
            or not is_partitioned.value
            or self._call("GetMaxMigDeviceCount", device, byref(count)) != _SUCCESS
        ):
            return None
        found = []
        for index in range(count.value):
            part = c_void_p()
            if self._call("GetMigDeviceHandleByIndex", device, c_uint(index), byref(part)) == _SUCCESS:
                found.append(self._properties(part, device, True))
        return found

    def _properties(self, device: c_void_p, whole: c_void_p, is_slice: bool) -> Optional[GpuProperties]:
        """The properties of a device; `whole` is the GPU that it is, or is a slice of."""
        memory, major, minor = _Memory(), c_int(), c_int()
        uuid = self._text("GetUUID", device)
        if (
            not uuid
            or self._call("GetMemoryInfo", device, byref(memory)) != _SUCCESS
            or self._call("GetCudaComputeCapability", whole, byref(major), byref(minor)) != _SUCCESS
        ):
            return None
        name = self._text("GetName", device) or self._text("GetName", whole)
        return GpuProperties(0, uuid, name, (major.value, minor.value), memory.total, memory.free, is_slice)

    def _text(self, what: str, device: c_void_p) -> str:
        text = (c_char * _TEXT_BYTES)()
        status = self._call(what, device, text, c_uint(_TEXT_BYTES))
        return text.value.decode(errors="replace") if status == _SUCCESS else ""

    def _call(self, what: str, *arguments: Any) -> int:
        return _call(self._library, f"nvmlDevice{what}", *arguments)
