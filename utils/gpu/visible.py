# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Applies CUDA_VISIBLE_DEVICES to the GPUs of a machine, as CUDA does. (pure)

    value := entry ("," entry)*
    entry := number | the beginning of a UUID

Entries from the first invalid one on have no effect. CUDA_VISIBLE_DEVICES numbers whole GPUs only; a MIG slice, and a
GPU that has slices, is named by its UUID.
"""

from __future__ import annotations

from typing import List, Optional, Sequence

from pyruntime.utils.gpu.driver import GpuProperties

VISIBLE = "CUDA_VISIBLE_DEVICES"
# What the process of an instance sees: see runtime/gpus/visibility.py.
ALL_GPUS, OWN_GPU = "all", "own"


def visible(gpus: Sequence[GpuProperties], value: Optional[str]) -> List[GpuProperties]:
    """The GPUs that a process with this value sees, with their numbers there; all of them for None."""
    if value is None:
        return [gpu._replace(ordinal=ordinal) for ordinal, gpu in enumerate(gpus)]
    found: List[GpuProperties] = []
    whole = [gpu for gpu in gpus if not gpu.is_slice]
    for entry in value.split(","):
        gpu = _find(entry.strip(), gpus, whole)
        if gpu is None or gpu in found:
            break
        found.append(gpu)
    return [gpu._replace(ordinal=ordinal) for ordinal, gpu in enumerate(found)]


def _find(entry: str, gpus: Sequence[GpuProperties], whole: Sequence[GpuProperties]) -> Optional[GpuProperties]:
    if entry.isdigit():
        return whole[int(entry)] if int(entry) < len(whole) else None
    matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
