# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the machine as a model finds them when it is loaded, and what the operator allows. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.utils.errors import Code, LoadError
from pyruntime.utils.gpu.driver import GpuProperties

# As in Triton.
CAPABILITY_MIN = 6.0


@dataclass(frozen=True, slots=True)
class AvailableGpus:
    """`all` are the GPUs in the order of their numbers, which configurations use; each has the memory of the moment.

    Instances may use those with at least the compute capability `capability_min`. `limits` are the fractions of their
    memory that may be in use when a model is loaded, by number.
    """

    all: tuple[GpuProperties, ...] = ()
    capability_min: float = CAPABILITY_MIN
    limits: Mapping[int, float] = field(default_factory=dict)

    @property
    def usable(self) -> list[GpuProperties]:
        """The GPUs that instances may use."""
        return [gpu for gpu in self.all if capability(gpu) >= self.capability_min]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the GPUs that instances may use."""
        return tuple(gpu.ordinal for gpu in self.usable)

    @property
    def are_seen_one_by_one(self) -> bool:
        """Whether no process can see all of them: CUDA shows one slice, and then no other GPU."""
        return len(self.all) > 1 and any(gpu.is_slice for gpu in self.all)

    def by_number(self, number: int) -> GpuProperties:
        """The GPU with a number that a valid configuration has."""
        return next(gpu for gpu in self.all if gpu.ordinal == number)

    def is_over_limit(self, gpu: GpuProperties) -> bool:
        """Whether more of the memory is in use than the operator allows for loading a model."""
        return gpu.total_bytes - gpu.free_bytes > int(gpu.total_bytes * self.limits.get(gpu.ordinal, 1.0))

    def check_limits(self, instances: Iterable[InstanceSpec]) -> None:
        """Raise LoadError, with Triton's words, if one of these instances is on a GPU that is over its limit."""
        full = {gpu.ordinal for gpu in self.all if self.is_over_limit(gpu)}
        for instance in instances:
            if instance.kind == "GPU" and instance.device_id in full:
                raise LoadError(
                    f"can not create model '{instance.name}': memory limit set for GPU {instance.device_id} has "
                    "exceeded, model loading is rejected.",
                    Code.UNAVAILABLE,
                )


NO_GPUS = AvailableGpus()


def capability(gpu: GpuProperties) -> float:
    """The compute capability as a number, as in --min-supported-compute-capability."""
    major, minor = gpu.compute_capability
    return major + minor / 10
