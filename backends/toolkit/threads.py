# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Divides the cores that this process may use among the instances of a model."""

from __future__ import annotations

import math
import os

CPU_QUOTA = "/sys/fs/cgroup/cpu.max"


def threads_per_instance(instance_count: int, cores: int) -> int:
    """The threads of each instance, so that all instances together have no more threads than cores. At least 1."""
    return max(1, cores // max(1, instance_count))


def usable_cores(quota_path: str = CPU_QUOTA) -> int:
    """The cores that this process may use: its CPU affinity, and the quota of its cgroup. At least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open(quota_path) as file:
            quota = file.read()
    except OSError:  # no cgroup of version 2
        return cores
    return cores_of_quota(quota, cores)


def cores_of_quota(quota: str, cores: int) -> int:
    """The cores that `cpu.max` allows, `<quota> <period>` in microseconds or `max <period>`, at most `cores`."""
    allowed, _, period = quota.strip().partition(" ")
    if not (allowed.isdigit() and period.isdigit() and int(period)):
        return cores
    return max(1, min(cores, math.ceil(int(allowed) / int(period))))
