# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Leases of memory on a GPU of the stand-in, from real brokers. This process is the stub that leases."""

import asyncio
import os
import signal

import pytest

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.brokers.pool import CHUNK_BYTES
from pyruntime.runtime.regions import create_region
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.gpu.driver import GpuLostError, GpuMemoryError, GpuMissingError
from tests.plugins.gpus import StandInMachine

pytestmark = pytest.mark.processes
PAGE_BYTES = 4096


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """The GPU, as the stub uses it. It has room for four chunks."""
    return StandInMachine(tmp_path, monkeypatch, {"uuid": "GPU-1", "total_bytes": 4 * CHUNK_BYTES}).gpu()


class Stub:
    """Has regions open."""

    def __init__(self):
        self.revoked = []
        self.told = []

    def revoke(self, region):
        self.revoked.append(region)

    def writer_ended(self, region):
        self.told.append(region)


def run(check, sizes=None):
    """Run `check` with leases and brokers. The brokers are ended."""

    async def within():
        brokers = Brokers()
        try:
            await check(GpuLeases(brokers, sizes or {}), brokers)
        finally:
            await brokers.close()

    asyncio.run(within())


def test_a_lease(gpu):
    """The stub opens the memory and writes there; the broker reads behind the stub's event."""

    async def check(leases, brokers):
        event = gpu.create_event()
        region = await leases.lease("GPU-1", 100, gpu.export_event(event))
        assert (region.limit, region.gpu.uuid, leases.usage()) == (CHUNK_BYTES, "GPU-1", {"GPU-1": (CHUNK_BYTES, 0)})
        pointer, own, target = gpu.open(region.handle), gpu.allocate(5), create_region("test")
        target.commit(0, 4096)
        gpu.write(own, b"hello")
        gpu.copy(pointer + 7, own, 5)
        gpu.record(event)
        await leases.fetch(region, 7, 5, target, 1)
        assert bytes(target.view[:7]) == b"\0hello\0"
        gpu.close(pointer)
        region.close()
        assert leases.usage() == {"GPU-1": (0, CHUNK_BYTES)}
        target.close()

    run(check)


def test_memory_goes_back_when_nobody_has_it_open(gpu):
    """The last `close` has stubs close it; only when all have done so is it leased again."""

    async def check(leases, brokers):
        region, stub = await leases.lease("GPU-1", 1, b""), Stub()
        region.holders.add(stub)
        region.count_on()
        region.close()
        assert stub.revoked == []
        region.close()
        assert stub.revoked == [region]
        assert leases.usage() == {"GPU-1": (CHUNK_BYTES, 0)}
        region.left(stub)
        assert leases.usage() == {"GPU-1": (0, CHUNK_BYTES)}
        again = await leases.lease("GPU-1", 1, b"")
        assert (again.handle, again.number != region.number) == (region.handle, True)

    run(check)


def test_room(gpu):
    """Kept chunks make room for larger ones. Without room a lease is refused."""

    async def check(leases, brokers):
        small = [await leases.lease("GPU-1", 1, b"") for _ in range(4)]
        with pytest.raises(GpuMemoryError):
            await leases.lease("GPU-1", 1, b"")
        for each in small:
            each.close()
        large = await leases.lease("GPU-1", 2 * CHUNK_BYTES, b"")
        assert leases.usage() == {"GPU-1": (2 * CHUNK_BYTES, 0)}
        large.close()

    run(check)


@pytest.mark.parametrize(
    ("uuid", "size", "sizes", "error"),
    [
        ("GPU-1", 1, {0: 0}, GpuMissingError),
        ("GPU-2", 1, {}, GpuMissingError),
        ("GPU-1", 0, {}, GpuMemoryError),
        ("GPU-1", 1 << 40, {}, GpuMemoryError),
    ],
    ids=["no pool", "no GPU", "nothing", "too much"],
)
def test_refusals(gpu, uuid, size, sizes, error):
    """No broker is started for what is not possible."""

    async def check(leases, brokers):
        with pytest.raises(error):
            await leases.lease(uuid, size, b"")
        assert leases.usage() == {}

    run(check, sizes)


