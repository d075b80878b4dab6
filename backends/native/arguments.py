# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extension's arguments for a model and its instance, from the configuration and `initialize`'s arguments. (pure)

A configuration is that of the model, normalised, as parsed JSON. Its values have the type Any, because the server has
checked it already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pyruntime.runtime.repository.instance_mode import PARAMETER as INSTANCE_MODE
from pyruntime.runtime.repository.instance_mode import THREAD
from pyruntime.utils.errors import LoadError
from pyruntime.utils.gpu.visible import OWN_GPU

# TRITONSERVER_InstanceGroupKind.
_KINDS = {"AUTO": 0, "CPU": 1, "GPU": 2, "MODEL": 3}
# Names of datatypes that are not those of the configuration without `TYPE_`.
_NAMES = {"TYPE_STRING": "BYTES"}
_LIBRARY_NAME = re.compile(r"libtriton_(.+)\.so")


def check(config: Mapping[str, Any]) -> None:
    """Raise LoadError for a configuration that is not possible in a process of its own."""
    name = config["name"]
    if config["parameters"].get(INSTANCE_MODE, {}).get("string_value") == THREAD:
        raise LoadError(f"model '{name}' has instances in threads, and with EXECUTION_MODE 'process' each is a process")


def as_json(document: object) -> str:
    """A document as Triton writes it, without blanks: some backends search it for text."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def backend_name(config: Mapping[str, Any], path: str) -> str:
    """The name of the backend: that of the configuration, or else that in the name of the library."""
    name: str = config.get("backend", "")
    found = _LIBRARY_NAME.search(path)
    return name or (found[1] if found else "")


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Whether requests have any number of responses."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))


def output_names(config: Mapping[str, Any]) -> list[str]:
    """The names of all outputs."""
    return [output["name"] for output in config.get("output", [])]


def is_iterative(config: Mapping[str, Any]) -> bool:
    """Whether a request may be executed again."""
    return bool(config.get("sequence_batching", {}).get("iterative_sequence", False))


def states(config: Mapping[str, Any]) -> list[tuple[str, str, list[int], str]]:
    """The states of a sequence: the names of their outputs, their datatypes and dimensions, and the input to change.

    The last is the name of the input whose memory the backend changes in place, "" for a state that it replaces.
    """
    batch = [1] if config.get("max_batch_size", 0) > 0 else []
    return [
        (
            state["output_name"],
            _NAMES.get(state["data_type"], state["data_type"].removeprefix("TYPE_")),
            [*batch, *(int(dim) for dim in state.get("dims", []))],
            state["input_name"] if state.get("use_same_buffer_for_input_output", False) else "",
        )
        for state in config.get("sequence_batching", {}).get("state", [])
    ]


def memory_pools(location: Mapping[str, str]) -> tuple[int, dict[int, int]]:
    """The size of the pool of pinned memory, and those of GPUs by their numbers in this process, in bytes."""
    pinned, gpus = json.loads(location["memory_pools"])
    if location.get("visible_gpus") == OWN_GPU:
        gpus = [(0, size) for number, size in gpus if location["gpu"] == str(number)]
    return pinned, dict(gpus)


def instance(
    config: Mapping[str, Any], args: Mapping[str, str], policies: Mapping[str, Any], gpu: str = ""
) -> tuple[object, ...]:
    """The arguments of the extension's Instance, from the name on; `policies` are the host policies by their names.

    `gpu` is the number of the instance's GPU in the server, "" for the one that it has here.
    """
    kind, device = args["model_instance_kind"], int(args["model_instance_device_id"])
    group = _group(config, args["model_instance_name"])
    policy = group.get("host_policy", "") or (f"gpu_{gpu or device}" if kind == "GPU" else "cpu")
    return (
        args["model_instance_name"],
        _KINDS[kind],
        device,
        group.get("passive", False),
        group.get("profile", []),
        [(each["kind"], int(each["device_id"])) for each in group.get("secondary_devices", [])],
        as_json({policy: policies.get(policy, {})}),
    )


def _group(config: Mapping[str, Any], instance_name: str) -> Mapping[str, Any]:
    """The instance group of an instance."""
    name = instance_name.rpartition("_")[0]
    found: Mapping[str, Any] = next((each for each in config.get("instance_group", []) if each["name"] == name), {})
    return found
