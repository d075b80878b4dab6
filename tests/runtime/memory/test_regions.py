# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions have no name, are of the kind that has room, and cost nothing until they are used."""

import errno
import os

import posix_ipc
import pytest

from pyruntime.runtime.memory import regions
from pyruntime.runtime.memory.regions import SHM_FREE_BYTES_MIN, create_region
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.regions import FLAGS_BYTES, REGION_BYTES_MAX


class Statvfs:
    f_frsize = 4096

    def __init__(self, free_bytes):
        self.f_bavail = free_bytes // self.f_frsize


def room(monkeypatch, free_bytes):
    """/dev/shm has this much left."""
    monkeypatch.setattr(os, "statvfs", lambda path: Statvfs(free_bytes))


def target(region):
    return os.readlink(f"/proc/self/fd/{region.fileno()}")


@pytest.mark.parametrize("free_bytes", [SHM_FREE_BYTES_MIN, 0], ids=["shm", "memfd"])
class TestEitherKind:
    def test_is_sparse(self, monkeypatch, free_bytes):
        """A region has all its addresses and no memory but for the host's flags."""
        room(monkeypatch, free_bytes)
        region = create_region("a test")
        assert region.limit == REGION_BYTES_MAX - FLAGS_BYTES
        assert os.fstat(region.fileno()).st_blocks * 512 == FLAGS_BYTES
        region.commit(0, 4096)
        region.view[:5] = b"hello"
        assert os.fstat(region.fileno()).st_blocks * 512 == FLAGS_BYTES + 4096
        region.close()

    def test_leaves_nothing_behind(self, monkeypatch, free_bytes):
        """A region has no name while it lives."""
        room(monkeypatch, free_bytes)
        before = sorted(os.listdir("/dev/shm"))
        region = create_region("a test")
        assert sorted(os.listdir("/dev/shm")) == before
        assert "deleted" in target(region)
        region.close()

    def test_cannot_be_had(self, monkeypatch, free_bytes):
        """Where a region cannot be made the error says for what."""
        room(monkeypatch, free_bytes)

        def ftruncate(fd, size):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "ftruncate", ftruncate)
        with pytest.raises(
            OutOfMemoryError, match=r"^shared memory for a test cannot be made: No space left on device$"
        ):
            create_region("a test")

    def test_leaks_no_descriptor(self, monkeypatch, free_bytes):
        """A region that could not be made leaves no descriptor open."""
        room(monkeypatch, free_bytes)
        monkeypatch.setattr(regions, "REGION_BYTES_MAX", -1)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OutOfMemoryError):
            create_region("a test")
        assert len(os.listdir("/proc/self/fd")) == before


class TestKind:
    def test_of_posix_where_there_is_room(self, monkeypatch):
        """With room in /dev/shm it is POSIX shared memory."""
        room(monkeypatch, SHM_FREE_BYTES_MIN)
        region = create_region("a test")
        assert target(region).startswith("/dev/shm/")
        region.close()

    def test_of_memfd_where_there_is_little(self, monkeypatch):
        """Else it is a memfd, which says what it is for."""
        room(monkeypatch, SHM_FREE_BYTES_MIN - 4096)
        region = create_region("requests to m")
        assert target(region) == "/memfd:pyruntime requests to m (deleted)"
        region.close()

    def test_without_dev_shm(self, monkeypatch):
        """A machine without /dev/shm is served by a memfd."""

        def statvfs(path):
            raise FileNotFoundError(path)

        monkeypatch.setattr(os, "statvfs", statvfs)
        region = create_region("a test")
        assert target(region).startswith("/memfd:")
        region.close()

    def test_of_a_model_with_a_long_name(self, monkeypatch):
        """However long the name of a model is, it gets its memory."""
        room(monkeypatch, 0)
        region = create_region("requests to " + "m" * 255)
        region.close()

    def test_posix_that_fails(self, monkeypatch):
        """POSIX shared memory that may not be made is an error like any other."""
        room(monkeypatch, SHM_FREE_BYTES_MIN)

        def refuse(name, flags):
            raise posix_ipc.PermissionsError("no permission")

        monkeypatch.setattr(posix_ipc, "SharedMemory", refuse)
        with pytest.raises(OutOfMemoryError, match=r"^shared memory for a test cannot be made: "):
            create_region("a test")
