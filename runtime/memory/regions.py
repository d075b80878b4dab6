# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Makes shared-memory regions that leave nothing behind.

A region has no name once it exists: there is nothing to leak after a `kill -9`, and nothing for anybody else to open.
It is POSIX shared memory, unlinked at once, where /dev/shm has room to speak of; else a memfd, which is the same
memory without that limit (a container's /dev/shm is often 64 MiB).
"""

from __future__ import annotations

import os
from itertools import count
from typing import Protocol

import posix_ipc

from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.regions import FLAGS_BYTES, REGION_BYTES_MAX, Region

# With less than this free in /dev/shm a few large tensors would fill it.
SHM_FREE_BYTES_MIN = 1 << 30
# The kernel takes 249 bytes; a character of a model's name may be four.
MEMFD_NAME_CHARS_MAX = 60


class Holder(Protocol):
    """A stub that was given a region of somebody else."""

    def revoke(self, region: SharedRegion) -> None:
        """The region is closed: nothing refers to it any longer."""


class SharedRegion(Region):
    """A region of the host's, which any stub may be given. `number` is its own for as long as the host runs.

    It is closed when everybody who counts on it has closed it: its maker, and each who called `count_on` it.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.number = next(_numbers)
        self.holders: set[Holder] = set()
        self._counting = 1

    def count_on(self) -> None:
        """Keep the region open until one more `close`."""
        self._counting += 1

    def close(self) -> None:
        """Close the region, unless somebody else counts on it."""
        self._counting -= 1
        if self._counting:
            return
        for holder in list(self.holders):
            holder.revoke(self)
        super().close()


_numbers = count(1)


def create_region(purpose: str) -> SharedRegion:
    """A new region of REGION_BYTES_MAX addresses and no memory yet but the flags. Raises OutOfMemoryError."""
    try:
        fd = _posix_fd() if _shm_free_bytes() >= SHM_FREE_BYTES_MIN else _memfd(purpose)
        try:
            os.ftruncate(fd, REGION_BYTES_MAX)
            region = SharedRegion(fd)
        except BaseException:
            os.close(fd)
            raise
        try:
            region.commit(region.limit, FLAGS_BYTES)
        except BaseException:
            region.close()
            raise
        return region
    except (OSError, posix_ipc.Error) as exc:
        raise OutOfMemoryError(f"shared memory for {purpose} cannot be made: {_reason(exc)}") from exc


def _reason(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def _posix_fd() -> int:
    memory = posix_ipc.SharedMemory(None, posix_ipc.O_CREX)
    memory.unlink()
    fd: int = memory.fd
    return fd


def _memfd(purpose: str) -> int:
    return os.memfd_create(f"pyruntime {purpose}"[:MEMFD_NAME_CHARS_MAX])


def _shm_free_bytes() -> int:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return shm.f_bavail * shm.f_frsize
