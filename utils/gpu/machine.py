# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The file that describes the GPUs of the stand-in. (pure)

The file is a JSON object. Tests may replace it at any time; it is read again for each call.

    gpus     a list of objects: uuid, and as far as the defaults do not suit name, compute_capability ([8, 0]),
             total_bytes, used_bytes (by others than the stand-in), is_slice, and peers, the UUIDs of the GPUs whose
             memory it can open
    faults   the names of methods of `Gpu`, each with the error that it raises, such as "CUDA_ERROR_OUT_OF_MEMORY"
"""

from __future__ import annotations

import json
from typing import Dict, List, NamedTuple

from pyruntime.utils.gpu.driver import GpuProperties

_TOTAL_BYTES = 16 << 30


class Machine(NamedTuple):
    """See the module."""

    gpus: List[GpuProperties]
    faults: Dict[str, str]
    peers: Dict[str, List[str]]


def parse_machine(text: str) -> Machine:
    """The machine of a file with these contents. Raises ValueError and KeyError for others."""
    document = json.loads(text)
    gpus = []
    for ordinal, gpu in enumerate(document["gpus"]):
        major, minor = gpu.get("compute_capability", (8, 0))
        total = gpu.get("total_bytes", _TOTAL_BYTES)
        free = total - gpu.get("used_bytes", 0)
        name = gpu.get("name", "Stand-in")
        gpus.append(GpuProperties(ordinal, gpu["uuid"], name, (major, minor), total, free, gpu.get("is_slice", False)))
    peers = {gpu["uuid"]: gpu.get("peers", []) for gpu in document["gpus"]}
    return Machine(gpus, document.get("faults", {}), peers)
