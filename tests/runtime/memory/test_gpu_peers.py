# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors between two GPUs of the stand-in, by real brokers, and through main memory otherwise."""

import asyncio
import os
import signal

import pytest

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.brokers.pool import CHUNK_BYTES
from pyruntime.runtime.memory import gpu_peers
from pyruntime.runtime.memory.cuda_regions import open_cuda_region
from pyruntime.runtime.memory.gpu_peers import GpuPeers, Tensor
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU
from tests.plugins.gpus import TWO_GPUS, TWO_PEERS

pytestmark = pytest.mark.processes
CONTENTS = b"0123456789"


class World:
    """Two GPUs, their brokers, the request memory of a model, and this process, which is a stub on the first GPU."""

    def __init__(self, machine):
        self.machine = machine
        machine.describe(*TWO_PEERS)

    def run(self, check, sizes=None):
        """Run `check`, which is awaited with the tensors of a region, an own one for each byte."""

        async def within():
            self.brokers = Brokers()
            self.leases = GpuLeases(self.brokers, sizes or {})
            self.peers = GpuPeers(self.leases, None)
            region = await self._written()
            self.memory = RequestMemory("test", 4096, 4096)
            try:
                await check([Tensor(region, at, 1) for at in range(len(CONTENTS))])
            finally:
                await self.brokers.close()
                if not self.memory.region.is_closed:
                    self.memory.close()

        asyncio.run(within())

    async def _written(self):
        gpu = self.machine.gpu()
        region = await self.leases.lease("GPU-1", 100, b"")
        pointer = gpu.open(region.handle)
        gpu.write(pointer, CONTENTS)
        gpu.close(pointer)
        return region

    async def move(self, tensors):
        return await self.peers.move(tensors, 1, self.memory)

    async def read(self, moved):
        """The bytes of tensors that were moved."""
        if moved.where == (MEMORY_CPU, 0):
            return b"".join(bytes(moved.region.view[split(at)[1] :][:1]) for at in moved.addresses)
        slot = self.memory.allocate(len(moved.addresses))
        for index, at in enumerate(moved.addresses):
            await self.leases.fetch(moved.region, split(at)[1], 1, self.memory.region, slot.offset + index)
        contents = bytes(slot.view)
        slot.free()
        return contents

    async def kill(self, ordinal):
        """Kill the broker of a GPU."""
        os.kill((await self.brokers.of((await self.brokers.gpus())[ordinal])).pid, signal.SIGKILL)

    def leased(self):
        """The bytes that are leased on the second GPU."""
        return self.leases.usage()["GPU-2"][0]


@pytest.fixture
def world(machine):
    return World(machine)


def test_copies(world):
    """Tensors have copies in one slot on the other GPU, each aligned. Nothing of it takes main memory."""

    async def check(tensors):
        moved = await world.move(tensors[3:6])
        assert (moved.where, world.memory.live) == ((MEMORY_GPU, 1), 0)
        first, *others = moved.addresses
        assert [at - first for at in others] == [64, 128]
        assert await world.read(moved) == b"345"
        moved.slot.free()

    world.run(check)


def test_several_regions(world):
    """Tensors of several regions, in any order, have copies in one slot."""

    async def check(tensors):
        second = Tensor(await world._written(), 8, 1)
        moved = await world.move([tensors[1], second, tensors[2]])
        assert (moved.where, await world.read(moved)) == ((MEMORY_GPU, 1), b"182")

    world.run(check)


def test_one_chunk(world):
    """Copies share a chunk, also if all of them need the first one, and the last one is kept for the next copies."""

    async def check(tensors):
        moves = await asyncio.gather(*(world.move([tensor]) for tensor in tensors))
        assert [await world.read(moved) for moved in moves] == [bytes([byte]) for byte in CONTENTS]
        assert len({moved.region for moved in moves}) == 1
        for moved in moves:
            moved.slot.free()
        assert world.leased() == CHUNK_BYTES
        assert (await world.move(tensors)).region is moves[0].region

    world.run(check)


def test_chunks_are_returned(world):
    """A second chunk goes back with its last tensor."""

    async def check(tensors):
        region = tensors[0].region
        moves = [await world.move([Tensor(region, 0, CHUNK_BYTES)]) for _ in range(2)]
        assert world.leased() == 2 * CHUNK_BYTES
        moves[0].slot.free()
        assert world.leased() == CHUNK_BYTES

    world.run(check)


def test_too_many_chunks(world, monkeypatch, caplog):
    """Further copies go to main memory until a chunk goes back, and the log says so."""
    monkeypatch.setattr(gpu_peers, "CHUNKS_MAX", 2)

    async def check(tensors):
        tensor = Tensor(tensors[0].region, 0, CHUNK_BYTES)
        moves = [await world.move([tensor]) for _ in range(3)]
        assert [moved.where for moved in moves] == [(MEMORY_GPU, 1), (MEMORY_GPU, 1), (MEMORY_CPU, 0)]
        reason = "copies there have 2 chunks already"
        said = [each.getMessage() for each in caplog.records if "main memory" in each.getMessage()]
        assert said == [f"Tensors go from GPU 0 to GPU 1 through main memory: {reason}"]
        moves[0].slot.free()
        assert (await world.move([tensor])).where == (MEMORY_GPU, 1)

    world.run(check)


