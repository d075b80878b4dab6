# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions on GPUs, over a broker that notes what is asked of it: what is refused, and how long they stay."""

import asyncio

import pytest

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.memory import cuda_regions
from pyruntime.runtime.memory.clients import REGIONS_MAX, ClientMemory
from pyruntime.runtime.requests.types import GpuPlace
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.gpu.driver import GpuLostError, GpuProperties, gpu_error

HANDLE = bytes(64)
INVALID = "failed to register shared memory region: invalid args"
GPUS = [GpuProperties(ordinal, f"GPU-{ordinal}", "G", (8, 0), 100, 100, False) for ordinal in range(2)]


class Link:
    """A broker whose memory has 100 bytes. `failure` is raised by all that it does."""

    def __init__(self):
        self.asked = []
        self.failure = None
        # What says that memory is closed; None if it is not open.
        self.closing = None

    async def _do(self, *asked):
        self.asked.append(asked)
        if self.failure is not None:
            raise self.failure
        return 100

    def open(self, memory):
        return self._do("open", memory.device_id)

    def read(self, memory, at, size, region, offset):
        return self._do("read", at, size, region, offset)

    def write(self, memory, at, size, region, offset):
        return self._do("write", at, size, region, offset)

    def copy(self, number, at, size, target, offset):
        return self._do("copy", at, size, target, offset)

    def close_memory(self, memory):
        self.asked.append(("close", memory.device_id))
        return self.closing


class AllBrokers(Brokers):
    """The same broker for all GPUs."""

    def __init__(self):
        super().__init__(lambda: GPUS)
        self.link = Link()
        self.ready = None

    async def of(self, gpu):
        if self.ready is not None:
            await self.ready.wait()
        return self.link

    def close_memory(self, gpu, memory):
        return self.link.close_memory(memory)


@pytest.fixture
def brokers():
    return AllBrokers()


@pytest.fixture
def memory(brokers):
    return ClientMemory(allowed=True, brokers=brokers)


def register(memory, name="r", device_id=1, size=100):
    asyncio.run(memory.register_cuda(name, HANDLE, device_id, size))


def unregister(memory, name=""):
    asyncio.run(memory.unregister_cuda(name))


def refusal(code, function, *arguments):
    with pytest.raises(InferenceError) as caught:
        function(*arguments)
    assert caught.value.code is code
    return caught.value.message


def test_register(memory, brokers):
    """The broker of the device opens it; then it is listed."""
    register(memory)
    assert brokers.link.asked == [("open", 1)]
    (row,) = memory.status_cuda()
    assert (row.name, row.device_id, row.byte_size) == ("r", 1, 100)
    assert memory.status_cuda("r") == [row]
    assert memory.status() == []
    message = "The region named 'r' is registered as CUDA shared memory, not system shared memory"
    assert refusal(Code.NOT_FOUND, memory.status, "r") == message


@pytest.mark.parametrize(("device_id", "size"), [(-1, 100), (2, 100), (0, 0), (0, 101), (0, -5)])
def test_wrong_arguments(memory, brokers, device_id, size):
    """No such device, or not so much memory: what is open is closed again."""
    assert refusal(Code.INVALID_ARG, register, memory, "r", device_id, size) == INVALID
    opened = [verb for verb, *_ in brokers.link.asked]
    assert opened in ([], ["open", "close"])
    assert memory.status_cuda() == []


def test_what_cannot_be_opened(memory, brokers, caplog):
    """The client reads Triton's words, and the log has the reason. The name is free."""
    brokers.link.failure = gpu_error("CUDA_ERROR_INVALID_HANDLE", "cuIpcOpenMemHandle", "invalid resource handle")
    assert refusal(Code.INVALID_ARG, register, memory) == INVALID
    assert "cuIpcOpenMemHandle: invalid resource handle" in caplog.text
    brokers.link.failure = None
    register(memory)


