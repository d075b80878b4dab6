# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An address is a region's number and an offset in it, and nothing is lost on the way."""

from hypothesis import given
from hypothesis import strategies as st

from pyruntime.utils.addresses import OFFSET_BITS, address, split
from pyruntime.utils.regions import REGION_BYTES_MAX


@given(st.integers(0, 2**27), st.integers(0, REGION_BYTES_MAX - 1))
def test_there_and_back(region, offset):
    """Both parts come out as they went in."""
    assert split(address(region, offset)) == (region, offset)


def test_region_zero():
    """In the region that goes without saying an address is an offset."""
    assert address(0, 4096) == 4096


def test_every_offset_fits():
    """The last byte of a region is not the first of another; and what msgpack holds is enough for all numbers."""
    assert REGION_BYTES_MAX <= 1 << OFFSET_BITS
    assert address(2**27 - 1, REGION_BYTES_MAX - 1) < 2**63


def test_order():
    """Addresses in a region are higher than all addresses in the region before it."""
    assert address(0, REGION_BYTES_MAX - 1) < address(1, 0)


@given(st.integers(-(2**63), -1))
def test_negative(number):
    """A negative number is in no region that there is."""
    assert split(number)[0] < 0
