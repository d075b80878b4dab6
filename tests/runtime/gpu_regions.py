# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions on GPUs for tests in which no process opens them."""

from pyruntime.runtime.regions import GpuRegion
from pyruntime.utils.gpu.driver import GpuProperties


def gpu_region(gpu=0, lessor=None, size=4096):
    """A region of so many bytes on this GPU, by its number."""
    return GpuRegion(GpuProperties(gpu, f"GPU-{gpu}", "G", (8, 0), 1, 1, False), bytes(64), size, b"", lessor)
