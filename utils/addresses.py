# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes the place of a tensor in shared memory as one number. (pure)

    address := region << OFFSET_BITS | offset

The host assigns the numbers of regions, and never reuses one. Number 0 is the default region of a message: see
utils/messages.py.
"""

from __future__ import annotations

from typing import Tuple

# The bits of an offset in a region of REGION_BYTES_MAX.
OFFSET_BITS = 36
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


def address(region: int, offset: int) -> int:
    """The address of byte `offset` of region number `region`."""
    return region << OFFSET_BITS | offset


def split(address: int) -> Tuple[int, int]:
    """The region's number, and the offset in it."""
    return address >> OFFSET_BITS, address & _OFFSET_MASK
