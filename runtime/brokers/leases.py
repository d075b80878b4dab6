# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Leases memory of the brokers to stubs, in chunks, and takes it back: see pool.py. Belongs to the event loop's thread.

A lease is a GpuRegion: the stub that asked for it writes there, others read. It ends when the stub gives it back or
ends and nobody reads its tensors any more. If a broker is lost, so are its chunks, and the next lease has another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.brokers.pool import ChunkPool, chunk_bytes
from pyruntime.runtime.regions import GpuHandle, GpuRegion, SharedRegion
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.gpu.driver import GpuError, GpuLostError, GpuMemoryError, GpuMissingError, GpuProperties

if TYPE_CHECKING:
    from pyruntime.runtime.brokers.link import BrokerLink

_LOG = logging.getLogger("pyruntime.brokers")

# The memory that is kept on each GPU, in bytes, where the operator does not say otherwise. As in Triton.
POOL_BYTES = 64 << 20
# The most memory for one lease, in bytes: an offset in it fits an address.
LEASE_BYTES_MAX = 1 << 36


class _Pool:
    """The chunks of one broker."""

    def __init__(self, link: BrokerLink, keep_bytes: int) -> None:
        self.link = link
        self.chunks = ChunkPool(keep_bytes)
        # The leased regions, and the kept handles, by the number of the chunk.
        self.regions: dict[GpuRegion, int] = {}
        self.handles: dict[int, bytes] = {}


