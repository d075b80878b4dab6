#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the head of the report of scripts/test-gpu: the devices, the driver, and the versions of what is tested.

Usage: gpu_report.py [FRAMEWORK...]
"""

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from pyruntime.utils.gpu.inventory import find_gpus

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def devices() -> Iterator[str]:
    """A line for each GPU."""
    for gpu in find_gpus():
        major, minor = gpu.compute_capability
        kind = "slice" if gpu.is_slice else "GPU"
        yield f"{kind} {gpu.ordinal}: {gpu.name}, compute capability {major}.{minor}, {gpu.total_bytes >> 20} MiB"


def driver() -> str:
    """The version of NVIDIA's driver, "unknown" without its program."""
    if not shutil.which(NVIDIA_SMI[0]):
        return "unknown"
    found = subprocess.run(NVIDIA_SMI, capture_output=True, text=True).stdout.split()
    return found[0] if found else "unknown"


def installed(name: str) -> str:
    """The version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main(frameworks: Sequence[str]) -> None:
    print("\n".join(devices()) or "No GPU was found. NOTHING BELOW RAN ON ONE.")
    print(f"driver {driver()}, {platform.system()} {platform.release()}, Python {platform.python_version()}")
    for name in ("pyruntime", "cuda-bindings", *frameworks):
        print(f"{name} {installed(name)}")


if __name__ == "__main__":
    main(sys.argv[1:])
