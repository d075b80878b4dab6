# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Creates shared-memory regions without names, and counts their uses.

Without a name, a region cannot leak after a `kill -9`, and no other process can open it by one. A region is a memfd:
the size of /dev/shm (often 64 MiB in a container) does not limit it, and its size can be sealed, which an object in
/dev/shm does not allow. The seals are set before any other process has the descriptor.

A client's region is the client's own object. It has a name, and the client may resize it at any time. The host only
passes its descriptor to stubs.

A region on a GPU is memory of another process, which stubs open by its handle. The host knows its numbers only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from typing import Protocol

from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.gpu.driver import GpuProperties
from pyruntime.utils.regions import FLAGS_BYTES, REGION_BYTES_MAX, Region

# These seals prevent changes of a region's size, and further seals, such as one against writing.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# The kernel takes 249 bytes; a character of a model's name may be four.
MEMFD_NAME_CHARS_MAX = 60
# The unit of st_blocks, on all file systems.
BLOCK_BYTES = 512


class Holder(Protocol):
    """A stub that was granted a region which is not its own."""

    def revoke(self, region: GrantedRegion) -> None:
        """The region is closed: nothing refers to it any longer."""

    def writer_ended(self, region: GpuRegion) -> None:
        """See GpuRegion: its event is no more."""


class _Counted:
    """A region that can be granted to any stub. `number` is unique for the lifetime of the host.

    It is reference-counted: its creator has one reference, and `count_on` adds one. The last `close` closes it.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.holders: set[Holder] = set()
        self._counting = 1

    @property
    def is_closed(self) -> bool:
        """Whether nobody counts on it any more."""
        return not self._counting

    def count_on(self) -> None:
        """Keep the region open until one more `close`."""
        self._counting += 1


class SharedRegion(Region, _Counted):
    """A region of the host's: see _Counted."""

    def __init__(self, fd: int) -> None:
        Region.__init__(self, fd)
        _Counted.__init__(self)

    @property
    def used_bytes(self) -> int:
        """The memory that it uses, in bytes; 0 after it is closed."""
        return os.fstat(self._fd).st_blocks * BLOCK_BYTES if self._fd >= 0 else 0

    def close(self) -> None:
        """Drop a reference, and close the region if it was the last one."""
        self._counting -= 1
        if not self._counting:
            for holder in list(self.holders):
                holder.revoke(self)
            super().close()


class ClientRegion(_Counted):
    """A client's shared memory: see _Counted. Owns the descriptor `fd`, and never maps the object.

    `identity` is the same for two descriptors of one object. `names` is how many registered names count on it; all
    others are requests. `on_unused` is called when only names count on it.
    """

    def __init__(self, fd: int, on_unused: Callable[[ClientRegion], None] | None = None) -> None:
        super().__init__()
        self._fd = fd
        self._on_unused = on_unused
        self.names = 0
        opened = os.fstat(fd)
        self.identity = (opened.st_dev, opened.st_ino)

    def fileno(self) -> int:
        """The descriptor, for handing to another process."""
        return self._fd

    def size(self) -> int:
        """How large the client's object is now, in bytes; it may shrink at any time."""
        return os.fstat(self._fd).st_size

    def read(self, offset: int, size: int) -> bytes:
        """A copy of `size` bytes; of fewer where the object ends before them."""
        return os.pread(self._fd, size, offset)

    @property
    def is_used(self) -> bool:
        """Whether requests count on it."""
        return self._counting > self.names

    def close(self) -> None:
        """Drop a reference; the last one closes the descriptor."""
        self._counting -= 1
        if not self._counting:
            for holder in list(self.holders):
                holder.revoke(self)
            os.close(self._fd)
            self._fd = -1
        elif self._on_unused is not None and not self.is_used:
            self._on_unused(self)


class GpuHandle(Protocol):
    """Memory of a client on a GPU, which brokers open: see memory/cuda_regions.py."""

    number: int
    handle: bytes

    def held(self) -> AbstractContextManager[None]:
        """Keep the memory registered meanwhile. Raises InferenceError if it is not any more."""


class Lessor(Protocol):
    """The owner of memory on GPUs: see brokers/leases.py. Both copies raise InferenceError."""

    async def fetch(self, region: GpuRegion, at: int, size: int, target: SharedRegion, offset: int) -> None:
        """Copy `size` bytes at `at` to a region in main memory."""

    async def copy(self, region: GpuRegion, at: int, size: int, target: GpuHandle, offset: int) -> None:
        """Copy `size` bytes at `at` to memory of a client on the same GPU."""

    def writer_ended(self, region: GpuRegion) -> None:
        """No copy from the region may come behind its event any more."""

    def unused(self, region: GpuRegion) -> None:
        """No process has the region open, and none will open it."""


class GpuRegion(_Counted):
    """`limit` bytes of memory on a GPU, which stubs open by its `handle`: see _Counted.

    `event` is the handle of the event behind the copies of the process that writes there, b"" for none. Other processes
    may have it open after the last `close`: the memory is unused when all of them have said that they closed it, or
    have ended. `loss` says why the memory is gone, "" while it is there. `client` is the memory of a client, or None.
    """

    def __init__(
        self,
        gpu: GpuProperties,
        handle: bytes,
        size: int,
        event: bytes,
        lessor: Lessor,
        client: GpuHandle | None = None,
    ) -> None:
        super().__init__()
        self.gpu = gpu
        self.handle = handle
        self.limit = size
        self.event = event
        self.loss = ""
        self.lessor = lessor
        self.client = client

    def close(self) -> None:
        """Drop a reference; the last one has all stubs close the memory."""
        self._counting -= 1
        if not self._counting:
            if not self.loss:
                self._revoke()
            self._look()

    def lose(self, reason: str) -> None:
        """The memory is gone: no stub may use it any longer."""
        self.loss = reason
        self._revoke()

    def writer_ended(self) -> None:
        """The process that wrote there has ended, and its event with it. Nobody may use that any longer."""
        self.event = b""
        self.lessor.writer_ended(self)
        for holder in list(self.holders):
            holder.writer_ended(self)

    def left(self, holder: Holder) -> None:
        """A stub has closed the memory, or has ended."""
        self.holders.discard(holder)
        self._look()

    def _revoke(self) -> None:
        for holder in list(self.holders):
            holder.revoke(self)

    def _look(self) -> None:
        if not self._counting and not self.holders:
            self.lessor.unused(self)


GrantedRegion = SharedRegion | ClientRegion | GpuRegion


_numbers = count(1)


def create_region(purpose: str) -> SharedRegion:
    """A new region of REGION_BYTES_MAX addresses and no memory yet but the flags. Raises OutOfMemoryError."""
    try:
        fd = os.memfd_create(f"pyruntime {purpose}"[:MEMFD_NAME_CHARS_MAX], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, REGION_BYTES_MAX)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            region = SharedRegion(fd)
        except BaseException:
            os.close(fd)
            raise
    except OSError as exc:
        raise OutOfMemoryError(f"shared memory for {purpose} cannot be made: {exc.strerror}") from exc
    try:
        region.commit(region.limit, FLAGS_BYTES)
    except BaseException:
        region.close()
        raise
    return region
