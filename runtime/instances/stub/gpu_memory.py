# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What one stub asks about memory on GPUs that processes share: see brokers/leases.py and stub/gpu_memory.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.stub.regions import StubRegions
from pyruntime.runtime.regions import GpuRegion, SharedRegion
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import Code, InferenceError, PeerError
from pyruntime.utils.gpu.driver import HANDLE_BYTES, GpuError, GpuMemoryError
from pyruntime.utils.messages import CLOSED_GPU, FETCH_GPU, LEASE_GPU, OK, RETURN_GPU, Ask

# The chunks that one stub may lease at a time: each is a message, and is looked at for each tensor.
LEASES_MAX = 256


class StubGpuMemory:
    """See the module. `handlers` are those of its questions, by the method; they raise PeerError."""

    def __init__(
        self,
        server: ModelServer,
        regions: StubRegions,
        responses: SharedRegion,
        tasks: asyncio.TaskGroup,
        reply: Callable[[int, int, object], None],
    ) -> None:
        """`regions` are the stub's, and so are the `responses`. `reply` is called with the fields of a Reply."""
        self._server = server
        self._regions = regions
        self._responses = responses
        self._tasks = tasks
        self._reply = reply
        self._pending = 0
        self.handlers: dict[str, Callable[[Ask], None]] = {
            LEASE_GPU: self._lease,
            FETCH_GPU: self._fetch,
            RETURN_GPU: self._give_back,
            CLOSED_GPU: self._closed,
        }

    def _lease(self, message: Ask) -> None:
        match message.arguments:
            case [str() as uuid, int() as size, bytes() as event] if len(event) <= HANDLE_BYTES:
                lease = self._lease_soon(message.question, uuid, size, event)
                self._tasks.create_task(lease, name="lease memory on a GPU")
            case _:
                raise PeerError("memory on a GPU is asked for without a UUID, a size and the handle of an event")

    async def _lease_soon(self, question: int, uuid: str, size: int, event: bytes) -> None:
        try:
            if self._regions.leases + self._pending >= LEASES_MAX:
                raise GpuMemoryError("too many leases", "lease", f"the model leases {LEASES_MAX} chunks already")
            self._pending += 1
            try:
                region = await self._server.gpus.lease(uuid, size, event)
            finally:
                self._pending -= 1
        except GpuError as exc:
            self._reply(question, int(Code.UNAVAILABLE), exc.explanation)
            return
        self._regions.lease(region)
        self._reply(question, OK, [region.number, region.gpu.ordinal, region.handle, region.limit])

    def _fetch(self, message: Ask) -> None:
        match message.arguments:
            case [int() as at, int() as size, int() as offset]:
                number, begin = split(at)
                region, responses = self._regions.find(number), self._responses
                if not isinstance(region, GpuRegion) or min(begin, size) < 0 or begin + size > region.limit:
                    raise PeerError(f"{size} bytes are asked for that are not in memory on a GPU")
                if not 0 <= offset <= responses.limit - size:
                    raise PeerError(f"{size} bytes of a GPU do not fit at {offset} of the responses")
                region.count_on()
                fetch = self._fetch_soon(message.question, region, begin, size, offset)
                self._tasks.create_task(fetch, name="copy a tensor from a GPU")
            case _:
                raise PeerError("a tensor on a GPU is asked for without its address, its size and where it goes")

    async def _fetch_soon(self, question: int, region: GpuRegion, at: int, size: int, offset: int) -> None:
        try:
            await region.lessor.fetch(region, at, size, self._responses, offset)
        except InferenceError as exc:
            self._reply(question, int(exc.code), exc.message)
        else:
            self._reply(question, OK, None)
        finally:
            region.close()

    def _give_back(self, message: Ask) -> None:
        self._regions.give_back(_number(message.arguments))

    def _closed(self, message: Ask) -> None:
        self._regions.closed(_number(message.arguments))


def _number(arguments: Sequence[object]) -> object:
    """The only argument. Raises PeerError."""
    if len(arguments) != 1:
        raise PeerError("memory on a GPU is named without its number")
    return arguments[0]
