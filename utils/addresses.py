# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where a tensor lies, as one number. (pure)

    address := region << OFFSET_BITS | offset

A region's number is given by the host and never used again. Number 0 is the region that goes without saying: see
utils/messages.py.
"""

from __future__ import annotations

from typing import Tuple

# As many as an offset in a region of REGION_BYTES_MAX needs.
OFFSET_BITS = 36
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


def address(region: int, offset: int) -> int:
    """The address of byte `offset` of region number `region`."""
    return region << OFFSET_BITS | offset


def split(address: int) -> Tuple[int, int]:
    """The region's number, and the offset in it."""
    return address >> OFFSET_BITS, address & _OFFSET_MASK
