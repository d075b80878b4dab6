# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The head of the report of scripts/test-gpu: the devices, the driver, and the versions of what is tested."""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions

from pyruntime.utils.gpu.inventory import find_gpus

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
# Whichever version of CUDA they are for: it is part of the names of some.
NAMES = re.compile(
    "(pyruntime|cuda|torch|triton|tritonclient|cupy|jax|jaxlib|numba|numpy|pytest)(-(cuda|python|bindings).*)?"
)


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


def packages() -> Iterator[str]:
    """A line for each package that matters, with its version."""
    # The first one of a name is imported: a virtual environment hides what the interpreter has.
    found: dict[str, str] = {}
    for each in distributions():
        name = each.metadata["Name"].lower().replace("_", "-")
        if NAMES.fullmatch(name):
            found.setdefault(name, each.version)
    return (f"{name} {version}" for name, version in sorted(found.items()))


def print_head() -> None:
    print("\n".join(devices()) or "No GPU was found. NOTHING BELOW RAN ON ONE.")
    print(f"driver {driver()}, {platform.system()} {platform.release()}, Python {platform.python_version()}")
    print("\n".join(packages()), flush=True)
