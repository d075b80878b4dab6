# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies from one GPU of the stand-in to another, by real brokers. This process is the stub on the first GPU."""

import asyncio
import os
import signal

import pytest

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.memory.cuda_regions import open_cuda_region
from pyruntime.runtime.regions import create_region
from pyruntime.utils.gpu.driver import GpuError, GpuHandleError, GpuLostError, GpuMemoryError, GpuMissingError
from tests.plugins.gpus import TWO_GPUS, TWO_PEERS

pytestmark = pytest.mark.processes


@pytest.fixture
def machine(machine):
    """A machine with two GPUs that have access to each other."""
    machine.describe(*TWO_PEERS)
    return machine


@pytest.fixture
def gpu(machine):
    """The first GPU, as the stub uses it."""
    return machine.gpu()


def run(check, sizes=None, *, peer_access=True):
    """Run `check` with leases and the links of both brokers, which are ended."""

    async def within():
        brokers = Brokers()
        try:
            leases = GpuLeases(brokers, sizes or {}, peer_access=peer_access)
            await check(leases, [await brokers.of(gpu) for gpu in await brokers.gpus()])
        finally:
            await brokers.close()

    asyncio.run(within())


async def written(leases, gpu, contents):
    """A region that the stub on the first GPU leases, with these contents behind its event."""
    event = gpu.create_event()
    region = await leases.lease("GPU-1", 100, gpu.export_event(event))
    pointer, own = gpu.open(region.handle), gpu.allocate(len(contents))
    gpu.write(own, contents)
    gpu.copy(pointer, own, len(contents))
    gpu.record(event)
    gpu.close(pointer)
    return region


def memory_of(link):
    """The pieces of memory of GPUs that a broker has: in the stand-in they are files."""
    files = [os.path.join(f"/proc/{link.pid}/fd", fd) for fd in os.listdir(f"/proc/{link.pid}/fd")]
    return {os.stat(file).st_ino for file in files if "stand-in" in os.readlink(file)}


def when_unused(leases):
    """A future for the next region that nobody uses any more."""
    found = asyncio.get_running_loop().create_future()
    unused = leases.unused

    def note(region):
        unused(region)
        leases.unused = unused
        found.set_result(region)

    leases.unused = note
    return found


async def read(leases, region, size):
    target = create_region("test")
    target.commit(0, 4096)
    try:
        await leases.fetch(region, 0, size, target, 0)
        return bytes(target.view[:size])
    finally:
        target.close()


def test_pull(gpu):
    """A copy comes behind the work of the process that wrote the tensor, and is complete when it is reported."""

    async def check(leases, links):
        source = await written(leases, gpu, b"0123456789")
        target = await leases.lease_on(1, 100)
        await leases.pull(source, [(2, 5, 0)], target)
        assert await read(leases, target, 5) == b"23456"
        target.close()
        source.close()

    run(check)


def test_memory_is_opened_once(gpu):
    """The memory stays open for the next copies, and goes back to its own broker when nobody counts on it any more."""

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        await asyncio.gather(*(leases.pull(source, [(at, 1, at)], target) for at in range(10)))
        assert await read(leases, target, 10) == b"0123456789"
        held = memory_of(links[1])
        gone = when_unused(leases)
        source.close()
        assert await gone is source
        assert len(held - memory_of(links[1])) == 1
        assert leases.usage()["GPU-1"][0] == 0

    run(check)


def test_pieces(gpu):
    """The work of the writer is waited for once, however many pieces are copied."""

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        asked, complete = [], links[0].complete
        links[0].complete = lambda number: asked.append(number) or complete(number)
        await leases.pull(source, [(at, 1, 9 - at) for at in range(10)], target)
        assert await read(leases, target, 10) == b"9876543210"
        assert len(asked) == 1

    run(check)


def test_piece_that_fails(gpu, machine):
    """The others are complete when the failure is reported."""

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        with pytest.raises(GpuError):
            await leases.pull(source, [(0, 1 << 40, 0), (2, 5, 0)], target)
        assert await read(leases, target, 5) == b"23456"

    run(check)


