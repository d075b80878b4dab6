# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which processes have a context on a GPU, as NVIDIA's driver knows it, or as far as the stand-in has it."""

import ctypes
import os
from ctypes import byref, c_uint, c_ulonglong
from pathlib import Path

from pyruntime.utils.gpu.inventory import STAND_IN
from pyruntime.utils.gpu.nvml import LIBRARY, Nvml

PROCESSES_MAX = 1024


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


def context_holders(pids, library=LIBRARY):
    """Those of these processes that have a context; None if the driver does not tell.

    This process must have one: the driver may number processes otherwise than this machine does, as in a container.
    """
    if os.environ.get(STAND_IN):
        return [pid for pid in pids if "pyruntime stand-in" in Path(f"/proc/{pid}/maps").read_text()]
    listed = _listed_by_nvml(library)
    return [pid for pid in pids if pid in listed] if os.getpid() in listed else None


def _listed_by_nvml(library):
    """All processes that compute on a GPU, or on a slice of one."""
    try:
        nvml = Nvml(library)
    except OSError:
        return set()
    found = set()
    for device in nvml.devices():
        count, each = c_uint(PROCESSES_MAX), (_ProcessInfo * PROCESSES_MAX)()
        if nvml.call("GetComputeRunningProcesses_v3", device, byref(count), each):
            found |= {one.pid for one in each[: count.value]}
    nvml.close()
    return found
