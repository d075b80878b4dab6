# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The memory on GPUs that this process has open: its own leases, and what other processes write to.

The host announces a region before the first message that refers to it. It is opened once, when a tensor there is first
used: to open the first memory on a GPU makes a context, which takes seconds.

Copies are only ordered (see utils/gpu/driver.py). So each process has an event on each GPU that it records behind its
copies, and who reads its memory waits for that event before.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Callable, ContextManager, Dict, Optional, Tuple

from pyruntime.stub.gpus import gpu_of, ordinal_of
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.utils.addresses import split
from pyruntime.utils.gpu.driver import GpuError, GpuHandleError, gpu_error
from pyruntime.utils.messages import MapGpu


class Chunk:
    """Memory on the GPU `gpu`, by its number in this process. Without a `pointer` it is closed.

    Who reads it holds `lock` meanwhile, so that it is not closed between a look and the use.
    """

    def __init__(self, number: int, gpu: int, pointer: int, event: Optional[int]) -> None:
        """Behind `event` come the copies of the process that writes there; None if none is needed."""
        self.number = number
        self.gpu = gpu
        self.pointer: Optional[int] = pointer
        self.event = event
        self._is_forgotten = False
        self.lock = threading.RLock()

    def at(self, offset: int) -> int:
        """The pointer to a tensor. Raises TritonModelException if the memory is gone."""
        if self.pointer is None:
            raise TritonModelException(f"the tensor is gone: the broker of GPU {self.gpu} was lost")
        return self.pointer + offset

    def order(self) -> None:
        """Have later copies of this process come behind those of the writer.

        Raises GpuError, and TritonModelException if the memory is gone.
        """
        self._behind_event(gpu_of(self.gpu).wait)

    def complete(self) -> None:
        """Return when the copies of the writer are complete, which may be this process.

        Raises GpuError, and TritonModelException if the memory is gone.
        """
        self._behind_event(gpu_of(self.gpu).synchronize)
        if self.event is None:
            gpu_of(self.gpu).settle()

    def forget_event(self) -> None:
        """The writer has ended, and its event with it. Does not wait for those who use the memory."""
        self._is_forgotten = True

    def _behind_event(self, wait: Callable[[int], None]) -> None:
        """A process that has ended copies nothing any more: nobody need wait for it, and its event cannot be used."""
        with self.lock:
            self.at(0)
            if self.event is not None and not self._is_forgotten:
                with suppress(GpuHandleError):  # the writer has ended just now, and the host is about to say so
                    wait(self.event)

    def close(self) -> None:
        """Close memory and its event, also if its owner has ended."""
        driver = gpu_of(self.gpu)
        with self.lock:
            pointer, self.pointer = self.pointer, None
            event, self.event = self.event, None
            try:
                if event is not None:
                    with suppress(GpuHandleError):  # its process may have ended
                        driver.destroy_event(event)
                if pointer is not None:
                    driver.close(pointer)
            except GpuError as exc:
                LOGGER.debug("memory on GPU %d: %s", self.gpu, exc)


class Chunks:
    """Those of one process, and the regions that it may open. Thread-safe."""

    def __init__(self, lock: ContextManager[None]) -> None:
        """Callers of `add` and `remove` hold `lock`."""
        self._lock = lock
        self._announced: Dict[int, MapGpu] = {}
        self._opened: Dict[int, Chunk] = {}
        # Held while memory is opened, which may take seconds. The thread that reads messages never waits for it.
        self._opening = threading.Lock()

    def announce(self, message: MapGpu) -> None:
        """Have a region found to which later messages may refer.

        It is announced again, without its event, when the process that writes there has ended.
        """
        with self._lock:
            self._announced[message.number] = message
            chunk = self._opened.get(message.number)
        if chunk is not None:
            chunk.forget_event()

    def gpu_at(self, at: int) -> int:
        """The number of the GPU of an address in this process, which need not have used it. Raises GpuError."""
        number, _ = split(at)
        chunk = self._opened.get(number)
        return ordinal_of(self._announcement(number).uuid) if chunk is None else chunk.gpu

    def find(self, at: int) -> Tuple[Chunk, int]:
        """The chunk of an address, and the offset there. Raises GpuError if it cannot be opened."""
        number, offset = split(at)
        chunk = self._opened.get(number)
        if chunk is None:
            with self._opening:
                chunk = self._opened.get(number) or self._open(self._announcement(number))
        return chunk, offset

    def add(self, chunk: Chunk) -> None:
        """Have a chunk found that this process has leased and opened."""
        self._opened[chunk.number] = chunk

    def remove(self, number: int) -> Tuple[bool, Optional[Chunk]]:
        """Have a region not found any more. Returns whether it was known, and its chunk if that is open."""
        announced = self._announced.pop(number, None)
        chunk = self._opened.pop(number, None)
        return announced is not None or chunk is not None, chunk

    def _open(self, message: MapGpu) -> Chunk:
        chunk = open_chunk(message)
        with self._lock:
            announced = self._announced.get(message.number)
            if announced is not None:
                self._opened[message.number] = chunk
        if announced is None:
            chunk.close()
            raise lost()
        if announced is not message:  # the writer has ended meanwhile
            chunk.forget_event()
        return chunk

    def _announcement(self, number: int) -> MapGpu:
        announced = self._announced.get(number)
        if announced is None:
            raise lost()
        return announced


def open_chunk(message: MapGpu) -> Chunk:
    """The chunk that another process writes to. Raises GpuError."""
    gpu = ordinal_of(message.uuid)
    driver = gpu_of(gpu)
    try:
        pointer = driver.open(message.handle)
    except GpuHandleError as exc:  # the host has not said so yet, nor whose memory it is
        raise lost(", or the client that the memory belongs to") from exc
    event = None
    try:
        if message.event:
            event = driver.open_event(message.event)
    except GpuHandleError:  # its process has ended, and copies nothing any more; the memory is the broker's
        LOGGER.debug("memory on GPU %d is read without an event", gpu)
    except GpuError:
        driver.close(pointer)
        raise
    return Chunk(message.number, gpu, pointer, event)


def lost(more: str = "") -> GpuError:
    """For memory that the driver does not find any more. `more` are further causes than the end of its broker."""
    return gpu_error("CUDA_ERROR_INVALID_HANDLE", "open", f"the broker of the GPU was lost{more}")
