# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The memory that a stub reads: its own request region, and other models' as far as the host grants them."""

import gc
import os
import socket
import threading
import weakref

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pyruntime.stub.memory import Copied, Held, Regions, is_large
from pyruntime.utils.addresses import address, split
from pyruntime.utils.arena import LARGE_BYTES, PAGE_BYTES
from pyruntime.utils.errors import LocalError
from tests.own_descriptors import own_descriptors
from tests.patience import PATIENCE_S

LARGE = np.arange(LARGE_BYTES, dtype=np.uint32).astype(np.uint8)


class Hold:
    """Stands for what keeps a response's memory."""


def array_of(source, at, size):
    buffer, offset = source.buffer(at, size)
    return np.ndarray((size,), np.uint8, buffer, offset)


def put(region, offset, contents):
    region.view[offset : offset + len(contents)] = contents.tobytes()


class TestOwnRegion:
    def test_is_shared(self, regions):
        """The model's request region is read, and written, in place."""
        put(regions.requests, 100, LARGE[:10])
        array = array_of(regions, 100, 10)
        assert_array_equal(array, LARGE[:10])
        array[0] = 77
        assert regions.requests.view[100] == 77

    def test_to_the_end(self, regions):
        """A tensor without contents may lie at the very end."""
        assert array_of(regions, regions.requests.limit, 0).size == 0

    def test_read(self, regions):
        """A copy is a copy, under either of its numbers."""
        put(regions.requests, 64, LARGE[:10])
        assert regions.read(64, 10) == regions.read(address(regions.requests.number, 64), 10) == LARGE[:10].tobytes()

    def test_under_its_number(self, regions, granting):
        """A request may refer to the region by the number that everybody knows it by: nothing has to come for that."""
        put(regions.requests, 4096, LARGE)
        array = array_of(regions, address(regions.requests.number, 4096), len(LARGE))
        assert_array_equal(array, LARGE)


class TestInline:
    def test_buffer(self, regions):
        """Contents that came within the message are copied into an array that the model may write to."""
        contents = bytes(range(10))
        array = array_of(regions, contents, 10)
        array[0] = 77
        assert contents[0] == 0
        assert regions.read(contents, 10) == contents


class TestOtherRegion:
    @pytest.mark.parametrize("offset", [0, 64, PAGE_BYTES, PAGE_BYTES + 192])
    def test_large_tensor_is_mapped(self, regions, granting, other_region, offset):
        """A large tensor at any offset is mapped, and copied only by writes."""
        put(other_region, offset, LARGE)
        granting(other_region)
        array = array_of(regions, address(other_region.number, offset), len(LARGE))
        assert_array_equal(array, LARGE)
        other_region.view[offset] = 99
        assert array[0] == 99  # it is the memory itself

    def test_writes_are_private(self, regions, granting, other_region):
        """Writes of a model to its input are visible neither to the caller nor to other readers of the tensor."""
        put(other_region, 64, LARGE)
        granting(other_region)
        at = address(other_region.number, 64)
        first, second = array_of(regions, at, len(LARGE)), array_of(regions, at, len(LARGE))
        first[:] = 7
        assert_array_equal(second, LARGE)
        assert bytes(other_region.view[64 : 64 + len(LARGE)]) == LARGE.tobytes()
        assert (first == 7).all()

    def test_small_tensor_is_copied(self, regions, granting, other_region):
        """A small one is not worth a mapping."""
        put(other_region, 64, LARGE[:8])
        granting(other_region)
        array = array_of(regions, address(other_region.number, 64), 8)
        other_region.view[64] = 99
        assert_array_equal(array, LARGE[:8])
        array[:] = 7
        assert other_region.view[65] == LARGE[1]

    def test_several_that_come_in_any_order(self, regions, granting, new_region):
        """Regions are found in any order among those that were granted."""
        others = [new_region(4096) for _ in range(3)]
        for number, other in enumerate(others):
            other.view[0] = number
        granting(*others)
        for number in (2, 0, 1):
            assert regions.read(address(others[number].number, 0), 1) == bytes([number])

    def test_that_is_never_granted(self, regions, granting, other_region):
        """A region that is never granted is an error instead of an endless wait."""
        granting.theirs.setblocking(True)
        granting.ours.close()
        with pytest.raises(LocalError, match="did not come"):
            regions.read(address(other_region.number, 0), 1)

    def test_with_more_descriptors_than_one(self, regions, granting, other_region):
        """A region has one descriptor; what else comes is closed."""
        before = own_descriptors()
        extra = os.memfd_create("extra")
        socket.send_fds(granting.ours, [other_region.number.to_bytes(8, "little")], [other_region.fileno(), extra])
        os.close(extra)
        other_region.view[0] = 5
        assert regions.read(address(other_region.number, 0), 1) == b"\5"
        regions.unmap(other_region.number)
        assert own_descriptors() == before

    def test_from_many_threads(self, regions, granting, new_region):
        """Threads that meet the same regions for the first time all get them."""
        others = [new_region(4096) for _ in range(4)]
        for number, other in enumerate(others):
            other.view[0] = number
        wrong = []

        def read(order):
            for number in order:
                if regions.read(address(others[number].number, 0), 1) != bytes([number]):
                    wrong.append(number)

        threads = [threading.Thread(target=read, args=(order,)) for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2])]
        for thread in threads:
            thread.start()
        granting(*others)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert wrong == []


