# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sets the threads of TensorFlow, and the devices that it sees, in the process of an instance."""

from __future__ import annotations

from typing import Any

from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import ConfigError


def set_threads(tensorflow: Any, settings: Settings, threads: int) -> None:
    """Limit the threads of this process to `threads`, or to those that the parameters say. Raises ConfigError.

    Each instance has its own, so TF_USE_PER_SESSION_THREADS changes nothing.
    """
    set_intra = tensorflow.config.threading.set_intra_op_parallelism_threads
    set_inter = tensorflow.config.threading.set_inter_op_parallelism_threads
    settings.boolean("TF_USE_PER_SESSION_THREADS")
    for parameter, setter in (("TF_NUM_INTRA_THREADS", set_intra), ("TF_NUM_INTER_THREADS", set_inter)):
        count = settings.integer(parameter, threads)
        assert count is not None  # it has a default
        if count < 0:
            raise settings.refused(parameter, "at least 0")
        setter(count)


def choose_device(tensorflow: Any, settings: Settings, kind: str, device_id: str) -> None:
    """Show TensorFlow the devices of an instance; all of them for KIND_MODEL. Raises ConfigError."""
    gpus = tensorflow.config.list_physical_devices("GPU")
    if kind == "GPU" and int(device_id) >= len(gpus):
        raise ConfigError(
            f"model '{settings.name}' has an instance of kind KIND_GPU on GPU {device_id}, and tensorflow "
            f"{tensorflow.__version__} finds {len(gpus)} GPUs: install tensorflow[and-cuda], or use KIND_CPU"
        )
    if kind != "MODEL":
        gpus = [gpus[int(device_id)]] if kind == "GPU" else []
        tensorflow.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:  # each instance is a process, which would otherwise take all of the GPU's memory at once
        tensorflow.config.experimental.set_memory_growth(gpu, True)