@pytest.mark.parametrize(
    ("properties", "sizes", "reason"),
    [
        ({"total_bytes": CHUNK_BYTES - 1}, {}, "out of memory"),
        ({"peers": ()}, {}, "the handle is that of another GPU"),
        ({}, {1: 0}, ""),
    ],
    ids=["no room", "no access", "no pool"],
)
def test_through_main_memory(world, caplog, properties, sizes, reason):
    """What cannot be copied to the GPU is copied to main memory, and the log says so once."""

    async def check(tensors):
        world.machine.describe(*({**each, **properties} for each in TWO_PEERS))
        for _ in range(3):
            moved = await world.move(tensors)
            assert (moved.where, moved.region) == ((MEMORY_CPU, 0), world.memory.region)
            assert await world.read(moved) == CONTENTS
            moved.slot.free()
        assert world.memory.live == 0
        said = [each.getMessage() for each in caplog.records if "main memory" in each.getMessage()]
        assert said == ([f"Tensors go from GPU 0 to GPU 1 through main memory: {reason}"] if reason else [])

    world.run(check, sizes)


def test_readers_in_main_memory(world):
    """Without a GPU tensors are copied to main memory, and no other GPU has anything to do with it."""

    async def check(tensors):
        moved = await world.peers.move(tensors, None, world.memory)
        assert await world.read(moved) == CONTENTS
        assert list(world.leases.usage()) == ["GPU-1"]

    world.run(check)


def test_model_is_unloaded_meanwhile(world):
    """Copies in main memory stay after their model until they are freed. There are no further ones."""

    async def check(tensors):
        moving = asyncio.ensure_future(world.peers.move(tensors, None, world.memory))
        await asyncio.sleep(0)
        region = world.memory.region
        world.memory.close()
        moved = await moving
        assert await world.read(moved) == CONTENTS
        with pytest.raises(InferenceError, match="Model 'test' was unloaded") as caught:
            await world.peers.move(tensors, None, world.memory)
        assert (caught.value.code, region.is_closed) == (Code.UNAVAILABLE, False)
        moved.slot.free()
        assert region.is_closed

    world.run(check)


def test_memory_of_a_client(world):
    """It is copied beside other tensors, until it is not registered any more. Nothing is kept then."""
    gpu = world.machine.gpu()
    pointer = gpu.allocate(len(CONTENTS))
    gpu.write(pointer, CONTENTS)

    async def check(tensors):
        client = await open_cuda_region(world.brokers, "r", gpu.export(pointer), 0, 10, lambda region: None)
        theirs = Tensor(client.for_stubs(), 4, 1)
        moved = await world.move([theirs, tensors[5]])
        assert (moved.where, await world.read(moved)) == ((MEMORY_GPU, 1), b"45")
        moved.slot.free()
        client.close()
        with pytest.raises(InferenceError, match="region 'r' cannot be read: it is not registered any more"):
            await world.move([theirs, tensors[5]])
        ((chunk,),) = world.peers._chunks.values()
        assert chunk.is_empty
        await client.wait_closed()

    world.run(check)
    gpu.free(pointer)


def test_memory_of_a_client_on_another_gpu(world, caplog):
    """A tensor is copied there, unless the client's GPU has no access to it; the log says so then."""
    gpu = world.machine.gpu(1)
    pointer = gpu.allocate(len(CONTENTS))

    async def check(tensors):
        client = await open_cuda_region(world.brokers, "r", gpu.export(pointer), 1, 10, lambda region: None)
        assert await world.peers.put(tensors[5], client.for_stubs(), 2)
        assert contents() == b"\0\0005\0\0\0\0\0\0\0"
        world.machine.describe(*TWO_GPUS)
        source = Tensor(await world._written(), 0, 10)
        assert not await world.peers.put(source, client.for_stubs(), 0)
        assert not world.peers.reaches(0, 1)
        said = [each.getMessage() for each in caplog.records if "main memory" in each.getMessage()]
        assert said == ["Tensors go from GPU 0 to GPU 1 through main memory: the handle is that of another GPU"]
        client.close()
        await client.wait_closed()

    def contents():
        target = bytearray(10)
        gpu.read(pointer, target)
        return target

    world.run(check)
    gpu.free(pointer)


def test_broker_of_the_target_is_lost(world, caplog):
    """Tensors go through main memory then, and the next ones have another chunk. Nothing of the lost one is kept."""

    async def check(tensors):
        first = await world.move(tensors)
        await world.kill(1)
        second = await world.move(tensors)
        assert (second.where, await world.read(second)) == ((MEMORY_CPU, 0), CONTENTS)
        third = await world.move(tensors)
        assert (third.where, await world.read(third)) == ((MEMORY_GPU, 1), CONTENTS)
        first.slot.free()
        assert first.region.is_closed
        assert not any("main memory" in each.getMessage() for each in caplog.records)

    world.run(check)


def test_broker_of_the_source_is_lost(world):
    """The tensors are gone: an error says so, and no memory is kept."""

    async def check(tensors):
        await world.kill(0)
        with pytest.raises(InferenceError, match="the broker of GPU 0 was lost") as caught:
            await world.move(tensors)
        assert (caught.value.code, world.memory.live) == (Code.UNAVAILABLE, 0)

    world.run(check)
