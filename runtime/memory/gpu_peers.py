# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies tensors from one GPU to another, or to main memory where that is not possible.

The host leases chunks on each GPU that tensors go to, as stubs do for the tensors that they make, and allocates there.
So a copy costs no allocation by the driver, and those who read it open a chunk once. See `GpuLeases.pull` for the
broker that copies.

Belongs to the event loop's thread. What is awaited must not be cancelled, because the brokers copy nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.memory.gpu_copies import bring, offsets, wait_all
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import GpuRegion, SharedRegion
from pyruntime.runtime.requests.types import Slot
from pyruntime.utils.addresses import address
from pyruntime.utils.arena import slot_bytes
from pyruntime.utils.gpu.chunks import ChunkArena
from pyruntime.utils.gpu.driver import GpuError, GpuLostError, GpuMemoryError
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU

_LOG = logging.getLogger("pyruntime.brokers")

# The chunks that the host leases on one GPU at a time: each is looked at for each copy, and the broker has each open.
CHUNKS_MAX = 256


class Tensor(NamedTuple):
    """`size` bytes at `offset` of memory on a GPU."""

    region: GpuRegion
    offset: int
    size: int


class Moved(NamedTuple):
    """Copies of tensors, at `addresses` in a region. They stay until the slot is freed, and so does the region."""

    region: GpuRegion | SharedRegion
    slot: Slot
    addresses: list[int]

    @property
    def where(self) -> tuple[int, int]:
        """The kind of their memory, and its device."""
        region = self.region
        return (MEMORY_GPU, region.gpu.ordinal) if isinstance(region, GpuRegion) else (MEMORY_CPU, 0)


class GpuSlot:
    """Memory in a chunk of the host's on a GPU: see requests.types.Slot."""

    __slots__ = ("_on_free", "region")

    offset = 0
    view = memoryview(b"")

    def __init__(self, region: GpuRegion, on_free: Callable[[], None]) -> None:
        self.region = region
        self._on_free = on_free

    def free(self) -> None:
        """See Slot."""
        self._on_free()


class _Chunk(ChunkArena):
    """A chunk that the host leases."""

    def __init__(self, region: GpuRegion) -> None:
        super().__init__(region.limit)
        self.region = region


class GpuPeers:
    """See the module. `tasks` run what copies of tensors are part of."""

    def __init__(self, leases: GpuLeases, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self._leases = leases
        self._chunks: dict[int, list[_Chunk]] = defaultdict(list)
        # Those who need a chunk of a GPU wait for the one that another of them leases.
        self._leasing: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._warned: set[tuple[int, int]] = set()

    def reaches(self, source: int, target: int) -> bool:
        """Whether tensors on one GPU can be read on the other, after a copy or without, as far as that is known."""
        return source == target or self._leases.reaches(source, target)

    async def move(self, tensors: Sequence[Tensor], gpu: int | None, memory: RequestMemory) -> Moved:
        """Copy tensors to a GPU; or to request memory, if `gpu` is None or they have no room there.

        Raises InferenceError.
        """
        moved = None if gpu is None else await self._move_to_gpu(tensors, gpu)
        return moved or await _move_to_main_memory(tensors, memory)

    async def put(self, tensor: Tensor, target: GpuRegion, offset: int) -> bool:
        """Copy a tensor to memory of a client on another GPU. Returns whether that was possible.

        Raises InferenceError if the memory is not registered any more.
        """
        source = tensor.region.gpu.ordinal
        try:
            await self._leases.pull(tensor.region, [(tensor.offset, tensor.size, offset)], target)
        except GpuError as exc:
            self._warn({source}, target.gpu.ordinal, exc)
            return False
        return True

    async def _move_to_gpu(self, tensors: Sequence[Tensor], gpu: int) -> Moved | None:
        sources = {each.region.gpu.ordinal for each in tensors}
        if not all(self._leases.reaches(source, gpu) for source in sources):
            return None
        *places, end = offsets(each.size for each in tensors)
        try:
            chunk, at = await self._allocate(gpu, end)
        except GpuError as exc:
            self._warn(sources, gpu, exc)
            return None
        region = chunk.region
        slot = GpuSlot(region, partial(self._free, chunk, at))
        pieces: dict[GpuRegion, list[tuple[int, int, int]]] = defaultdict(list)
        for tensor, place in zip(tensors, places, strict=True):
            pieces[tensor.region].append((tensor.offset, tensor.size, at + place))
        try:
            await wait_all([self._leases.pull(source, parts, region) for source, parts in pieces.items()])
        except BaseException as exc:
            slot.free()
            if not isinstance(exc, GpuError):
                raise
            self._warn(sources, gpu, exc)  # if the tensors are lost, main memory does not help: its copy says so
            return None
        return Moved(region, slot, [address(region.number, at + place) for place in places])

    async def _allocate(self, gpu: int, size: int) -> tuple[_Chunk, int]:
        """A chunk with a slot of this size, and the slot's offset there. Raises GpuError."""
        async with self._leasing[gpu]:
            chunks = self._live(gpu)
            for chunk in chunks:
                offset = chunk.allocate(size)
                if offset is not None:
                    return chunk, offset
            if len(chunks) >= CHUNKS_MAX:
                raise GpuMemoryError("too many leases", "lease", f"copies there have {CHUNKS_MAX} chunks already")
            chunk = _Chunk(await self._leases.lease_on(gpu, slot_bytes(size)))
            offset = chunk.allocate(size)
            assert offset is not None  # it is as large as that
            self._chunks[gpu].append(chunk)
            return chunk, offset

    def _live(self, gpu: int) -> list[_Chunk]:
        """The chunks on a GPU, without those that were lost with its broker."""
        chunks = self._chunks[gpu]
        for chunk in [each for each in chunks if each.region.loss]:
            chunks.remove(chunk)
            if chunk.is_empty:
                chunk.region.close()
        return chunks

    def _free(self, chunk: _Chunk, offset: int) -> None:
        chunk.free(offset)
        chunks = self._chunks[chunk.region.gpu.ordinal]
        if chunk not in chunks:  # it was lost
            if chunk.is_empty:
                chunk.region.close()
        elif not chunk.is_needed(len(chunks)):
            chunks.remove(chunk)
            chunk.region.close()

    def _warn(self, sources: set[int], target: int, cause: GpuError) -> None:
        for source in sources:
            if (source, target) not in self._warned and not isinstance(cause, GpuLostError):  # which is logged
                self._warned.add((source, target))
                text = "Tensors go from GPU %d to GPU %d through main memory: %s"
                _LOG.warning(text, source, target, cause.explanation)


async def _move_to_main_memory(tensors: Sequence[Tensor], memory: RequestMemory) -> Moved:
    """Raises InferenceError."""
    sizes = [each.size for each in tensors]
    copies = [partial(each.region.lessor.fetch, each.region, each.offset, each.size) for each in tensors]
    slot, places = await bring(memory, sizes, copies)
    return Moved(memory.region, slot, [address(memory.region.number, place) for place in places])
