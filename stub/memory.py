# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The shared memory that a stub reads: its model's request region, and regions of other models and of clients.

Tensors between models, and those in a client's memory, are not copied on the way: what arrives is an address, and the
descriptor of the region that it is in came over the grants socket before.

Of another region, a large tensor gets a mapping of its own, and a small one is worth a copy. An input's mapping is
private to this process: the model may write to it, as it may to any input, and whoever else reads the same memory does
not see that. A response of another model was written for this process alone, so it is shared, and can be passed on.

Clients may shrink their objects, and a look behind the end of one is a bus error. Everything here that is not the look
of a model into its mapping is a system call, which ends with an error instead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import threading
from array import array
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from pyruntime.utils.addresses import address, split
from pyruntime.utils.arena import LARGE_BYTES, PAGE_BYTES
from pyruntime.utils.errors import LocalError
from pyruntime.utils.regions import Region

_NUMBER = struct.Struct("<Q")
# What the module mmap does not have: it cannot map to where something is mapped already.
_MAP_POPULATE = 0x8000
_MREMAP_MAYMOVE = 1
_MREMAP_FIXED = 2
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None)
_mmap, _mremap = _libc.mmap, _libc.mremap
_mmap.restype = _mremap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
# What the kernel counts memory in.
_BLOCK_BYTES = 512
_SHRUNK = "a region of shared memory is smaller than it was when it was registered"


class HeldMap(mmap.mmap):
    """A tensor's own mapping. `hold` lives for as long as any array looks into it; `pointer` is where `address` is."""

    hold: Any
    address: int
    pointer: int
    shared: bool

    def detach(self) -> None:
        """Put a copy in the place of the region's pages, under the arrays that look into it. Raises MemoryError.

        What another thread writes there at this very moment may get lost.
        """
        size = len(self)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_POPULATE
        copy = _mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if copy == _MAP_FAILED:
            raise MemoryError(f"there is no memory for a copy of {size} bytes")
        ctypes.memmove(copy, self.pointer, size)
        if _mremap(copy, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, self.pointer) == _MAP_FAILED:
            raise MemoryError(f"a copy of {size} bytes cannot take the place of a mapping")


class Source:
    """Where a tensor's contents are found when somebody asks for them."""

    __slots__ = ()

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """What an array over `size` bytes at an address is made of, writable, and where it begins in that."""
        raise NotImplementedError

    def read(self, at: Any, size: int) -> bytes:
        """A copy of `size` bytes at an address."""
        raise NotImplementedError


class Granted:
    """A region of somebody else's: owns its descriptor. The kernel reads and writes 2 GiB at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # What large contents are written through: pages that are mapped already cost nothing.
        self._map: Optional[mmap.mmap] = None

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """A copy of `size` bytes. Raises LocalError if there are fewer."""
        parts = []
        while size:
            part = os.pread(self._fd, size, offset)
            if not part:
                raise LocalError(_SHRUNK)
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, contents: Any, size: int) -> None:
        """Write an array or bytes, within what the region has.

        Raises LocalError if that is less, or there is no memory for it.
        """
        status = os.fstat(self._fd)
        if status.st_size < offset + size:  # it would grow, or be no memory at all
            raise LocalError(_SHRUNK)
        try:
            if not is_large(size) or type(contents) is bytes:
                self._write_bytes(offset, memoryview(contents if type(contents) is bytes else contents.tobytes()))
                return
            if status.st_blocks * _BLOCK_BYTES < status.st_size:
                os.posix_fallocate(self._fd, offset, size)  # a store to a page that cannot be had is a bus error
        except OSError as exc:
            raise LocalError(f"shared memory cannot be written: {exc.strerror}") from exc
        mapped = self._map
        if mapped is None or len(mapped) < offset + size:
            mapped = self._map = mmap.mmap(self._fd, status.st_size)
        np.ndarray(contents.shape, contents.dtype, mapped, offset)[...] = contents

    def _write_bytes(self, offset: int, contents: memoryview) -> None:
        while contents:
            count = os.pwrite(self._fd, contents, offset)
            offset, contents = offset + count, contents[count:]

    def close(self) -> None:
        """Close the descriptor. Mappings of tensors stay."""
        self._map = None
        os.close(self._fd)


class Regions(Source):
    """Every region that this process knows, by its number; 0 is the model's request region."""

    def __init__(self, requests: Region, grants: socket.socket) -> None:
        self.requests = requests
        self._grants = grants
        self._regions: Dict[int, Union[Region, Granted]] = {0: requests}
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
        return self._region(number).read(offset, size)

    def write(self, at: int, contents: Any, size: int) -> None:
        """Write an array, or bytes, of `size` bytes to an address in a client's region. Raises LocalError."""
        number, offset = split(at)
        region = self._region(number)
        assert isinstance(region, Granted)  # the host sends no other
        region.write(offset, contents, size)

    def is_granted(self, at: Any) -> bool:
        """Whether an address is one of somebody else's region."""
        return type(at) is int and at > self._own_end and split(at)[0] != self._number

    def expect(self, at: int) -> None:
        """Take the region of an address from the socket, which holds only so many."""
        self._region(split(at)[0])

    def map(self, at: int, size: int, hold: Any, shared: bool) -> HeldMap:
        """`size` bytes at an address, mapped for one tensor. They begin at `at` modulo the size of a page.

        Raises LocalError if the region does not have them any more.
        """
        number, offset = split(at)
        start = offset // PAGE_BYTES * PAGE_BYTES
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        fd = self._region(number).fileno()
        try:
            mapped = HeldMap(fd, offset - start + size, flags, mmap.PROT_READ | mmap.PROT_WRITE, offset=start)
        except ValueError as exc:  # it asks for the size
            raise LocalError(_SHRUNK) from exc
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

    def _region(self, number: int) -> Union[Region, Granted]:
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
        self._regions[_NUMBER.unpack(data)[0]] = Granted(fds[0])


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
