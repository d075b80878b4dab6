# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on GPUs in which a framework of this process allocates: what it computes there needs no copy for others.

The framework has such memory until the process ends. See torch_allocator.py.
"""

from __future__ import annotations

import os
from typing import Callable, List, NamedTuple, Optional

from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.gpu_tensor import GpuContents, OnGpu
from pyruntime.utils.addresses import split
from pyruntime.utils.gpu.driver import ALIGNED_BYTES


class Reserve(NamedTuple):
    """Memory at `place`: `size` bytes at `pointer`. `lacked` returns for how many bytes the framework had no room."""

    place: OnGpu
    pointer: int
    size: int
    lacked: Callable[[], int]


class Reserves:
    """Those of one process. Not thread-safe, but `find` may be called at any time."""

    def __init__(self) -> None:
        self._reserves: List[Reserve] = []
        self._has_warned = False

    def add(self, reserve: Reserve) -> None:
        """One more. If it is not enough either, the log says so again."""
        self._reserves.append(reserve)
        self._has_warned = False

    def are_in(self, number: int) -> bool:
        """Whether there is one in the region of this number."""
        return any(split(each.place.address)[0] == number for each in self._reserves)

    def find(self, contents: GpuContents) -> Optional[OnGpu]:
        """The place of contents in a reserve. None if they are in none, or where readers do not expect a tensor."""
        if not self._reserves or contents.place is not None:
            return None
        for reserve in self._reserves:
            offset = contents.pointer - reserve.pointer
            if 0 <= offset <= reserve.size - contents.nbytes and not offset % ALIGNED_BYTES:
                return reserve.place._replace(address=reserve.place.address + offset)
        self._warn_of_lack()
        return None

    def _warn_of_lack(self) -> None:
        """Say once that a framework has asked for more than its reserve. What lies in it is not copied."""
        if self._has_warned:
            return
        lacked = self._reserves[-1].lacked()
        if lacked:
            self._has_warned = True
            LOGGER.warning(
                "pyruntime.torch_allocator has no room for %d bytes that torch has asked for: tensors there are copied",
                lacked,
            )


def end_process() -> None:
    """For memory that is lost: the framework has tensors there, and would put others in their place."""
    LOGGER.error("the broker of the GPU was lost, with memory that torch allocates in: this process ends")
    os._exit(1)