def test_nothing_is_left_of_memory_that_is_freed(gpu):
    """The broker closes the event of a stub with the memory that this has given back, however often that is."""

    async def check(leases, brokers):
        link = await brokers.of((await brokers.gpus())[0])
        counts = set()
        for _ in range(3):
            region = await leases.lease("GPU-1", 1, gpu.export_event(gpu.create_event()))
            counts.add(len(os.listdir(f"/proc/{link.pid}/fd")))  # memory and events of the stand-in are descriptors
            region.close()
        assert len(counts) == 1

    run(check, {0: 1})


@pytest.mark.parametrize("knows", [False, True])
def test_writer_has_ended(gpu, peers, knows):
    """The broker copies without its event, before the host knows it; then it closes that, and others are told."""

    async def check(leases, brokers):
        writer, stub, target = peers(), Stub(), create_region("test")
        target.commit(0, 4096)
        event = writer.create_event()
        region = await leases.lease("GPU-1", 1, writer.export_event(event))
        region.holders.add(stub)
        pointer, own = writer.open(region.handle), writer.allocate(5)
        writer.write(own, b"hello")
        writer.copy(pointer, own, 5)
        writer.record(event)
        writer.end()
        link = await brokers.of(region.gpu)
        if knows:
            region.writer_ended()
            assert (region.event, stub.told) == (b"", [region])
        await leases.fetch(region, 0, 5, target, 0)
        assert bytes(target.view[:5]) == b"hello"
        await link.complete(-1)
        events = [path for path in os.listdir(f"/proc/{link.pid}/fd") if is_event(link.pid, path)]
        assert bool(events) is not knows
        region.left(stub)
        region.close()
        assert (await leases.lease("GPU-1", 1, b"")).handle == region.handle
        target.close()

    run(check)


def is_event(pid, fd):
    """Whether a descriptor is that of an event of the stand-in, which has a header and no contents."""
    path = f"/proc/{pid}/fd/{fd}"
    return "stand-in" in os.readlink(path) and os.stat(path).st_size == PAGE_BYTES


def test_writer_ends_after_its_broker(gpu):
    """Nobody tells a broker that was lost."""

    async def check(leases, brokers):
        region = await leases.lease("GPU-1", 1, b"")
        (await brokers.of(region.gpu))._lost("it ended")
        region.writer_ended()
        region.close()

    run(check)


def test_broker_is_lost(gpu):
    """Stubs are told, copies fail with a sentence, and the next lease is of another broker."""

    async def check(leases, brokers):
        region, stub, target = await leases.lease("GPU-1", 1, b""), Stub(), create_region("test")
        region.holders.add(stub)
        link = await brokers.of(region.gpu)
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(InferenceError, match="the broker of GPU 0 was lost") as caught:
            await leases.fetch(region, 0, 1, target, 0)
        assert caught.value.code is Code.UNAVAILABLE
        assert stub.revoked == [region]
        assert region.loss == "the broker of GPU 0 was lost: it ended"
        region.left(stub)
        region.close()
        again = await leases.lease("GPU-1", 1, b"")
        assert again.handle != region.handle
        again.close()
        target.close()

    run(check)


def test_broker_is_lost_with_its_answer(gpu, monkeypatch):
    """Memory of a broker that ends as soon as it has answered is not leased: nobody would say that it is lost."""

    async def check(leases, brokers):
        link = await brokers.of((await brokers.gpus())[0])
        set_event = link.set_event

        def answers_and_ends(number, handle):
            answer = set_event(number, handle)
            answer.add_done_callback(lambda _: link._lost("it ended"))
            return answer

        monkeypatch.setattr(link, "set_event", answers_and_ends)
        with pytest.raises(GpuLostError, match="the broker of GPU 0 was lost"):
            await leases.lease("GPU-1", 1, b"")
        region = await leases.lease("GPU-1", 1, b"")
        assert not region.loss
        region.close()

    run(check)


def test_nothing_is_granted_to_a_lost_broker(gpu):
    """A copy that is asked for while a broker ends fails, and leaves no descriptor behind."""

    async def check(leases, brokers):
        region, target = await leases.lease("GPU-1", 1, b""), create_region("test")
        (await brokers.of(region.gpu))._lost("it ended")
        with pytest.raises(InferenceError, match="the broker of GPU 0 was lost"):
            await leases.fetch(region, 0, 1, target, 0)
        assert not target.holders
        region.close()
        target.close()

    run(check)
