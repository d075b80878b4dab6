# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which instances of a model share a process, by its parameter INSTANCE_MODE. (pure)

`process`, the default, gives each instance a process of its own. `thread` gives the instances of a group one process,
which executes as many batches at a time as there are instances, in threads that share the memory of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from pyruntime.runtime.config.spec import InstanceSpec, ModelSpec
from pyruntime.utils.errors import LoadError

PARAMETER = "INSTANCE_MODE"
PROCESS = "process"
THREAD = "thread"


@dataclass(frozen=True, slots=True)
class InstanceProcess:
    """One process. It has the name of its first instance, and executes `concurrency` batches at a time."""

    instance: InstanceSpec
    concurrency: int = 1

    @property
    def name(self) -> str:
        """The name of the process."""
        return self.instance.name

    @property
    def signature(self) -> Hashable:
        """Processes with equal signatures differ in nothing but the name."""
        return self.instance.signature, self.concurrency


def instance_processes(spec: ModelSpec) -> tuple[InstanceProcess, ...]:
    """The processes for the instances of a model. Raises LoadError for an unknown mode."""
    mode = spec.parameters.get(PARAMETER, PROCESS)
    if mode == PROCESS:
        return tuple(map(InstanceProcess, spec.instances))
    if mode != THREAD:
        raise LoadError(
            f"model '{spec.name}' has the parameter {PARAMETER} '{mode}', which must be '{PROCESS}' or '{THREAD}'"
        )
    # A process receives one device, so instances on several devices cannot share it.
    sizes = Counter(map(_group, spec.instances))
    firsts = {_group(instance): instance for instance in reversed(spec.instances)}
    return tuple(InstanceProcess(firsts[group], size) for group, size in sizes.items())


def _group(instance: InstanceSpec) -> tuple[str, int]:
    return instance.name.rpartition("_")[0], instance.device_id