def test_names_are_taken_while_they_are_opened(memory):
    """A name has one region, of either kind, and there are not too many."""

    async def both():
        first = memory.register_cuda("r", HANDLE, 0, 1)
        with pytest.raises(InferenceError, match="already in manager"):
            memory.register_cuda("r", HANDLE, 0, 1)
        with pytest.raises(InferenceError, match="already in manager"):
            memory.register("r", "/key", 0, 1)
        await first

    asyncio.run(both())
    others = [memory.register_cuda(f"r{number}", HANDLE, 0, 1) for number in range(REGIONS_MAX - 1)]
    message = refusal(Code.UNAVAILABLE, memory.register_cuda, "one more", HANDLE, 0, 1)
    assert message == f"more than {REGIONS_MAX} shared memory regions are registered"
    for other in others:
        other.close()


def test_unregister(memory, brokers):
    """It is closed at once, or when the last request that counts on it ends. Unknown names mean nothing."""
    register(memory, "a")
    register(memory, "b")
    used = memory.status_cuda("b")[0]
    used.count_on()
    unregister(memory, "unknown")
    unregister(memory)
    assert memory.status_cuda() == [used]
    assert brokers.link.asked.count(("close", 1)) == 1
    used.count_on()
    used.close()
    assert memory.status_cuda() == [used]
    used.close()
    assert memory.status_cuda() == []
    assert brokers.link.asked.count(("close", 1)) == 2


def test_use_does_not_unregister(memory):
    """A region that nobody has unregistered stays when requests end."""
    register(memory)
    region = memory.status_cuda("r")[0]
    region.count_on()
    region.close()
    assert memory.status_cuda() == [region]


class Stub:
    """Has regions open, and notes which of them it is to close."""

    def __init__(self):
        self.revoked = []

    def revoke(self, region):
        self.revoked.append(region)


def test_processes_of_models(memory, brokers):
    """They open the same memory by its handle, and close it when it is not registered any more."""
    register(memory)
    region = memory.status_cuda("r")[0]
    there = region.for_stubs()
    assert region.for_stubs() is there
    assert (there.gpu.ordinal, there.handle, there.limit, there.event) == (1, HANDLE, 100, b"")
    stub = Stub()
    there.holders.add(stub)
    region.count_on()
    unregister(memory, "r")
    assert stub.revoked == []
    region.close()
    assert stub.revoked == [there]
    there.left(stub)


@pytest.mark.parametrize("is_lost", [False, True])
def test_unregistered_when_it_is_closed(memory, brokers, is_lost):
    """The answer comes when the broker and the processes of models have closed it, or have ended."""

    async def check():
        await memory.register_cuda("r", HANDLE, 1, 100)
        there, stub = memory.status_cuda("r")[0].for_stubs(), Stub()
        there.holders.add(stub)
        brokers.link.closing = asyncio.Future()
        done = asyncio.ensure_future(memory.unregister_cuda("r"))
        for step in (lambda: there.left(stub), lambda: brokers.link.closing.set_result(0)):
            assert (memory.status_cuda(), stub.revoked) == ([], [there])
            await asyncio.sleep(0)
            assert not done.done()
            if is_lost and there.holders == set():
                brokers.link.closing.set_exception(GpuLostError("lost", "close"))
            else:
                step()
        await done

    asyncio.run(check())


@pytest.mark.parametrize("who", ["the broker", "a process"])
def test_unregistered_and_not_closed(memory, brokers, monkeypatch, caplog, who):
    """The answer waits no longer than the limit, and the log says so."""
    monkeypatch.setattr(cuda_regions, "CLOSE_S_MAX", 0.001)

    async def check():
        await memory.register_cuda("r", HANDLE, 1, 100)
        if who == "the broker":
            brokers.link.closing = asyncio.Future()
        else:
            memory.status_cuda("r")[0].for_stubs().holders.add(Stub())
        await memory.unregister_cuda("r")

    asyncio.run(check())
    assert "'r' is unregistered, and still open after 0.001 s" in caplog.text


