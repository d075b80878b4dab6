# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of OpenVINO models, which have the names of Triton's OpenVINO backend. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Tuple

from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import ConfigError

# Triton's values of flags, and those of all backends.
_FLAGS = {"YES": True, "TRUE": True, "1": True, "NO": False, "FALSE": False, "0": False}
# Streams that OpenVINO chooses by itself.
_STREAMS = ("AUTO", "NUMA")


@dataclass(frozen=True)
class Options:
    """`properties` are those of the compiled model, `extensions` the paths of libraries besides model_operations.

    `keeps_batch_size`: the batch dimension of the model file stays, with `pads_batches` smaller batches are filled up
    to it. `reshapes`: inputs get the shapes of the configuration.
    """

    device: str
    properties: Dict[str, Any]
    extensions: Tuple[str, ...]
    keeps_batch_size: bool
    pads_batches: bool
    reshapes: bool


def read_options(settings: Settings, threads: int, kind: str, device_id: str) -> Options:
    """The options of an instance, which gets `threads` unless a parameter says otherwise. Raises ConfigError."""
    device = settings.parameters.get("TARGET_DEVICE") or (f"GPU.{device_id}" if kind == "GPU" else "CPU")
    extension = settings.parameters.get("CPU_EXTENSION_PATH", "")
    return Options(
        device=device,
        properties=_properties(settings, threads, device),
        extensions=(extension,) if extension else (),
        keeps_batch_size=_flag(settings, "SKIP_OV_DYNAMIC_BATCHSIZE"),
        pads_batches=_flag(settings, "ENABLE_BATCH_PADDING"),
        reshapes=_flag(settings, "RESHAPE_IO_LAYERS"),
    )


def check_device(settings: Settings, device: str, available: Tuple[str, ...]) -> None:
    """Raise ConfigError for a GPU or NPU that this host does not have. OpenVINO checks names of several devices."""
    kind = device.partition(".")[0]
    if kind in ("GPU", "NPU") and not any(each.partition(".")[0] == kind for each in available):
        raise ConfigError(
            f"model '{settings.name}' has an instance on {device}, and OpenVINO finds {', '.join(available)}: install "
            "the driver of the device, or use KIND_CPU and TARGET_DEVICE CPU"
        )


def _properties(settings: Settings, threads: int, device: str) -> Dict[str, Any]:
    given = settings.parameters
    properties: Dict[str, Any] = {}
    if device == "CPU" or "INFERENCE_NUM_THREADS" in given:
        properties["INFERENCE_NUM_THREADS"] = _count(settings, "INFERENCE_NUM_THREADS", threads)
    if device == "CPU" or "NUM_STREAMS" in given:
        properties["NUM_STREAMS"] = _streams(settings)
    if device == "CPU":
        # The instances of a model are processes, and each of them would bind its threads to the same cores.
        properties["ENABLE_CPU_PINNING"] = settings.instance_count <= 1
    if "COMPILATION_NUM_THREADS" in given:
        properties["COMPILATION_NUM_THREADS"] = _count(settings, "COMPILATION_NUM_THREADS", threads)
    if _flag(settings, "HINT_BF16"):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    return properties


def _count(settings: Settings, parameter: str, default: int) -> int:
    count = settings.integer(parameter, default)
    assert count is not None  # it has a default
    if count < 0:
        raise settings.refused(parameter, "at least 0")
    return count


def _streams(settings: Settings) -> str:
    # An instance executes one batch at a time, so that more than one stream has nothing to do.
    text = settings.parameters.get("NUM_STREAMS", "1")
    if not (text in _STREAMS or (text.isdigit() and int(text) > 0)):
        raise settings.refused("NUM_STREAMS", "AUTO, NUMA or a number from 1")
    return text


def _flag(settings: Settings, parameter: str) -> bool:
    text = settings.parameters.get(parameter, "NO")
    if text.strip().upper() not in _FLAGS:
        raise settings.refused(parameter, "YES or NO")
    return _FLAGS[text.strip().upper()]
