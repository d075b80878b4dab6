# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the compute capability of a GPU from CUDA's driver."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int

from pyruntime.utils.errors import LoadError

LIBRARY = "libcuda.so.1"
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_MAJOR, _MINOR = 75, 76


def compute_capability(device_id: int, library: str = LIBRARY) -> str:
    """The compute capability of a GPU, as `major.minor`. Creates no CUDA context. Raises LoadError."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as exc:
        raise LoadError(f"the compute capability of GPU {device_id} cannot be had: {exc}") from exc
    device, major, minor = c_int(), c_int(), c_int()
    status = cuda.cuInit(0) or cuda.cuDeviceGet(byref(device), device_id)
    for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
        status = status or cuda.cuDeviceGetAttribute(byref(value), attribute, device)
    if status:
        raise LoadError(f"the compute capability of GPU {device_id} cannot be had: CUDA error {status}")
    return f"{major.value}.{minor.value}"
