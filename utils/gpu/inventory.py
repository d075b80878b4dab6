# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs that this process, and those that it starts, may use.

The variable STAND_IN names a file that describes GPUs which do not exist: see machine.py. It is for tests.
"""

from __future__ import annotations

import os
from typing import List, Optional

from pyruntime.utils.gpu.driver import Gpu, GpuProperties
from pyruntime.utils.gpu.visible import VISIBLE, visible

STAND_IN = "PYRUNTIME_GPU_STAND_IN"


def find_gpus() -> List[GpuProperties]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; empty without a driver. Blocks, for up to seconds."""
    path = os.environ.get(STAND_IN)
    if path:
        from pyruntime.utils.gpu.machine import parse_machine

        with open(path) as file:
            gpus = parse_machine(file.read()).gpus
    else:
        from pyruntime.utils.gpu.nvml import find_by_nvml

        gpus = find_by_nvml()
    return visible(gpus, os.environ.get(VISIBLE))


def seen_by_cuda() -> Optional[List[str]]:
    """The UUIDs of the GPUs that this process uses, in CUDA's order; None as long as CUDA is not initialized here.

    CUDA reads CUDA_VISIBLE_DEVICES then, and never again.
    """
    path = os.environ.get(STAND_IN)
    if path:
        from pyruntime.utils.gpu import stand_in

        return stand_in.seen(path)
    from pyruntime.utils.gpu import cuda

    return cuda.seen()


def device_of(pointer: int) -> int:
    """The number of the GPU that memory of this process lies on, also a framework's. Uses none. Raises GpuError."""
    if os.environ.get(STAND_IN):
        from pyruntime.utils.gpu import stand_in

        return stand_in.device_of(pointer)
    from pyruntime.utils.gpu import cuda

    return cuda.device_of(pointer)


def open_gpu(ordinal: int = 0) -> Gpu:
    """The GPU with this number among those of `find_gpus`, with a context in this process. Raises GpuError."""
    path = os.environ.get(STAND_IN)
    if path:
        from pyruntime.utils.gpu.stand_in import StandInGpu

        return StandInGpu(path, ordinal)
    from pyruntime.utils.gpu.cuda import CudaGpu

    return CudaGpu(ordinal)
