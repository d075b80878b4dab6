# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs that the process of an instance sees, and the number of its own GPU among them. (pure)

An instance sees what the server sees, with the server's numbers, as in Triton: models are written for that. Where its
model or the server's option asks for it, an instance on a GPU sees this one only, as GPU 0, so that nothing that it
runs can use another one, or create a context there. That is the only way where the server has a slice of a GPU among
others: CUDA shows a process one slice, and no whole GPU beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyruntime.runtime.config.spec import InstanceSpec, ModelSpec
from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.settings import VISIBLE_GPUS
from pyruntime.utils.errors import LoadError
from pyruntime.utils.gpu.visible import ALL_GPUS, OWN_GPU, VISIBLE

PARAMETER = "VISIBLE_GPUS"


class Sight(NamedTuple):
    """The variables of a process that say which GPUs it sees, what its device is called there, and what it is told.

    `location` are entries of the location that a stub gets: see docs/reference/protocol.md.
    """

    variables: Mapping[str, str]
    device_id: int
    location: dict[str, str]


def sight_of(instance: InstanceSpec, spec: ModelSpec, gpus: AvailableGpus, default: str) -> Sight:
    """The GPUs that the process of an instance sees. `gpus` must be those that its configuration was checked against.

    `default` is for models without the parameter VISIBLE_GPUS. Raises LoadError for a value that is not possible.
    """
    asked = spec.parameters.get(PARAMETER)
    if asked not in (None, *VISIBLE_GPUS):
        raise LoadError(
            f"model '{spec.name}' has the parameter {PARAMETER} '{asked}', which must be '{ALL_GPUS}' or '{OWN_GPU}'"
        )
    if instance.kind != "GPU":
        return Sight({}, instance.device_id, {})
    gpu = gpus.by_number(instance.device_id)
    if asked == ALL_GPUS and gpus.are_seen_one_by_one:
        raise LoadError(
            f"model '{spec.name}' has the parameter {PARAMETER} '{ALL_GPUS}', and a GPU of the server is a slice of "
            f"one: a process sees one slice, and no GPU beside it, so that it must be '{OWN_GPU}'"
        )
    mode = OWN_GPU if gpus.are_seen_one_by_one else asked or default
    location = {"gpu": str(gpu.ordinal), "gpu_uuid": gpu.uuid, "visible_gpus": mode}
    if mode == OWN_GPU:
        return Sight({VISIBLE: gpu.uuid}, 0, location)
    return Sight({}, instance.device_id, location)


def check_sight_of_server(model: str, instances: Iterable[InstanceSpec], gpus: AvailableGpus) -> None:
    """Check instances in the server's own process, which sees one slice at most, the first. Raises LoadError."""
    slices = {gpu.ordinal for gpu in gpus.all[1:] if gpu.is_slice}
    for instance in instances:
        if instance.kind == "GPU" and instance.device_id in slices:
            raise LoadError(
                f"instance '{instance.name}' of model '{model}' is on GPU {instance.device_id}, a slice of a GPU that "
                "the server's process cannot use besides the first one: give the model the parameter EXECUTION_MODE "
                "'process'"
            )
