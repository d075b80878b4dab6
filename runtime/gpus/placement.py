# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the GPUs of an instance group on GPUs that names none, and the order of instances on several GPUs. (pure)

As in Triton the group has instances on every GPU. But a GPU without room is left out as long as another one has room,
and the GPU with the most free memory comes first: of instances that are equally free, requests go to the first one. So
the models of a server that is not busy share its GPUs, and do not crowd the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.utils.gpu.driver import GpuProperties

# The context that a process has on a GPU takes some hundred megabytes, before it allocates anything.
ROOM_BYTES_MIN = 512 << 20
# GPUs whose free memory differs by less have the same, because it is never exactly equal.
GRAIN_BYTES = 1 << 30
_GIB = 1 << 30


class Named(Protocol):
    """An instance, by its name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Placement(NamedTuple):
    """GPUs in the order in which they get instances, and why these, as the end of a sentence."""

    numbers: tuple[int, ...] = ()
    reason: str = ""


NO_PLACEMENT = Placement()


def place(model: str, gpus: AvailableGpus, kept: Sequence[int] = ()) -> Placement:
    """The GPUs for a model that is being loaded. It keeps those that it has instances on, `kept`, in their order.

    Where free memory is equal, the name of the model decides, so that not all models begin with the same GPU.
    """
    usable = gpus.usable
    by_number = {gpu.ordinal: gpu for gpu in usable}
    staying = [by_number[number] for number in dict.fromkeys(kept) if number in by_number]
    new = [gpu for gpu in usable if gpu not in staying]
    full = [gpu for gpu in new if gpus.is_over_limit(gpu) or gpu.free_bytes < min(ROOM_BYTES_MIN, gpu.total_bytes // 2)]
    turn = crc32(model.encode()) % (len(usable) or 1)
    turns = usable[turn:] + usable[:turn]
    roomy = sorted(
        (gpu for gpu in new if gpu not in full),
        key=lambda gpu: (-(gpu.free_bytes // GRAIN_BYTES), turns.index(gpu)),
    )
    chosen = staying + roomy
    if not chosen:
        return Placement(gpus.numbers, f"on {_listed(usable)}: none of them has room" if usable else "")
    reason = f"on {_listed(chosen)}"
    if full:
        reason += f", and not on {_listed(full)}, which {'has' if len(full) == 1 else 'have'} no room"
    return Placement(tuple(gpu.ordinal for gpu in chosen), reason)


def spread(instances: Iterable[T], gpus: Mapping[str, int]) -> list[T]:
    """Instances in the order in which requests look for one that is free: the first of each GPU, then the second ones.

    `gpus` are the numbers of the GPUs by the names of the instances that are on one; the others are like one more GPU.
    """
    ranks: Counter[int | None] = Counter()
    ranked = []
    for instance in instances:
        gpu = gpus.get(instance.name)
        ranked.append((ranks[gpu], instance))
        ranks[gpu] += 1
    return [instance for _, instance in sorted(ranked, key=lambda pair: pair[0])]


def _listed(gpus: Sequence[GpuProperties]) -> str:
    return ", ".join(
        f"GPU {gpu.ordinal} ({gpu.free_bytes / _GIB:.1f} of {gpu.total_bytes / _GIB:.1f} GiB free)" for gpu in gpus
    )