class TestHeld:
    def test_is_shared(self, regions, granting, other_region):
        """A response was written for this model alone: it is mapped as it is, and may be changed and passed on."""
        put(other_region, 64, LARGE)
        granting(other_region)
        array = array_of(Held(regions, Hold()), address(other_region.number, 64), len(LARGE))
        array[0] = 99
        assert other_region.view[64] == 99

    def test_keeps_its_hold(self, regions, granting, other_region):
        """The memory is held for as long as any array looks into it, and no longer."""
        granting(other_region)
        hold = Hold()
        held = weakref.ref(hold)
        array = array_of(Held(regions, hold), address(other_region.number, 64), len(LARGE))
        view = array[10:20].reshape(2, 5)
        del hold, array
        gc.collect()
        assert held() is not None
        del view
        gc.collect()
        assert held() is None

    def test_read(self, regions, granting, other_region):
        """A BYTES tensor is read as a copy."""
        put(other_region, 64, LARGE)
        granting(other_region)
        source = Held(regions, Hold())
        assert source.read(address(other_region.number, 64), len(LARGE)) == LARGE.tobytes()


class TestCopied:
    def test_each_time_anew(self):
        """Copied contents can be read again: writes to an array do not change them."""
        source = Copied(b"contents")
        array = array_of(source, 0, 8)
        array[0] = 0
        assert source.read(0, 8) == b"contents"
        assert bytes(array_of(source, 0, 8)) == b"contents"


def test_is_large():
    """Where a mapping pays."""
    assert not is_large(LARGE_BYTES - 1)
    assert is_large(LARGE_BYTES)


class TestLocate:
    def test_in_the_own_region(self, regions):
        """Contents in the request region can be referred to by their address."""
        array = array_of(regions, 4096, 1000)
        number = regions.requests.number
        assert regions.locate(array) == address(number, 4096)
        assert regions.locate(array[100:200]) == address(number, 4196)
        assert regions.locate(array[8:].view(np.float64)) == address(number, 4104)
        assert regions.locate(array.reshape(10, 100)[3]) == address(number, 4396)

    def test_in_a_response_that_is_held(self, regions, granting, other_region):
        """Contents in a held response of another model can be referred to by their address."""
        granting(other_region)
        at = address(other_region.number, PAGE_BYTES + 192)
        array = array_of(Held(regions, Hold()), at, len(LARGE))
        assert regions.locate(array) == at
        assert regions.locate(array[1000:]) == at + 1000
        assert split(regions.locate(array)) == (other_region.number, PAGE_BYTES + 192)

    def test_not_in_a_private_mapping(self, regions, granting, other_region):
        """An array in a private mapping has no address: the model may have changed its contents."""
        granting(other_region)
        array = array_of(regions, address(other_region.number, 0), len(LARGE))
        assert regions.locate(array) is None

    def test_not_elsewhere(self, regions):
        """Arrays of the model's own have no address."""
        assert regions.locate(LARGE) is None
        assert regions.locate(LARGE[100:]) is None
        assert regions.locate(np.frombuffer(bytes(100), np.uint8)) is None
        assert regions.locate(array_of(Copied(bytes(100)), 0, 100)) is None

    def test_not_out_of_order(self, regions):
        """An array whose elements are not contiguous has no address."""
        array = array_of(regions, 0, 1000).reshape(10, 100)
        assert regions.locate(array.T) is None
        assert regions.locate(array[::2]) is None
        assert regions.locate(array[:, :50]) is None
        assert regions.locate(array[2:4]) == address(regions.requests.number, 200)

    def test_before_it_has_a_number(self, granting, new_region):
        """A stub that loads nothing yet knows its own region as 0."""
        made = Regions(new_region(), granting.theirs)
        assert made.locate(array_of(made, 64, 8)) == 64


class TestUnmap:
    def test_frees_everything(self, regions, granting, other_region):
        """A region that nothing refers to any longer costs nothing."""
        granting(other_region)
        before = own_descriptors()
        regions.read(address(other_region.number, 0), 1)
        assert own_descriptors() > before
        regions.unmap(other_region.number)
        assert own_descriptors() == before

    def test_while_somebody_looks(self, regions, granting, other_region):
        """Unmapping a region keeps the mapping that an array uses."""
        put(other_region, 64, LARGE)
        granting(other_region)
        array = array_of(Held(regions, Hold()), address(other_region.number, 64), len(LARGE))
        regions.unmap(other_region.number)
        assert_array_equal(array, LARGE)
        array[0] = 7
        assert other_region.view[64] == 7

    def test_what_was_never_looked_at(self, regions, granting, other_region, new_region):
        """A region that was granted in vain is not kept when it is met at last."""
        last = new_region(4096)
        granting(other_region)
        regions.unmap(other_region.number)
        granting(last)
        before = own_descriptors()
        regions.read(address(last.number, 0), 1)
        regions.unmap(last.number)
        assert own_descriptors() == before
        assert other_region.number not in regions._regions
