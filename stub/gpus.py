# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this process, each opened when the first tensor there shows up."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Set

from pyruntime.utils.gpu.driver import Gpu, GpuError, gpu_error
from pyruntime.utils.gpu.inventory import find_gpus, open_gpu

# The GPUs that this process has used, by their numbers here. Who looks whether there are any needs no lock.
opened: Dict[int, Gpu] = {}
# The GPUs that tensors of this process may lie on, also without a use of them here. The same goes for those who look.
known: Set[int] = set()
# The GPUs on which a framework of this process may read the memory of another process: see `settle`.
unsettled: Set[int] = set()

_ordinals: Dict[str, int] = {}
_lock = threading.Lock()


def gpu_of(ordinal: int) -> Gpu:
    """The GPU with this number in this process. Raises GpuError if it cannot be used."""
    found = opened.get(ordinal)
    if found is not None:  # without the lock: another thread may hold it for seconds, and this one around a destructor
        return found
    with _lock:
        if ordinal not in opened:
            opened[ordinal] = open_gpu(ordinal)
            known.add(ordinal)
        return opened[ordinal]


def ordinal_of(uuid: str) -> int:
    """The number of a GPU in this process. Raises GpuError if the process does not see it."""
    with _lock:
        if uuid not in _ordinals:
            _ordinals.update((gpu.uuid, gpu.ordinal) for gpu in find_gpus())
        if uuid not in _ordinals:
            raise gpu_error("CUDA_ERROR_INVALID_DEVICE", "open", f"this process does not see GPU {uuid}")
        known.add(_ordinals[uuid])
        return _ordinals[uuid]


def settle() -> None:
    """Return when frameworks have read what they were given. The memory may be another tensor's afterwards.

    Their streams are not known here, so that no event can say it. A GPU that failed reads nothing any more. No GPU is
    ever settled for good: what a framework was given once, it may read again at any time.
    """
    for gpu in tuple(unsettled):
        with contextlib.suppress(GpuError):
            gpu_of(gpu).settle()
