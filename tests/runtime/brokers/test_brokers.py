# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Brokers, which are real processes, over GPUs of the stand-in."""

import asyncio
import errno
import os
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

from pyruntime.runtime.brokers import link as links
from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.brokers.messages import encode_answer
from pyruntime.runtime.regions import create_region
from pyruntime.utils.gpu.driver import GpuHandleError, GpuLostError, GpuMemoryError, GpuMissingError, GpuProperties

pytestmark = pytest.mark.processes


@pytest.fixture
def gpu(machine):
    """The second GPU, as a client uses it."""
    return machine.gpu(1)


@pytest.fixture
def region(new_region):
    """A region that begins with "hello"."""
    made = new_region(4096)
    made.view[:5] = b"hello"
    return made


def run(check):
    """Run `check` with brokers and the properties of the second GPU. The brokers are ended."""

    async def within():
        brokers = Brokers()
        try:
            await check(brokers, (await brokers.gpus())[1])
        finally:
            await brokers.close()

    asyncio.run(within())


def shared(gpu, contents, number=1):
    """Memory of this process, as a broker opens it."""
    pointer = gpu.allocate(len(contents))
    gpu.write(pointer, contents)
    return SimpleNamespace(number=number, handle=gpu.export(pointer), pointer=pointer)


class BriefProcess:
    """A broker that hangs up as soon as it is ready, and takes its time to end."""

    pid = 0

    def __init__(self, command, *, pass_fds, **_):
        self.waits = []
        with socket.socket(fileno=os.dup(pass_fds[0])) as sock:
            sock.send(encode_answer(0))

    def poll(self):
        """It has not ended."""

    def kill(self):
        """It ends in `wait`."""

    def wait(self, timeout=None):
        self.waits.append((threading.current_thread() is threading.main_thread(), timeout))


def contents(gpu, memory, size):
    target = bytearray(size)
    gpu.read(memory.pointer, target)
    return bytes(target)


def test_copies(gpu, region):
    """Memory is opened, read and written, and closed so that the client can free it. No copy waits for another one."""

    async def check(brokers, properties):
        memory = shared(gpu, b"on the GPU")
        link = await brokers.of(properties)
        assert await link.open(memory) == 10
        await asyncio.gather(link.read(memory, 7, 3, region, 100), link.write(memory, 0, 5, region, 0))
        assert bytes(region.view[100:103]) == b"GPU"
        assert contents(gpu, memory, 10) == b"hellohe GPU"[:5] + b"e GPU"
        await link.close_memory(memory)
        gpu.free(memory.pointer)
        assert link.close_memory(memory) is None

    run(check)


def test_one_broker_for_each_gpu(gpu):
    """All who need one GPU at the same time share its broker."""

    async def check(brokers, properties):
        first, second, third = await asyncio.gather(
            brokers.of(properties), brokers.of(properties), brokers.of((await brokers.gpus())[0])
        )
        assert first is second is not third

    run(check)


def test_refusal(gpu, region):
    """A handle that cannot be opened is an error, and so is a copy from there. The broker goes on."""

    async def check(brokers, properties):
        memory = SimpleNamespace(number=1, handle=bytes(64))
        link = await brokers.of(properties)
        with pytest.raises(GpuHandleError, match="invalid resource handle"):
            await link.open(memory)
        with pytest.raises(GpuHandleError, match="could not be opened"):
            await link.read(memory, 0, 1, region, 0)
        good = shared(gpu, b"abc", 2)
        with pytest.raises(GpuHandleError, match="one allocation"):
            await link.read(good, 2, 2, region, 0)
        await link.read(good, 0, 3, region, 0)
        assert bytes(region.view[:5]) == b"abclo"

    run(check)


def test_refused_once(gpu, machine, region):
    """Memory that could not be opened is opened by the next copy, also where the broker is not the first one."""

    async def check(brokers, properties):
        memory = shared(gpu, b"abc")
        link = await brokers.of(properties)
        with machine.failing(open="CUDA_ERROR_OUT_OF_MEMORY"):
            with pytest.raises(GpuMemoryError):
                await link.open(memory)
            with pytest.raises(GpuHandleError, match="could not be opened"):
                await link.read(memory, 0, 3, region, 0)
        await link.read(memory, 0, 3, region, 0)
        assert bytes(region.view[:3]) == b"abc"
        await link.close_memory(memory)
        gpu.free(memory.pointer)

    run(check)


def test_a_region_that_is_closed(gpu):
    """A broker does not keep a region that the host has closed."""

    async def check(brokers, properties):
        memory = shared(gpu, b"abc")
        link = await brokers.of(properties)
        for _ in range(3):
            made = create_region("test")
            made.commit(0, 4096)
            await link.read(memory, 0, 3, made, 0)
            assert bytes(made.view[:3]) == b"abc"
            assert made.holders == {link}
            made.close()
        await link.open(memory)
        held = [os.readlink(f"/proc/{link.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{link.pid}/fd")]
        assert [each for each in held if "pyruntime test" in each] == []

    run(check)


def test_lost(gpu, region):
    """What a killed broker owes fails, also what nobody waits for yet. The next one opens the memory again."""

    async def check(brokers, properties):
        memory = shared(gpu, b"abc")
        link = await brokers.of(properties)
        await link.open(memory)
        os.kill(link.pid, signal.SIGSTOP)
        owed = [link.read(memory, 0, 3, region, 0) for _ in range(3)]
        os.kill(link.pid, signal.SIGKILL)
        for each in owed:
            with pytest.raises(GpuLostError, match="the broker of GPU 1 was lost: it ended"):
                await each
        assert link.is_lost
        assert region.holders == set()
        successor = await brokers.of(properties)
        assert successor is not link
        await successor.read(memory, 0, 3, region, 0)
        assert bytes(region.view[:3]) == b"abc"

    run(check)


