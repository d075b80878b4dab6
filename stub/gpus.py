# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this process, each opened when the first tensor there shows up."""

from __future__ import annotations

import threading
from typing import Dict

from pyruntime.utils.gpu.driver import Gpu
from pyruntime.utils.gpu.inventory import open_gpu

_gpus: Dict[int, Gpu] = {}
_lock = threading.Lock()


def gpu_of(ordinal: int) -> Gpu:
    """The GPU with this number in this process. Raises GpuError if it cannot be used."""
    with _lock:
        if ordinal not in _gpus:
            _gpus[ordinal] = open_gpu(ordinal)
        return _gpus[ordinal]