def test_memory_that_is_freed_is_closed_before(gpu):
    """The stand-in refuses to free memory that another process has open; nobody leases what nobody keeps."""

    async def check(leases, links):
        target = await leases.lease_on(1, 100)
        for _ in range(3):
            source = await written(leases, gpu, b"0123456789")
            await leases.pull(source, [(0, 10, 0)], target)
            gone = when_unused(leases)
            source.close()
            assert await gone is source
            await links[0].complete(0)  # an answer to this one is behind the request to free it
            assert not links[0].is_lost

    run(check, {0: 1})


def test_no_access(gpu, machine):
    """What cannot be opened is asked for once. A broker that is started again is asked again."""
    machine.describe(*TWO_GPUS)

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        assert leases.reaches(0, 1)
        with pytest.raises(GpuHandleError, match="the handle is that of another GPU"):
            await leases.pull(source, [(0, 10, 0)], target)
        assert not leases.reaches(0, 1)
        machine.describe(*TWO_PEERS)
        with pytest.raises(GpuMissingError, match="no access"):
            await leases.pull(source, [(0, 10, 0)], target)
        assert await read(leases, source, 10) == b"0123456789"
        assert source.holders == set()
        links[1]._lost("it ended")
        again = await leases.lease_on(1, 100)
        assert leases.reaches(0, 1)
        await leases.pull(source, [(0, 10, 0)], again)
        assert await read(leases, again, 10) == b"0123456789"

    run(check)


@pytest.mark.parametrize("is_lost", [False, True])
def test_memory_of_a_client(gpu, is_lost):
    """The broker of its GPU copies to a chunk on the other one, which may be lost with its broker meanwhile."""
    pointer = gpu.allocate(10)
    gpu.write(pointer, b"0123456789")

    async def check(leases, links):
        client = await open_cuda_region(leases._brokers, "r", gpu.export(pointer), 0, 10, lambda region: None)
        target, copy = await leases.lease_on(1, 100), links[0].copy_peer
        if is_lost:
            links[0].copy_peer = lambda *piece: (copy(*piece), target.lose("it ended"))[0]
            with pytest.raises(GpuLostError, match="it ended"):
                await leases.pull(client.for_stubs(), [(2, 5, 0)], target)
        else:
            await leases.pull(client.for_stubs(), [(2, 5, 0)], target)
            assert await read(leases, target, 5) == b"23456"
        target.close()
        client.close()
        await client.wait_closed()

    run(check)
    gpu.free(pointer)


def test_two_clients(gpu, machine):
    """Memory of a client is opened by the broker of its own GPU only, so that none can copy to that of another one."""
    pointers = [(each, each.allocate(10)) for each in (gpu, machine.gpu(1))]

    async def check(leases, links):
        source, target = [
            await open_cuda_region(leases._brokers, "r", each.export(pointer), at, 10, lambda region: None)
            for at, (each, pointer) in enumerate(pointers)
        ]
        with pytest.raises(GpuMissingError, match="no access"):
            await leases.pull(source.for_stubs(), [(0, 10, 0)], target.for_stubs())

    run(check)


def test_slices(gpu, machine):
    """A slice has no access to others, nor have others to it; nothing is leased for copies."""
    machine.describe(TWO_PEERS[0], {**TWO_PEERS[1], "is_slice": True})

    async def check(leases, links):
        await leases.lease("GPU-2", 100, b"")
        assert (leases.reaches(0, 1), leases.reaches(1, 0)) == (False, False)
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease("GPU-2", 100, b"")
        with pytest.raises(GpuMissingError, match="no access"):
            await leases.pull(source, [(0, 10, 0)], target)
        before = leases.usage()
        with pytest.raises(GpuMissingError, match="slices of GPUs have no access"):
            await leases.lease_on(1, 100)
        assert leases.usage() == before

    run(check)


