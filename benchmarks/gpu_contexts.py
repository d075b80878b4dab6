# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which processes have a context on a GPU, as NVIDIA's driver knows it, or as far as the stand-in has it."""

import ctypes
import os
from ctypes import byref, c_uint, c_ulonglong
from pathlib import Path

from proctree import tree

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


def count_contexts(server):
    """How many contexts the processes of a server have: its own process, whose number this is, brokers, stubs, others.

    None if the driver does not tell.
    """
    family = tree(server)
    holders = context_holders(family)
    if holders is None:
        return None
    counts = dict.fromkeys(("host", "brokers", "stubs", "others"), 0)
    for pid in holders:
        title = Path(f"/proc/{pid}/cmdline").read_text()
        is_stub, is_broker = title.startswith("triton_python_backend_stub"), "broker of GPU" in title
        kind = "host" if pid == server else "brokers" if is_broker else "stubs" if is_stub else "others"
        counts[kind] += 1
    return counts


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