def test_a_callback_that_fails(gpu, region, caplog):
    """A callback for the end that raises stops neither the next one nor those who wait for answers."""

    async def check(brokers, properties):
        def fail(reason):
            raise ValueError(f"no use for: {reason}")

        link, called = await brokers.of(properties), []
        link.when_lost(fail)
        link.when_lost(called.append)
        os.kill(link.pid, signal.SIGSTOP)
        owed = link.open(shared(gpu, b"abc"))
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(GpuLostError, match="the broker of GPU 1 was lost"):
            await owed
        assert len(called) == 1
        assert "no use for: the broker of GPU 1 was lost" in caplog.text

    run(check)


def test_lost_before_it_is_read(gpu, region):
    """A broker that has ended is not used, also if the event loop has not heard of its end."""

    async def check(brokers, properties):
        memory = shared(gpu, b"abc")
        link = await brokers.of(properties)
        os.kill(link.pid, signal.SIGKILL)
        os.waitid(os.P_PID, link.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop must not run meanwhile
        await (await brokers.of(properties)).read(memory, 0, 3, region, 0)
        assert bytes(region.view[:3]) == b"abc"

    run(check)


def test_lost_when_it_is_ready(gpu, monkeypatch):
    """A broker that ends as soon as it is ready is not used. The event loop does not wait for its end."""

    async def check(brokers, properties):
        monkeypatch.setattr(links.subprocess, "Popen", BriefProcess)
        with pytest.raises(GpuLostError, match="the broker of GPU 1 was lost: it ended"):
            await brokers.of(properties)
        (link,) = brokers._links.values()
        assert [is_in_main_thread for is_in_main_thread, _ in link._process.waits] in ([], [False])

    run(check)


def test_no_answer(gpu, region, monkeypatch):
    """A broker that owes an answer for too long is killed. The callers have an error, and the next one is used."""

    async def check(brokers, properties):
        memory = shared(gpu, b"abc")
        link = await brokers.of(properties)
        os.kill(link.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(links, "ANSWER_S_MAX", 0.01)
            owed = [link.read(memory, 0, 3, region, 0) for _ in range(3)]
            for each in owed:
                with pytest.raises(GpuLostError, match="the broker of GPU 1 was lost: it did not answer"):
                    await each
        assert link.is_lost
        assert region.holders == set()
        await (await brokers.of(properties)).read(memory, 0, 3, region, 0)
        assert bytes(region.view[:3]) == b"abc"

    run(check)


def test_lost_gpu(gpu, machine, region):
    """A broker whose GPU fails ends after its answer."""

    async def check(brokers, properties):
        memory = shared(gpu, b"abc")
        link = await brokers.of(properties)
        with machine.failing(read="CUDA_ERROR_ECC_UNCORRECTABLE"), pytest.raises(GpuLostError, match="ECC"):
            await link.read(memory, 0, 3, region, 0)
        assert link.is_lost
        await (await brokers.of(properties)).read(memory, 0, 3, region, 0)

    run(check)


def test_packet_that_cannot_be_sent(gpu, region, monkeypatch):
    """A broker that lacks a packet is lost at once: it would not do what the next packets rely on."""

    async def check(brokers, properties):
        memory, link = shared(gpu, b"abc"), await brokers.of(properties)
        await link.open(memory)

        def fail(*_):
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

        with monkeypatch.context() as patch:
            patch.setattr(links.socket, "send_fds", fail)
            owed = link.read(memory, 0, 3, region, 0)
            assert link.is_lost
            with pytest.raises(GpuLostError):
                await owed
        assert region.holders == set()
        await (await brokers.of(properties)).read(memory, 0, 3, region, 0)
        assert bytes(region.view[:3]) == b"abc"

    run(check)


def test_many_packets(gpu, region):
    """More requests than the socket takes at once are all handled, in order."""

    async def check(brokers, properties):
        memory = shared(gpu, bytes(range(256)) * 16)
        link = await brokers.of(properties)
        os.kill(link.pid, signal.SIGSTOP)
        copies = [link.read(memory, at, 1, region, at) for at in range(4096)]
        os.kill(link.pid, signal.SIGCONT)
        await asyncio.gather(*copies)
        assert bytes(region.view[:4096]) == bytes(range(256)) * 16

    run(check)


def test_no_gpu(machine):
    """A broker that cannot use its GPU says why, each time."""

    async def check(brokers, properties):
        missing = GpuProperties(5, "GPU-none", "", (8, 0), 1, 1, False)
        for _ in range(2):
            with pytest.raises(GpuMissingError, match="invalid device ordinal"):
                await brokers.of(missing)

    run(check)


def test_no_process(machine, monkeypatch):
    """So does a host that cannot start one."""

    def fail(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    async def check(brokers, properties):
        monkeypatch.setattr(links.subprocess, "Popen", fail)
        with pytest.raises(GpuMissingError, match="Resource temporarily unavailable"):
            await brokers.of(properties)

    run(check)


def test_a_broker_that_does_not_end(gpu, monkeypatch):
    """A server that ends kills it after a time."""
    monkeypatch.setattr(links, "END_S_MAX", 0.01)

    async def check(brokers, properties):
        link = await brokers.of(properties)
        os.kill(link.pid, signal.SIGSTOP)
        await brokers.close()
        with pytest.raises(ProcessLookupError):
            os.kill(link.pid, 0)

    run(check)
