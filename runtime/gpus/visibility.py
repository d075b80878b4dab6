# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs that the process of an instance sees, and the number of its own GPU among them. (pure)

An instance on a GPU sees this one only, so that it is GPU 0 for it, and nothing that it runs can use another one, or
create a context there. The process of a slice of a GPU could not see more than one anyway. Where a model needs all GPUs
with the numbers of the server, its parameter VISIBLE_GPUS says so. Instances that are not on a GPU see what the server
sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyruntime.runtime.config.spec import InstanceSpec, ModelSpec
from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.utils.errors import LoadError
from pyruntime.utils.gpu.visible import VISIBLE

PARAMETER = "VISIBLE_GPUS"
OWN = "own"
ALL = "all"


class Sight(NamedTuple):
    """The variables of a process that say which GPUs it sees, and what its device is called there."""

    variables: Mapping[str, str]
    device_id: int


def sight_of(instance: InstanceSpec, spec: ModelSpec, gpus: AvailableGpus) -> Sight:
    """The GPUs that the process of an instance sees. `gpus` must be those that its configuration was checked against.

    Raises LoadError for a value of VISIBLE_GPUS that is not possible.
    """
    mode = spec.parameters.get(PARAMETER, OWN)
    if mode not in (OWN, ALL):
        raise LoadError(f"model '{spec.name}' has the parameter {PARAMETER} '{mode}', which must be '{OWN}' or '{ALL}'")
    if instance.kind != "GPU":
        return Sight({}, instance.device_id)
    gpu = gpus.by_number(instance.device_id)
    if mode == OWN:
        return Sight({VISIBLE: gpu.uuid}, 0)
    if gpu.is_slice:
        raise LoadError(
            f"model '{spec.name}' has the parameter {PARAMETER} '{ALL}' and is on GPU {gpu.ordinal}, which is a slice "
            f"of one: a process sees one slice only, so that it must be '{OWN}'"
        )
    return Sight({VISIBLE: ",".join(each.uuid for each in gpus.all)}, instance.device_id)


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
