# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions over real shared memory."""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import sys
import weakref

import pytest

from pyruntime.utils import regions
from pyruntime.utils.arena import Arena
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.regions import FLAGS_BYTES, Region

SIZE = 1 << 30
MIB = 1 << 20
# Of linux/fs.h.
FS_IOC_SETFLAGS = 0x40086602
FS_IMMUTABLE_FL = 0x10


def memory(size=SIZE):
    fd = os.memfd_create("a test")
    os.ftruncate(fd, size)
    return fd


@pytest.fixture
def region():
    made = Region(memory())
    yield made
    with contextlib.suppress(OSError):  # closed by the test
        made.close()


def used(region):
    return os.fstat(region.fileno()).st_blocks * 512


def full(errno_):
    def posix_fallocate(fd, offset, size):
        raise OSError(errno_, os.strerror(errno_))

    return posix_fallocate


def test_is_sparse(region):
    """A region is as large as its descriptor says, and uses no memory until it is committed."""
    assert region.limit == SIZE - FLAGS_BYTES
    assert len(region.view) == SIZE
    assert used(region) == 0


def test_descriptors():
    """A region holds its descriptor, and before Python 3.13 another one for the mapping; none when it is closed."""
    before = len(os.listdir("/proc/self/fd"))
    made = Region(memory())
    assert len(os.listdir("/proc/self/fd")) - before == (1 if sys.version_info >= (3, 13) else 2)
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_commit_makes_memory(region):
    """Committed bytes exist, and only those."""
    region.commit(0, MIB)
    assert used(region) == MIB
    region.commit(10 * MIB, MIB)
    assert used(region) == 2 * MIB


def test_commit_again_changes_nothing(region):
    """Committing memory that is committed already keeps its contents."""
    region.commit(0, MIB)
    region.view[5] = 7
    region.commit(0, MIB)
    assert used(region) == MIB
    assert region.view[5] == 7


def test_decommit_gives_pages_back(region):
    """The kernel has its pages again; the bytes read as zeros."""
    region.commit(0, 4 * MIB)
    region.view[MIB : MIB + 3] = b"abc"
    region.view[:3] = b"xyz"
    region.decommit(MIB, 2 * MIB)
    assert used(region) == 2 * MIB
    assert bytes(region.view[MIB : MIB + 3]) == b"\0\0\0"
    assert bytes(region.view[:3]) == b"xyz"
    region.commit(MIB, 2 * MIB)
    assert used(region) == 4 * MIB


def test_two_mappings_share_memory(region):
    """Each of two mappings of a region shows what was written through the other."""
    other = Region(os.dup(region.fileno()))
    region.commit(0, 4096)
    region.view[:5] = b"hello"
    assert bytes(other.map[:5]) == b"hello"
    other.close()


def test_serves_an_arena(region):
    """Slots of an arena are memory to write to; what goes cold costs nothing."""
    arena = Arena(region, MIB, keep_bytes=0)
    offset = arena.allocate(4 * MIB)
    region.view[offset : offset + 4] = b"data"
    assert used(region) == 4 * MIB
    arena.free(offset)
    assert used(region) == 0


def test_commit_that_would_exhaust_the_memory(region, monkeypatch):
    """Where too little memory is left no page is allocated, because the kernel would kill a process."""

    def refuse(size):
        raise OutOfMemoryError(f"no shared memory left for {size} bytes")

    monkeypatch.setattr(regions, "check_memory_left", refuse)
    with pytest.raises(OutOfMemoryError, match=r"^no shared memory left for 4096 bytes$"):
        region.commit(0, 4096)
    assert used(region) == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EPERM])
def test_full(region, monkeypatch, code):
    """Where the kernel has no memory an error says how much was asked for."""
    monkeypatch.setattr(os, "posix_fallocate", full(code))
    with pytest.raises(OutOfMemoryError, match=r"^no shared memory left for 4096 bytes"):
        region.commit(0, 4096)


def test_that_is_immutable():
    """A privileged model can set attributes of a region: then it neither grows nor shrinks, which is no bug of ours."""
    region = Region(memory())
    region.commit(0, MIB)
    try:
        fcntl.ioctl(region.fileno(), FS_IOC_SETFLAGS, struct.pack("l", FS_IMMUTABLE_FL))
    except OSError as error:
        region.close()
        pytest.skip(f"no attributes of shared memory: {error}")
    with pytest.raises(OutOfMemoryError, match=r"^no shared memory left for 4096 bytes: Operation not permitted$"):
        region.commit(MIB, 4096)
    region.decommit(0, MIB)
    assert used(region) == MIB
    region.view[:5] = b"hello"
    region.close()


def test_other_errors_are_not_about_memory(region, monkeypatch):
    """An error of another kind is a bug, and is raised unchanged."""
    monkeypatch.setattr(os, "posix_fallocate", full(errno.EBADF))
    with pytest.raises(OSError) as caught:
        region.commit(0, 4096)
    assert caught.value.errno == errno.EBADF


def test_close(region):
    """A closed region has no descriptor and no mapping."""
    fd, mapping = region.fileno(), region.map
    region.close()
    with pytest.raises(OSError):
        os.fstat(fd)
    assert mapping.closed


def test_close_while_somebody_looks(region):
    """A view that is still in use stays valid, and keeps the mapping until it goes."""
    region.commit(0, 4096)
    region.view[:3] = b"abc"
    look = region.view[:3]
    mapping = weakref.ref(region.map)
    region.close()
    assert bytes(look) == b"abc"
    assert mapping() is not None
    look.release()
    assert mapping() is None


def test_nothing_to_map():
    """A descriptor of no size is refused."""
    fd = os.memfd_create("empty")
    with pytest.raises((ValueError, OSError)):
        Region(fd)
    os.close(fd)


def test_maps_shared_and_writable(region):
    """Memory behind a region is mapped read-write."""
    assert isinstance(region.map, mmap.mmap)
    assert not region.view.readonly


class TestFlags:
    """The last page belongs to the host, whichever process allocates the pages before it."""

    @pytest.fixture
    def pair(self, region):
        """The same region, as the host and as a stub map it."""
        region.commit(region.limit, FLAGS_BYTES)
        other = Region(os.dup(region.fileno()))
        yield region, other
        other.close()

    def test_are_not_set(self, pair):
        """To begin with nothing is."""
        _, stub = pair
        assert not any(stub.flag(serial) for serial in range(FLAGS_BYTES))

    def test_set_and_cleared(self, pair):
        """A flag that the host sets is visible to the stub, and setting it changes no other flag."""
        host, stub = pair
        for serial in (0, 1, FLAGS_BYTES - 1):
            host.set_flag(serial, 1)
            assert [each for each in range(FLAGS_BYTES) if stub.flag(each)] == [serial]
            host.set_flag(serial, 0)
            assert not stub.flag(serial)

    def test_are_shared(self, pair):
        """There are more serials than flags."""
        host, stub = pair
        host.set_flag(5 + 7 * FLAGS_BYTES, 1)
        assert stub.flag(5)
        assert stub.flag(5 + FLAGS_BYTES)

    def test_are_out_of_an_arenas_reach(self, region):
        """The memory that an arena can allocate ends where the flags begin."""
        arena = Arena(region, SIZE)
        with pytest.raises(OutOfMemoryError):
            arena.allocate(SIZE - FLAGS_BYTES + 1)
        assert region.limit % mmap.PAGESIZE == 0
