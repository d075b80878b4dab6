# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The slots of the response region, which this process allocates and the host reads.

A slot is free when the host says so. One that was lent for the host to write to is free when nothing refers to it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterable, List, Set, Tuple, TypeVar

import numpy as np

from pyruntime.stub.memory import pointer_of
from pyruntime.utils.arena import Arena
from pyruntime.utils.messages import NO_SLOT
from pyruntime.utils.regions import Region

if TYPE_CHECKING:
    from pyruntime.stub.gpu_memory import GpuMemory

_Native = TypeVar("_Native")

# Up to this size, tobytes() and a slice assignment are faster than creating an array over the region.
SMALL_BYTES = 16 << 10


class _Loan:
    """A slot that is free when nothing refers to this: see gpu_memory.py."""

    def __init__(self, memory: ResponseMemory, offset: int, pointer: int) -> None:
        self._memory = memory
        self.offset = offset
        self.pointer = pointer

    def __del__(self) -> None:
        self._memory.take_back(self.offset)


class ResponseMemory:
    """See the module. Thread-safe."""

    def __init__(self, region: Region, growth_bytes: int) -> None:
        self._arena = Arena(region, growth_bytes)
        self._lock = threading.Lock()
        # Slots of loans, to be freed by whoever next has the lock: a destructor may run in a thread that has it.
        self._taken_back: Deque[int] = deque()
        self._map = region.map
        # The addresses of tensors on GPUs that are freed with a slot.
        self._on_gpu: Dict[int, Tuple[GpuMemory, List[int]]] = {}

    def native(self, kind: Callable[..., _Native], outputs: Set[str]) -> _Native:
        """An object in native code that allocates here as well."""
        return kind(self._lock, self._arena, self._taken_back, self._map, outputs)

    @property
    def free_bytes(self) -> int:
        """The number of free bytes in the region."""
        with self._lock:
            self._free_loans()
            return self._arena.free_bytes

    def free(self, slots: Iterable[int]) -> None:
        """Free slots that the host has finished reading. Raises LocalError for an unknown slot."""
        if self._on_gpu:
            slots = list(slots)
            for slot in slots:
                if slot in self._on_gpu:
                    memory, addresses = self._on_gpu.pop(slot)
                    memory.free_all(addresses)
        with self._lock:
            if self._taken_back:
                self._free_loans()
            for slot in slots:
                self._arena.free(slot)

    def take_back(self, slot: int) -> None:
        """Free a slot soon. For destructors, which must not wait for a lock."""
        self._taken_back.append(slot)

    def _free_loans(self) -> None:
        """The caller has the lock."""
        while self._taken_back:
            self._arena.free(self._taken_back.popleft())

    def _allocate(self, size: int) -> int:
        """A slot. The caller has the lock. Raises OutOfMemoryError."""
        if self._taken_back:
            self._free_loans()
        return self._arena.allocate(size)

    def lend(self, size: int) -> _Loan:
        """Memory that the host may write to. Raises OutOfMemoryError."""
        with self._lock:
            offset = self._allocate(size)
        return _Loan(self, offset, pointer_of(self._map) + offset)

    def _own(self, slot: int, memory: GpuMemory, addresses: List[int]) -> int:
        """Have tensors on a GPU freed with a slot. Returns the slot, which is a new one if there is none.

        Raises OutOfMemoryError.
        """
        if addresses:
            with self._lock:
                if slot == NO_SLOT:
                    slot = self._allocate(1)
                self._on_gpu[slot] = memory, addresses
        return slot

    def _copy(self, contents: Any, offset: int, size: int, slot: int) -> None:
        """Copy contents to their place in a slot. Those on a GPU may fail: then the slot is free."""
        if type(contents) is bytes:
            self._map[offset : offset + size] = contents
        elif not isinstance(contents, np.ndarray):
            self._copy_from_gpu(contents, offset, size, slot)
        elif size <= SMALL_BYTES:
            self._map[offset : offset + size] = contents.tobytes()
        else:
            np.ndarray(contents.shape, contents.dtype, self._map, offset)[...] = contents

    def _copy_from_gpu(self, contents: Any, offset: int, size: int, slot: int) -> None:
        try:
            with memoryview(self._map) as region, region[offset : offset + size] as target:
                contents.copy_to(target)
        except BaseException:
            if slot != NO_SLOT:
                self.free([slot])
            raise
