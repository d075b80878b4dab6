# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions have no name and a fixed size, and cost nothing until they are used."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os

import pytest

from pyruntime.runtime import regions
from pyruntime.runtime.regions import SEALS, create_region
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.regions import FLAGS_BYTES, REGION_BYTES_MAX
from tests.own_descriptors import own_descriptors

PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


@pytest.fixture
def region(new_region):
    return new_region()


class TestMade:
    def test_is_sparse(self, region):
        """A region has all its addresses and no memory but for the host's flags."""
        assert region.limit == REGION_BYTES_MAX - FLAGS_BYTES
        assert os.fstat(region.fileno()).st_blocks * 512 == FLAGS_BYTES
        region.commit(0, 4096)
        region.view[:5] = b"hello"
        assert os.fstat(region.fileno()).st_blocks * 512 == FLAGS_BYTES + 4096

    def test_leaves_nothing_behind(self, region):
        """A region is a memfd, which has no name in any file system, with its purpose in its label."""
        assert os.readlink(f"/proc/self/fd/{region.fileno()}") == "/memfd:pyruntime a test (deleted)"

    def test_is_not_inherited(self, region):
        """A process that the host starts gets a region only if it is handed over."""
        assert not os.get_inheritable(region.fileno())

    def test_of_a_model_with_a_long_name(self):
        """However long the name of a model is, it gets its memory."""
        create_region("requests to " + "m" * 255).close()

    @pytest.mark.parametrize("function", ["memfd_create", "ftruncate"])
    def test_cannot_be_had(self, monkeypatch, function):
        """Where a region cannot be made the error says for what, and no descriptor stays open."""

        def refuse(*args):
            raise OSError(errno.EMFILE, "Too many open files")

        before = own_descriptors()
        monkeypatch.setattr(os, function, refuse)
        with pytest.raises(OutOfMemoryError, match=r"^shared memory for a test cannot be made: Too many open files$"):
            create_region("a test")
        assert own_descriptors() == before


class TestSealed:
    """The host maps regions whole: in a smaller file, an access behind the end would be a bus error."""

    @pytest.mark.parametrize("size", [0, FLAGS_BYTES, REGION_BYTES_MAX - 1, REGION_BYTES_MAX + 1])
    def test_size_stays(self, region, size):
        """A region cannot be made smaller or larger by its descriptor."""
        with pytest.raises(PermissionError):
            os.ftruncate(region.fileno(), size)

    def test_does_not_grow_by_a_write(self, region):
        """A write behind the end is refused, and one across it is cut or refused."""
        with pytest.raises(OSError):
            os.pwrite(region.fileno(), b"ab", REGION_BYTES_MAX)
        with contextlib.suppress(OSError):
            assert os.pwrite(region.fileno(), b"ab", REGION_BYTES_MAX - 1) == 1
        assert os.fstat(region.fileno()).st_size == REGION_BYTES_MAX

    @pytest.mark.parametrize("seal", ["F_SEAL_WRITE", "F_SEAL_FUTURE_WRITE", "F_SEAL_SHRINK"])
    def test_takes_no_seal(self, region, seal):
        """A region takes no further seal: one against writing would keep other processes from mapping it."""
        number = getattr(fcntl, seal, 0x10)
        with pytest.raises(PermissionError):
            fcntl.fcntl(region.fileno(), fcntl.F_ADD_SEALS, number)
        assert fcntl.fcntl(region.fileno(), fcntl.F_GET_SEALS) == SEALS

    def test_by_all_descriptors(self, region):
        """The seals are those of the memory, not of the descriptor."""
        with open(f"/proc/self/fd/{region.fileno()}", "r+b", buffering=0) as other, pytest.raises(PermissionError):
            other.truncate(0)

    @pytest.mark.parametrize("at", ["slot", "flags"])
    def test_holes_are_zeros(self, region, at):
        """Pages that another process frees exist again, with zeros, when they are next used."""
        offset = 0 if at == "slot" else region.limit
        region.commit(offset, 4096)
        region.view[offset : offset + 5] = b"hello"
        punch_hole(region.fileno(), offset, 4096)
        assert bytes(region.view[offset : offset + 5]) == bytes(5)
        region.view[offset : offset + 5] = b"again"
        assert bytes(region.view[offset : offset + 5]) == b"again"

    def test_flags_in_a_hole(self, region):
        """The host sets and reads the flags in a page that a model has freed."""
        region.set_flag(7, 1)
        punch_hole(region.fileno(), region.limit, FLAGS_BYTES)
        assert region.flag(7) == 0
        region.set_flag(7, 1)
        assert region.flag(7) == 1

    def test_holes_by_madvise(self, region):
        """As by fallocate."""
        region.commit(0, 8192)
        region.view[4096:4101] = b"hello"
        with mmap.mmap(region.fileno(), 8192) as other:
            other.madvise(mmap.MADV_REMOVE)
        assert bytes(region.view[4096:4101]) == bytes(5)


def punch_hole(fd, offset, size):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    assert libc.fallocate(fd, PUNCH_HOLE, offset, size) == 0, os.strerror(ctypes.get_errno())


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
        """A region is closed when all its users have closed it, in any order."""
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
        """When it is closed at last, its holders unmap it."""
        region = create_region("a test")
        holders = [Holder(), Holder()]
        region.holders.update(holders)
        region.count_on()
        region.close()
        assert [holder.revoked for holder in holders] == [[], []]
        region.close()
        assert [holder.revoked for holder in holders] == [[region.number]] * 2

    def test_who_is_told_may_leave(self):
        """A holder may let go of the region when it is revoked."""
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
        before = own_descriptors()

        def commit(self, offset, size):
            raise OutOfMemoryError("no shared memory left")

        monkeypatch.setattr(regions.SharedRegion, "commit", commit)
        with pytest.raises(OutOfMemoryError):
            create_region("a test")
        assert own_descriptors() == before