def test_forbidden(gpu):
    """The operator may want no copies between GPUs."""

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        assert not leases.reaches(0, 1)
        with pytest.raises(GpuMissingError, match="no access"):
            await leases.pull(source, [(0, 10, 0)], target)

    run(check, peer_access=False)


def test_no_pool(gpu):
    """Nothing is copied to a GPU without a pool."""

    async def check(leases, links):
        assert (leases.reaches(0, 1), leases.reaches(1, 0)) == (False, True)
        with pytest.raises(GpuMissingError, match="the pool of GPU 1 has no bytes"):
            await leases.lease_on(1, 100)

    run(check, {1: 0})


def test_no_memory_now(gpu, machine):
    """A refusal for lack of memory is not remembered."""

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        with machine.failing(open="CUDA_ERROR_OUT_OF_MEMORY"), pytest.raises(GpuMemoryError):
            await leases.pull(source, [(0, 10, 0)], target)
        await leases.pull(source, [(0, 10, 0)], target)
        assert await read(leases, target, 10) == b"0123456789"

    run(check)


def test_writer_has_ended(machine, peers):
    """What a process wrote before its end is copied without its event."""

    async def check(leases, links):
        writer = peers(0)
        event = writer.create_event()
        source = await leases.lease("GPU-1", 100, writer.export_event(event))
        pointer, own = writer.open(source.handle), writer.allocate(5)
        writer.write(own, b"hello")
        writer.copy(pointer, own, 5)
        writer.record(event)
        writer.end()
        target = await leases.lease_on(1, 100)
        await leases.pull(source, [(0, 5, 0)], target)
        assert await read(leases, target, 5) == b"hello"
        assert await read(leases, source, 5) == b"hello"

    run(check)


def test_broker_that_is_lost_opens_nothing(gpu):
    """A broker that was lost before it is asked to open memory does not count among those who have it open."""

    async def check(leases, links):
        source = await written(leases, gpu, b"0123456789")
        links[1]._lost("it ended")
        with pytest.raises(GpuLostError, match="the broker of GPU 1 was lost"):
            await links[1].open_peer(source, -1)
        assert source.holders == set()

    run(check)


def test_memory_is_lost_when_it_is_opened(gpu):
    """It is closed by then, so no copy is asked for."""

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        open_peer, copies = links[1].open_peer, []

        async def opened_and_lost(region, number):
            await open_peer(region, number)
            region.lose("it ended")

        links[1].open_peer = opened_and_lost
        links[1].copy_peer = lambda *piece: copies.append(piece)
        with pytest.raises(GpuLostError, match="it ended"):
            await leases.pull(source, [(0, 10, 0)], target)
        assert copies == []

    run(check)


@pytest.mark.parametrize("lost", [0, 1], ids=["source", "target"])
def test_broker_is_lost(gpu, lost):
    """A copy fails with either broker, and the sentence names it. The memory of the other one is as it was."""

    async def check(leases, links):
        source, target = await written(leases, gpu, b"0123456789"), await leases.lease_on(1, 100)
        await leases.pull(source, [(0, 10, 0)], target)
        ended = asyncio.get_running_loop().create_future()
        links[lost].when_lost(ended.set_result)
        os.kill(links[lost].pid, signal.SIGSTOP)
        pulling = asyncio.ensure_future(leases.pull(source, [(0, 10, 0)], target))
        os.kill(links[lost].pid, signal.SIGKILL)
        with pytest.raises(GpuLostError, match=f"the broker of GPU {lost} was lost"):
            await pulling
        assert f"the broker of GPU {lost} was lost" in await ended
        regions = [source, target]
        assert [bool(each.loss) for each in regions] == [lost == 0, lost == 1]
        assert await read(leases, regions[1 - lost], 10) == b"0123456789"
        with pytest.raises(GpuError):
            await leases.pull(source, [(0, 10, 0)], target)
        for each in regions:
            each.close()
        await links[1 - lost].complete(0)  # an answer to this one is behind that to the request to close
        assert [each.holders for each in regions] == [set(), set()]

    run(check)
