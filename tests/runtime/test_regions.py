# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions have no name, are of the kind that has room, and cost nothing until they are used."""

import errno
import os

import posix_ipc
import pytest

from pyruntime.runtime import regions
from pyruntime.runtime.regions import SHM_FREE_BYTES_MIN, create_region
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


class Holder:
    """A stub that was given a region."""

    def __init__(self):
        self.revoked = []

    def revoke(self, region):
        assert region.fileno() >= 0
        self.revoked.append(region.number)


class TestShared:
    def test_numbers(self):
        """Each region has a number of its own, which no other ever gets; none is 0."""
        made = [create_region("a test") for _ in range(3)]
        numbers = [region.number for region in made]
        for region in made:
            region.close()
        last = create_region("a test")
        assert len({0, last.number, *numbers}) == 5
        last.close()

    def test_is_open_while_somebody_counts_on_it(self):
        """A region is closed when all who count on it have closed it, in whatever order."""
        region = create_region("a test")
        region.count_on()
        region.count_on()
        region.close()
        region.close()
        assert region.fileno() >= 0
        region.view[0:0] = b""
        region.close()
        assert region.fileno() < 0

    def test_those_who_hold_it_are_told(self):
        """When it is closed at last, those who map it learn that nothing will refer to it."""
        region = create_region("a test")
        holders = [Holder(), Holder()]
        region.holders.update(holders)
        region.count_on()
        region.close()
        assert [holder.revoked for holder in holders] == [[], []]
        region.close()
        assert [holder.revoked for holder in holders] == [[region.number]] * 2

    def test_who_is_told_may_leave(self):
        """Who is told may let go of it at that moment."""
        region = create_region("a test")

        class Leaving(Holder):
            def revoke(self, region):
                super().revoke(region)
                region.holders.discard(self)

        holders = [Leaving(), Leaving()]
        region.holders.update(holders)
        region.close()
        assert [holder.revoked for holder in holders] == [[region.number]] * 2

    def test_that_is_given_up_half_made(self, monkeypatch):
        """Where there is no memory for the flags there is no region, and no descriptor left."""
        before = len(os.listdir("/proc/self/fd"))

        def commit(self, offset, size):
            raise OutOfMemoryError("no shared memory left")

        monkeypatch.setattr(regions.SharedRegion, "commit", commit)
        with pytest.raises(OutOfMemoryError):
            create_region("a test")
        assert len(os.listdir("/proc/self/fd")) == before