def test_input_that_is_passed_on(memory, brokers):
    """The broker, which has the memory open, copies it for a model that reads main memory, or to another client's."""
    register(memory)
    there = memory.status_cuda("r")[0].for_stubs()
    asyncio.run(there.lessor.fetch(there, 8, 16, "region", 32))
    asyncio.run(there.lessor.copy(there, 8, 16, "target", 32))
    assert brokers.link.asked[1:] == [("read", 8, 16, "region", 32), ("open", 1), ("copy", 8, 16, "target", 32)]
    brokers.link.failure = gpu_error("CUDA_ERROR_NOT_SUPPORTED", "copy")
    with pytest.raises(InferenceError, match="CUDA shared memory region 'r' cannot be read"):
        asyncio.run(there.lessor.copy(there, 8, 16, "target", 32))


def test_input_that_is_passed_on_too_late(memory, brokers):
    """The broker does not open memory again that is not registered any more: nobody would have it closed."""
    register(memory)
    there = memory.status_cuda("r")[0].for_stubs()
    unregister(memory, "r")
    asked = list(brokers.link.asked)
    for pass_on in (there.lessor.fetch, there.lessor.copy):
        message = refusal(Code.UNAVAILABLE, lambda call=pass_on: asyncio.run(call(there, 8, 16, "target", 32)))
        assert message == "CUDA shared memory region 'r' cannot be read: it is not registered any more"
    assert brokers.link.asked == asked


@pytest.mark.parametrize("pass_on", ["fetch", "copy"])
def test_unregistered_while_an_input_is_passed_on(memory, brokers, pass_on):
    """A broker that starts again opens the memory for the copy, and closes it afterwards."""

    async def check():
        await memory.register_cuda("r", HANDLE, 1, 100)
        there = memory.status_cuda("r")[0].for_stubs()
        ready = brokers.ready = asyncio.Event()
        copy = asyncio.ensure_future(getattr(there.lessor, pass_on)(there, 8, 16, "target", 32))
        await asyncio.sleep(0)
        await memory.unregister_cuda("r")
        ready.set()
        await copy
        assert [asked[0] for asked in brokers.link.asked][-1] == "close"
        assert (brokers.link.asked.count(("close", 1)), memory.status_cuda()) == (1, [])

    asyncio.run(check())


def test_parts(memory):
    """Tensors are parts of a region, and BYTES are not too many."""
    register(memory)
    tensor = memory.input("X", "INT8", [5], "r", 95, 5)
    assert (tensor.gpu.offset, tensor.gpu.size, tensor.data) == (95, 5, b"")
    place = memory.output("r", 1, 99)
    assert type(place) is GpuPlace
    assert (place.region, place.offset, place.byte_size, place.contents.offset) == ("r", 1, 99, 1)
    for offset, size in ((95, 6), (0, 0), (0, 101)):
        message = refusal(Code.INVALID_ARG, memory.input, "X", "INT8", [5], "r", offset, size)
        assert message == "Invalid offset + byte size for shared memory region: 'r'"
    assert refusal(Code.INVALID_ARG, memory.output, "r", 100, 1) == "Invalid offset for shared memory region: 'r'"
    few = ClientMemory(allowed=True, strings_bytes_max=4, brokers=AllBrokers())
    register(few)
    assert "5 bytes of strings" in refusal(Code.INVALID_ARG, few.input, "X", "BYTES", [1], "r", 0, 5)


@pytest.mark.parametrize(
    ("cause", "code", "reason"),
    [
        (gpu_error("CUDA_ERROR_INVALID_VALUE", "copy", "invalid argument"), Code.INTERNAL, "invalid argument"),
        (
            GpuLostError("lost", "copy", "the broker of GPU 1 was lost"),
            Code.UNAVAILABLE,
            "the broker of GPU 1 was lost",
        ),
        (OSError(24, "Too many open files"), Code.UNAVAILABLE, "Too many open files"),
    ],
)
def test_copies_that_fail(memory, brokers, cause, code, reason):
    """The error says which region, and why."""
    register(memory)
    region = memory.status_cuda("r")[0]
    brokers.link.failure = cause
    message = refusal(code, lambda: asyncio.run(region.read(0, 1, None, 0)))
    assert message == f"CUDA shared memory region 'r' cannot be read: {reason}"
    message = refusal(code, lambda: asyncio.run(region.write(0, 1, None, 0)))
    assert message == f"CUDA shared memory region 'r' cannot be written: {reason}"
