# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this process, each opened when the first tensor there shows up, and which one is its own."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Dict, List, Optional, Set

from pyruntime.stub.logs import LOGGER
from pyruntime.utils.errors import LoadError
from pyruntime.utils.gpu.driver import Gpu, GpuError, gpu_error
from pyruntime.utils.gpu.inventory import find_gpus, open_gpu, seen_by_cuda
from pyruntime.utils.gpu.visible import OWN_GPU, VISIBLE

# The GPUs that this process has used, by their numbers here. Who looks whether there are any needs no lock.
opened: Dict[int, Gpu] = {}
# The GPUs that tensors of this process may lie on, also without a use of them here. The same goes for those who look.
known: Set[int] = set()
# The GPUs on which a framework of this process may read the memory of another process: see `settle`.
unsettled: Set[int] = set()

# The numbers of the GPUs by their UUIDs, as long as the variable has the value with which they were looked up.
_ordinals: Dict[str, int] = {}
_looked_up_with: Optional[str] = None
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
    global _looked_up_with
    with _lock:
        value = os.environ.get(VISIBLE)
        if uuid not in _ordinals or value != _looked_up_with:  # a model may set the variable
            uuids = seen_by_cuda()
            _ordinals.clear()
            _ordinals.update((each, ordinal) for ordinal, each in enumerate(_uuids() if uuids is None else uuids))
            _looked_up_with = value
        if uuid not in _ordinals:
            raise gpu_error("CUDA_ERROR_INVALID_DEVICE", "open", f"this process does not see GPU {uuid}")
        known.add(_ordinals[uuid])
        return _ordinals[uuid]


def check_own_gpu(before: Optional[str], location: Dict[str, str]) -> None:
    """Check that a model has not hidden its own GPU from itself: `before` is CUDA_VISIBLE_DEVICES without the model.

    Raises LoadError where the server had set the variable. Elsewhere Triton runs such a model, too: a warning.
    """
    value, uuid = os.environ.get(VISIBLE), location["gpu_uuid"]
    if value is None or value == before or not _names_gpus(value) or uuid in _uuids():
        return
    problem = (
        f"the model has set {VISIBLE} to '{value}', and its process does not see GPU {location['gpu']} ({uuid}), which "
        "its instance is on"
    )
    if location["visible_gpus"] == OWN_GPU:
        raise LoadError(
            f"{problem}. The server had set it to '{before}', because VISIBLE_GPUS or --visible-gpus is '{OWN_GPU}', "
            "or because a GPU is a slice: the model must leave it as it is, and use GPU 0"
        )
    LOGGER.warning(
        "%s. Such numbers count the GPUs of the machine, and the server's %s is %s", problem, VISIBLE, before
    )


def _uuids() -> List[str]:
    return [gpu.uuid for gpu in find_gpus()]


def _names_gpus(value: str) -> bool:
    """Whether a value of the variable is to show GPUs: others hide all of them, such as "" and "-1"."""
    first = value.split(",")[0].strip()
    return first.isdigit() or first.startswith(("GPU-", "MIG-"))


def settle() -> None:
    """Return when frameworks have read what they were given. The memory may be another tensor's afterwards.

    Their streams are not known here, so that no event can say it. A GPU that failed reads nothing any more. No GPU is
    ever settled for good: what a framework was given once, it may read again at any time.
    """
    for gpu in tuple(unsettled):
        with contextlib.suppress(GpuError):
            gpu_of(gpu).settle()
