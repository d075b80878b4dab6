# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a stub asks about memory on GPUs: its leases are counted, and end once, whoever ends them."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.gpu_memory import LEASES_MAX, StubGpuMemory
from pyruntime.runtime.instances.stub.regions import LOST_MAX
from pyruntime.runtime.regions import GpuRegion, create_region
from pyruntime.utils.errors import Code, PeerError
from pyruntime.utils.gpu.driver import HANDLE_BYTES, GpuMemoryError, GpuProperties
from pyruntime.utils.messages import CLOSED_GPU, LEASE_GPU, OK, RETURN_GPU, Ask

GPU = GpuProperties(0, "GPU-0", "G", (8, 0), 100, 100, False)


class Leases:
    """Leases memory, unless `refuses`. `ended` are the regions that nobody uses any more."""

    def __init__(self):
        self.regions = []
        self.ended = []
        self.orphans = []
        self.refuses = False

    async def lease(self, uuid, size, event):
        """See GpuLeases."""
        if self.refuses:
            raise GpuMemoryError("none", "lease", "there is none")
        self.regions.append(GpuRegion(GPU, bytes(HANDLE_BYTES), size, event, self))
        return self.regions[-1]

    def writer_ended(self, region):
        """See Lessor."""
        self.orphans.append(region)

    def unused(self, region):
        """See Lessor."""
        self.ended.append(region)


class Stub:
    """The questions of a stub, each with its answer."""

    def __init__(self, requests, tasks):
        self.gpus = Leases()
        self.connection = StubConnection("m_0", requests)
        self._replies = asyncio.Queue()
        server = SimpleNamespace(gpus=self.gpus)
        regions, responses = self.connection.regions, self.connection.responses
        self._memory = StubGpuMemory(server, regions, responses, tasks, lambda *reply: self._replies.put_nowait(reply))

    def tell(self, method, number):
        """A message without an answer."""
        self._memory.handlers[method](Ask(0, method, [number]))

    async def lease(self, event=b""):
        """The code of the answer."""
        self._memory.handlers[LEASE_GPU](Ask(1, LEASE_GPU, ["GPU-0", 100, event]))
        _, code, _ = await self._replies.get()
        return code


def run(check):
    """Run `check` with a stub, whose connection is closed at the end."""

    async def within():
        requests = create_region("requests of a test")
        try:
            async with asyncio.TaskGroup() as tasks:
                stub = Stub(requests, tasks)
                await check(stub)
                stub.connection._close()
                assert stub.gpus.ended == stub.gpus.regions
        finally:
            requests.close()

    asyncio.run(within())


def test_as_many_as_one_stub_may_have():
    """A stub has no more leases at a time, and those that it gives back, or does not get, do not count."""

    async def check(stub):
        stub.gpus.refuses = True
        assert [await stub.lease() for _ in range(2)] == [int(Code.UNAVAILABLE)] * 2
        stub.gpus.refuses = False
        assert {await stub.lease() for _ in range(LEASES_MAX)} == {OK}
        assert await stub.lease() == int(Code.UNAVAILABLE)
        stub.tell(RETURN_GPU, stub.gpus.regions[0].number)
        assert await stub.lease() == OK

    run(check)


def test_lost_leases_do_not_count():
    """Memory that was lost with its broker is no lease from the moment on when the stub has closed it."""

    async def check(stub):
        for _ in range(LEASES_MAX):
            await stub.lease()
        for region in stub.gpus.regions:
            region.lose("the broker was lost")
        for region in stub.gpus.regions:
            stub.tell(CLOSED_GPU, region.number)
        assert stub.gpus.ended == stub.gpus.regions
        assert await stub.lease() == OK

    run(check)


@pytest.mark.parametrize("order", [(CLOSED_GPU, RETURN_GPU), (RETURN_GPU, CLOSED_GPU)])
def test_lost_while_the_stub_gives_it_back(order):
    """Both messages about one lease may be on their way when it is lost. It ends once."""

    async def check(stub):
        await stub.lease()
        (region,) = stub.gpus.regions
        region.lose("the broker was lost")
        for method in order:
            stub.tell(method, region.number)
        assert region.is_closed
        assert not region.holders

    run(check)


def test_late_answer_in_lost_memory():
    """A tensor in memory that was lost meanwhile is no fault of the stub: who reads it has the error."""

    async def check(stub):
        await stub.lease()
        (region,) = stub.gpus.regions
        region.lose("the broker was lost")
        stub.tell(CLOSED_GPU, region.number)
        assert stub.connection.regions.leased(region.number) is region
        assert stub.connection.regions.find(region.number) is region

    run(check)


def test_memory_that_was_lost_long_ago():
    """The host remembers the last losses only."""

    async def check(stub):
        for _ in range(LOST_MAX + 1):
            await stub.lease()
            stub.gpus.regions[-1].lose("the broker was lost")
            stub.tell(CLOSED_GPU, stub.gpus.regions[-1].number)
        assert stub.connection.regions.leased(stub.gpus.regions[1].number)
        with pytest.raises(PeerError, match="that the stub leases"):
            stub.connection.regions.leased(stub.gpus.regions[0].number)
        with pytest.raises(PeerError, match="was not leased"):
            stub.tell(RETURN_GPU, stub.gpus.regions[0].number)

    run(check)


def test_the_process_ends_before_its_tensors():
    """Who opens a tensor after the end of its writer has no event to wait for: nothing is copied any more."""

    async def check(stub):
        await stub.lease(b"an event")
        (region,) = stub.gpus.regions
        assert region.event == b"an event"
        region.count_on()
        stub.connection._close()
        assert (region.event, region.is_closed, stub.gpus.orphans) == (b"", False, [region])
        region.close()

    run(check)


def test_an_event_that_is_no_handle():
    """What a broker could not read is not passed on to it: it serves others, too."""

    async def check(stub):
        with pytest.raises(PeerError, match="the handle of an event"):
            await stub.lease(bytes(HANDLE_BYTES + 1))
        assert await stub.lease(bytes(HANDLE_BYTES)) == OK

    run(check)
