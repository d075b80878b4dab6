# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The shared memory that a stub reads: its model's request region, and regions of other models that BLS leads to.

Tensors between models are not copied on the way: what arrives is an address, and the region that it is in is mapped
when it is first met. Its descriptor came over the grants socket before.

Of another region, a large tensor gets a mapping of its own, and a small one is worth a copy. An input's mapping is
private to this process: the model may write to it, as it may to any input, and whoever else reads the same memory does
not see that. A response of another model was written for this process alone, so it is shared, and can be passed on.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from array import array
from typing import Any, Dict, Optional, Tuple

import numpy as np

from pyruntime.utils.addresses import address, split
from pyruntime.utils.arena import LARGE_BYTES, PAGE_BYTES
from pyruntime.utils.errors import LocalError
from pyruntime.utils.regions import Region

_NUMBER = struct.Struct("<Q")


class HeldMap(mmap.mmap):
    """A tensor's own mapping. `hold` lives for as long as any array looks into it; `pointer` is where `address` is."""

    hold: Any
    address: int
    pointer: int
    shared: bool


class Source:
    """Where a tensor's contents are found when somebody asks for them."""

    __slots__ = ()

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """What an array over `size` bytes at an address is made of, writable, and where it begins in that."""
        raise NotImplementedError

    def read(self, at: Any, size: int) -> bytes:
        """A copy of `size` bytes at an address."""
        raise NotImplementedError


class Regions(Source):
    """Every region that this process has mapped, by its number; 0 is the model's request region."""

    def __init__(self, requests: Region, grants: socket.socket) -> None:
        self.requests = requests
        self._grants = grants
        self._regions: Dict[int, Region] = {0: requests}
        self._number = 0
        self._own_end = requests.limit
        self._pointer = _pointer(requests.map)
        self._lock = threading.Lock()

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """See Source; for a request's tensors."""
        if type(at) is bytes:
            return bytearray(at), 0
        if at <= self._own_end:
            return self.requests.map, at
        if is_large(size):
            return self.map(at, size, None, shared=False), at % PAGE_BYTES
        return bytearray(self.read(at, size)), 0

    def set_number(self, number: int) -> None:
        """The number that everybody else knows the request region by."""
        self._number = number
        self._regions[number] = self.requests

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        if type(at) is bytes:
            return at
        number, offset = split(at)
        return self._region(number).map[offset : offset + size]

    def map(self, at: int, size: int, hold: Any, shared: bool) -> HeldMap:
        """`size` bytes at an address, mapped for one tensor. They begin at `at` modulo the size of a page."""
        number, offset = split(at)
        start = offset // PAGE_BYTES * PAGE_BYTES
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        fd = self._region(number).fileno()
        mapped = HeldMap(fd, offset - start + size, flags, mmap.PROT_READ | mmap.PROT_WRITE, offset=start)
        mapped.hold = hold
        mapped.shared = shared
        mapped.address = address(number, start)
        mapped.pointer = _pointer(mapped)
        return mapped

    def locate(self, contents: Any) -> Optional[int]:
        """The address of an array's contents, if they lie in order in a region that other processes can map."""
        if not contents.flags.c_contiguous:
            return None
        base = contents
        while isinstance(base, np.ndarray):
            base = base.base
        pointer: int = contents.__array_interface__["data"][0]
        if base is self.requests.map:
            return address(self._number, pointer - self._pointer)
        if type(base) is HeldMap and base.shared:
            return base.address + pointer - base.pointer
        return None

    def unmap(self, number: int) -> None:
        """Nothing will refer to this region any longer. What still looks into it goes on to."""
        with self._lock:
            while number not in self._regions:  # nobody has read of it, so nobody has taken it from the socket
                self._receive()
            region = self._regions.pop(number)
        region.close()

    def _region(self, number: int) -> Region:
        region = self._regions.get(number)
        if region is None:
            with self._lock:
                while number not in self._regions:
                    self._receive()
                region = self._regions[number]
        return region

    def _receive(self) -> None:
        """Take the next region from the grants socket: the host sends it before it speaks of it."""
        fds = array("i")
        data, ancillary, _, _ = self._grants.recvmsg(_NUMBER.size, socket.CMSG_LEN(fds.itemsize))
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
        if len(data) != _NUMBER.size or not fds:
            raise LocalError("a region was referred to and did not come")
        for extra in fds[1:]:
            os.close(extra)
        self._regions[_NUMBER.unpack(data)[0]] = Region(fds[0])


class Held(Source):
    """Where a large tensor of another model's response lies."""

    __slots__ = ("_hold", "_regions")

    def __init__(self, regions: Regions, hold: Any) -> None:
        self._regions = regions
        self._hold = hold

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """See Source."""
        return self._regions.map(at, size, self._hold, shared=True), at % PAGE_BYTES

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        return self._regions.read(at, size)


class Copied(Source):
    """A copy of a small tensor, in the place of the region that it came from."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """See Source."""
        return bytearray(self._data), 0

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        return self._data


def is_large(size: int) -> bool:
    """Whether a tensor of this size in another model's region is worth a mapping instead of a copy."""
    return size >= LARGE_BYTES


def _pointer(mapped: mmap.mmap) -> int:
    return int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
