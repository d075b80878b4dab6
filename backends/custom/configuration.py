# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prepares the arguments of a custom library, from the configuration and the arguments of `initialize`. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from pyruntime.backends.custom.abi import NO_GPU_DEVICE
from pyruntime.runtime.config.schema import POOL, new_model_config
from pyruntime.utils.dtypes import BY_CONFIG_NAME

FILENAME_DEFAULT = "libcustom.so"


def serialize(model_config: str) -> bytes:
    """Convert a configuration from JSON to a serialized message `inference.ModelConfig`."""
    config = json_format.Parse(model_config, new_model_config(), descriptor_pool=POOL)
    serialized: bytes = config.SerializeToString(deterministic=True)
    return serialized


def gpu_device_id(args: Mapping[str, str]) -> int:
    """The number of the instance's GPU; NO_GPU_DEVICE if it runs on the CPU."""
    return int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else NO_GPU_DEVICE


def instance_name(config: Mapping[str, Any], args: Mapping[str, str], gpu: str = "") -> str:
    """The instance's name in the old form, which libraries may parse: `<group>_<i>_cpu`, `<group>_<i>_gpu<id>`.

    Here `i` counts the instances on one GPU; in current names it counts those of the group. `gpu` is the number of the
    GPU in the server, "" for the one that it has here.
    """
    group_name, _, index = args["model_instance_name"].rpartition("_")
    device = gpu_device_id(args)
    if device == NO_GPU_DEVICE:
        return f"{group_name}_{index}_cpu"
    (count,) = (group["count"] for group in config["instance_group"] if group["name"] == group_name)
    return f"{group_name}_{int(index) % count}_gpu{gpu or device}"


def library_filename(config: Mapping[str, Any], compute_capability: str) -> str:
    """The library's file, in the version's folder. `compute_capability` is that of the GPU, "" on the CPU."""
    filenames: Mapping[str, str] = config.get("cc_model_filenames", {})
    return filenames.get(compute_capability, "") or config.get("default_model_filename", "") or FILENAME_DEFAULT


def output_datatypes(config: Mapping[str, Any]) -> dict[str, str]:
    """The protocol's datatype of each output, because libraries do not report them."""
    return {output["name"]: BY_CONFIG_NAME[output["data_type"]].name for output in config["output"]}
