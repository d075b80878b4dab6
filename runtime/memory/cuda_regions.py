# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of clients on GPUs, which they registered by a CUDA IPC handle.

The host has no context on a GPU. The broker of the GPU opens the handle, and copies. If the broker is lost, the next
one opens the handle again. The process of a model that reads its inputs on the GPU opens the handle itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.regions import GpuHandle, GpuRegion, SharedRegion
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.gpu.driver import GpuError, GpuLostError, GpuProperties

_LOG = logging.getLogger("pyruntime.brokers")

# Triton's message for whatever is wrong with a registration.
INVALID = "failed to register shared memory region: invalid args"

# How long an answer waits until an unregistered region is closed, in seconds. A broker or a process of a model may
# be in a copy of gigabytes, or hang.
CLOSE_S_MAX = 10.0

_numbers = count(1)


class CudaRegion:
    """A registered region: `byte_size` bytes from the beginning of a client's memory on a GPU.

    It is counted like a ClientRegion: the registration counts on it, and each request that uses it. `on_unused` is
    called when only the registration does.
    """

    def __init__(
        self,
        name: str,
        handle: bytes,
        gpu: GpuProperties,
        byte_size: int,
        brokers: Brokers,
        on_unused: Callable[[CudaRegion], None],
    ) -> None:
        self.name = name
        self.handle = handle
        self.device_id = gpu.ordinal
        self.byte_size = byte_size
        self.number = next(_numbers)
        self._gpu = gpu
        self._brokers = brokers
        self._on_unused = on_unused
        self._counting = 1
        self._for_stubs: GpuRegion | None = None
        # What the broker does at the last `close`; and whether processes of models have closed what was for them.
        self._closing: asyncio.Future[int] | None = None
        self._left = asyncio.Event()

    @property
    def is_used(self) -> bool:
        """Whether requests count on it."""
        return self._counting > 1

    async def open(self) -> int:
        """Have the broker open the memory. Returns its size, in bytes. Raises GpuError."""
        link = await self._brokers.of(self._gpu)
        return await link.open(self)

    def for_stubs(self) -> GpuRegion:
        """The same memory, as processes of models open it. No event is needed: the client's work is complete."""
        if self._for_stubs is None:
            self._for_stubs = GpuRegion(self._gpu, self.handle, self.byte_size, b"", self, self)
        return self._for_stubs

    async def read(self, at: int, size: int, region: SharedRegion, offset: int) -> None:
        """Copy `size` bytes at `at` to a region in main memory. Raises InferenceError."""
        try:
            link = await self._brokers.of(self._gpu)
            await link.read(self, at, size, region, offset)
        except (GpuError, OSError) as exc:
            raise self._failure("read", exc) from exc

    async def write(self, at: int, size: int, region: SharedRegion, offset: int) -> None:
        """Copy `size` bytes of a region in main memory to `at`. Raises InferenceError."""
        try:
            link = await self._brokers.of(self._gpu)
            await link.write(self, at, size, region, offset)
        except (GpuError, OSError) as exc:
            raise self._failure("written", exc) from exc

    async def fetch(self, region: GpuRegion, at: int, size: int, target: SharedRegion, offset: int) -> None:
        """See Lessor: a model has passed an input on to one that reads main memory."""
        with self.held():
            await self.read(at, size, target, offset)

    async def copy(self, region: GpuRegion, at: int, size: int, target: GpuHandle, offset: int) -> None:
        """See Lessor."""
        with self.held():
            try:
                link = await self._brokers.of(self._gpu)
                await link.open(self)
                await link.copy(self.number, at, size, target, offset)
            except (GpuError, OSError) as exc:
                raise self._failure("read", exc) from exc

    def writer_ended(self, region: GpuRegion) -> None:
        """See Lessor: no process of the server writes there behind an event."""

    def unused(self, region: GpuRegion) -> None:
        """See Lessor: the memory is the client's, who may free it."""
        self._left.set()

    def count_on(self) -> None:
        """Keep it open until one more `close`."""
        self._counting += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count on it meanwhile.

        Raises InferenceError after the last `close`: the broker would open the memory again, and never close it.
        """
        if not self._counting:
            message = f"CUDA shared memory region '{self.name}' cannot be read: it is not registered any more"
            raise InferenceError(message, Code.UNAVAILABLE)
        self.count_on()
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Drop a reference; the last one closes the memory."""
        self._counting -= 1
        if not self._counting:
            self._closing = self._brokers.close_memory(self._gpu, self)
            if self._for_stubs is not None:
                self._for_stubs.close()
        elif not self.is_used:
            self._on_unused(self)

    async def wait_closed(self) -> None:
        """After the last `close`: return when no process of the server has the memory open, or after CLOSE_S_MAX."""
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                if self._closing is not None:
                    await asyncio.wait([self._closing])
                if self._for_stubs is not None:
                    await self._left.wait()
        except TimeoutError:
            text = "CUDA shared memory region '%s' is unregistered, and still open after %g s: do not free it yet"
            _LOG.warning(text, self.name, CLOSE_S_MAX)

    def _failure(self, what: str, cause: GpuError | OSError) -> InferenceError:
        if isinstance(cause, OSError):
            code, reason = Code.UNAVAILABLE, cause.strerror
        else:
            code = Code.UNAVAILABLE if isinstance(cause, GpuLostError) else Code.INTERNAL
            reason = cause.explanation
        return InferenceError(f"CUDA shared memory region '{self.name}' cannot be {what}: {reason}", code)


async def open_cuda_region(
    brokers: Brokers,
    name: str,
    handle: bytes,
    device_id: int,
    byte_size: int,
    on_unused: Callable[[CudaRegion], None],
) -> CudaRegion:
    """A region that is open. Raises InferenceError INVALID_ARG, in Triton's words; the log has the reason."""
    gpus = await brokers.gpus()
    if not gpus:
        message = f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
        raise InferenceError(message, Code.INVALID_ARG)
    if not 0 <= device_id < len(gpus):
        raise _invalid(name, f"it is on GPU {device_id}, and the server has {len(gpus)}")
    region = CudaRegion(name, handle, gpus[device_id], byte_size, brokers, on_unused)
    try:
        size = await region.open()
    except GpuError as exc:
        region.close()
        raise _invalid(name, str(exc)) from exc
    if not 0 < byte_size <= size:
        region.close()
        raise _invalid(name, f"it has {byte_size} bytes, and the client's memory {size}")
    return region


def _invalid(name: str, reason: str) -> InferenceError:
    _LOG.warning("CUDA shared memory region '%s' is not registered: %s", name, reason)
    return InferenceError(INVALID, Code.INVALID_ARG)