class GpuLeases:
    """See the module. `sizes` are the bytes that are kept on GPUs, by their numbers; others keep POOL_BYTES.

    Without `peer_access` nothing is copied from GPU to GPU.
    """

    def __init__(self, brokers: Brokers, sizes: Mapping[int, int], *, peer_access: bool = True) -> None:
        self._brokers = brokers
        self._sizes = sizes
        self._peer_access = peer_access
        self._pools: dict[int, _Pool] = {}
        # Distinct from those of the memory of clients, which the same broker opens.
        self._numbers = count(-1, -1)

    async def lease(self, uuid: str, size: int, event: bytes) -> GpuRegion:
        """A region of at least `size` bytes on the GPU with this UUID. `event` is that of the stub which writes there.

        Raises GpuError: GpuMissingError without such a GPU, or a pool on it, GpuMemoryError without memory.
        """
        gpu = next((each for each in await self._brokers.gpus() if each.uuid == uuid), None)
        if gpu is None:
            raise GpuMissingError("no such GPU", "lease", f"the server has no GPU {uuid}")
        return await self._lease(gpu, size, event)

    async def lease_on(self, ordinal: int, size: int) -> GpuRegion:
        """As `lease`, on the GPU with this number, for copies that brokers make: see `pull`."""
        gpu = (await self._brokers.gpus())[ordinal]
        if gpu.is_slice:
            raise GpuMissingError("no access", "lease", "slices of GPUs have no access to others")
        return await self._lease(gpu, size, b"")

    async def _lease(self, gpu: GpuProperties, size: int, event: bytes) -> GpuRegion:
        if not self._keep_bytes(gpu.ordinal):
            raise GpuMissingError("no pool", "lease", f"the pool of GPU {gpu.ordinal} has no bytes")
        if not 0 < size <= LEASE_BYTES_MAX:
            raise GpuMemoryError("no such size", "lease", f"a lease has up to {LEASE_BYTES_MAX} bytes, found {size}")
        link = await self._brokers.of(gpu)
        pool = self._pool(gpu, link)
        found = pool.chunks.lease(size)
        if found is None:
            found = await self._allocate(pool, chunk_bytes(size))
        chunk, granted = found
        try:
            await link.set_event(chunk, event)
            if link.is_lost:  # it ended as soon as it had answered
                raise link.loss("it ended")
        except BaseException:
            self._give_back(pool, chunk)
            raise
        region = GpuRegion(gpu, pool.handles[chunk], granted, event, self)
        pool.regions[region] = chunk
        return region

    async def fetch(self, region: GpuRegion, at: int, size: int, target: SharedRegion, offset: int) -> None:
        """See Lessor."""
        try:
            link, chunk = self._chunk_of(region)
            await link.fetch(chunk, at, size, target, offset)
        except (GpuError, OSError) as exc:
            raise _failure(region, exc) from exc

    async def copy(self, region: GpuRegion, at: int, size: int, target: GpuHandle, offset: int) -> None:
        """See Lessor."""
        try:
            link, chunk = self._chunk_of(region)
            await link.copy(chunk, at, size, target, offset)
        except GpuError as exc:
            raise _failure(region, exc) from exc

    async def pull(self, source: GpuRegion, pieces: Iterable[tuple[int, int, int]], target: GpuRegion) -> None:
        """Copy pieces to a region on another GPU. Of each: its offset, size and new offset.

        The broker of the target copies; that of the source if the source is memory of a client, which no other broker
        opens. No copy is under way when it returns, or fails. Raises GpuError: GpuMissingError if the GPUs have no
        access to each other; and InferenceError for memory of a client that is not registered any more.
        """
        if not self.reaches(source.gpu.ordinal, target.gpu.ordinal) or (source.client and target.client):
            raise GpuMissingError("no access", "copy", "the GPUs have no access to each other")
        with _held(source), _held(target):
            giver, number = await self._located(source)
            taker, chunk = await self._located(target)
            if source.event:
                await giver.complete(number)
            if source.client is None:
                copier = taker
                await _open_peer(taker, source, number, giver)
            else:
                copier = giver
                await _open_peer(giver, target, chunk, taker)
            copies = [copier.copy_peer(number, at, size, chunk, offset) for at, size, offset in pieces]
            for result in await asyncio.gather(*copies, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        if target.loss:  # the broker that copied need not be that of the target
            raise GpuLostError("the broker was lost", "copy", target.loss)

    def reaches(self, source: int, target: int) -> bool:
        """Whether tensors can be copied between these GPUs, as far as that is known."""
        links = [link for link in map(self._brokers.running, (source, target)) if link is not None]
        has_access = self._peer_access and not any(link.gpu.is_slice for link in links)
        if not has_access or not self._keep_bytes(target):
            return False
        return not any(link in other.unreachable for link in links for other in links)

    async def _located(self, region: GpuRegion) -> tuple[BrokerLink, int]:
        """The broker that opens a region, and the number by which that knows its memory. Raises GpuError."""
        if region.client is None:
            return self._chunk_of(region)
        link = await self._brokers.of(region.gpu)
        link.keep_open(region.client)
        return link, region.client.number

    def _chunk_of(self, region: GpuRegion) -> tuple[BrokerLink, int]:
        """The broker of a region, and the number by which that knows its memory. Raises GpuLostError."""
        pool = self._pools.get(region.gpu.ordinal)
        if pool is None or region not in pool.regions:
            raise GpuLostError("the broker was lost", "copy", region.loss or "the memory is gone")
        return pool.link, pool.regions[region]

    def writer_ended(self, region: GpuRegion) -> None:
        """See Lessor."""
        pool = self._pools.get(region.gpu.ordinal)
        if pool is not None and region in pool.regions:
            pool.link.forget_event(pool.regions[region])

    def unused(self, region: GpuRegion) -> None:
        """See Lessor."""
        pool = self._pools.get(region.gpu.ordinal)
        chunk = None if pool is None else pool.regions.pop(region, None)
        if pool is not None and chunk is not None:
            self._give_back(pool, chunk)

    def usage(self) -> dict[str, tuple[int, int]]:
        """The bytes that are leased, and those that are kept, by the UUIDs of GPUs that have a pool."""
        usage: dict[str, tuple[int, int]] = {}
        for pool in self._pools.values():
            usage[pool.link.gpu.uuid] = pool.chunks.leased_bytes, pool.chunks.kept_bytes
        return usage

    def _keep_bytes(self, ordinal: int) -> int:
        return self._sizes.get(ordinal, POOL_BYTES)

    def _pool(self, gpu: GpuProperties, link: BrokerLink) -> _Pool:
        pool = self._pools.get(gpu.ordinal)
        if pool is None or pool.link is not link:
            pool = self._pools[gpu.ordinal] = _Pool(link, self._keep_bytes(gpu.ordinal))
            link.when_lost(partial(self._lost, pool))
        return pool

    async def _allocate(self, pool: _Pool, size: int) -> tuple[int, int]:
        """A new chunk of this size. Raises GpuError."""
        chunk = next(self._numbers)
        try:
            handle = await pool.link.allocate(chunk, size)
        except GpuMemoryError:
            kept = pool.chunks.clear()
            if not kept:
                raise
            self._free(pool, kept)
            handle = await pool.link.allocate(chunk, size)
        pool.handles[chunk] = handle
        pool.chunks.add(chunk, size)
        return chunk, size

    def _give_back(self, pool: _Pool, chunk: int) -> None:
        if not pool.link.is_lost:
            self._free(pool, pool.chunks.give_back(chunk))

    def _free(self, pool: _Pool, chunks: list[int]) -> None:
        for chunk in chunks:
            del pool.handles[chunk]
            pool.link.free(chunk)

    def _lost(self, pool: _Pool, reason: str) -> None:
        """A broker was lost: no stub may use its memory."""
        number = pool.link.gpu.ordinal
        if self._pools.get(number) is pool:
            del self._pools[number]
        regions, pool.regions = list(pool.regions), {}
        if regions:
            _LOG.warning("The tensors of models on GPU %d were lost with its broker.", number)
        for region in regions:
            region.lose(reason)


async def _open_peer(link: BrokerLink, region: GpuRegion, number: int, owner: BrokerLink) -> None:
    """See BrokerLink. What the driver refuses is remembered. Raises GpuError, GpuLostError if the memory is gone."""
    try:
        await link.open_peer(region, number)
        if region.loss:  # since it was opened: it is closed already
            raise GpuLostError("the broker was lost", "copy", region.loss)
    except (GpuLostError, GpuMemoryError):
        raise
    except GpuError:
        link.unreachable.add(owner)
        raise


def _held(region: GpuRegion) -> AbstractContextManager[None]:
    """Keeps memory of a client registered."""
    return nullcontext() if region.client is None else region.client.held()


def _failure(region: GpuRegion, cause: GpuError | OSError) -> InferenceError:
    reason = cause.explanation if isinstance(cause, GpuError) else cause.strerror
    code = Code.INTERNAL if isinstance(cause, GpuError) and not isinstance(cause, GpuLostError) else Code.UNAVAILABLE
    return InferenceError(f"a tensor on GPU {region.gpu.ordinal} cannot be copied: {reason}", code)
