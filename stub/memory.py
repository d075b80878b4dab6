# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The shared memory that a stub reads: its model's request region, and regions of other models and of clients.

Tensors between models, and tensors in client memory, are not copied on the way: a message has only an address, and the
descriptor of its region arrives earlier over the grants socket.

A large tensor in another region gets a mapping of its own; a small one is copied, which is cheaper. The mapping of an
input is private: the model may write to it, as to any input, and other readers of the same memory do not see that. A
response of another model is written for this process only, so its mapping is shared, and can be passed on.

Clients may shrink their objects, and an access beyond the end of one is a bus error. So mappings of them are guarded
(see guard.py), and all other accesses are system calls, which return an error instead.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import struct
import threading
from array import array
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np

from pyruntime.stub.guard import Guard
from pyruntime.utils.addresses import address, split
from pyruntime.utils.arena import LARGE_BYTES, PAGE_BYTES
from pyruntime.utils.errors import LocalError
from pyruntime.utils.regions import Region

if TYPE_CHECKING:
    from pyruntime.stub.gpu_memory import GpuMemory, Loan
    from pyruntime.stub.pb_utils.tensor import Tensor
    from pyruntime.utils.request_codec import TensorRef

_NUMBER = struct.Struct("<Q")
# Missing in the module mmap, which also cannot map over an existing mapping.
_MAP_POPULATE = 0x8000
_MREMAP_MAYMOVE = 1
_MREMAP_FIXED = 2
_MAP_FAILED = ctypes.c_void_p(-1).value
# Missing in the module fcntl before Python 3.9.
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2
_libc = ctypes.CDLL(None)
_mmap, _mremap = _libc.mmap, _libc.mremap
_mmap.restype = _mremap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
# The unit of st_blocks.
_BLOCK_BYTES = 512
SHRUNK = "a region of shared memory is smaller than it was when it was registered"


class HeldMap(mmap.mmap):
    """The mapping of one tensor. Keeps `hold` alive as long as any array is a view of it. `pointer` maps `address`."""

    hold: Any
    address: int
    pointer: int
    shared: bool
    # Of client memory.
    guard: Optional[Guard] = None

    def __del__(self) -> None:
        if self.guard is not None:
            self.guard.end()

    def detach(self) -> None:
        """Replace the region's pages by a copy, at the same addresses, so that arrays stay valid. Raises MemoryError.

        A simultaneous write of another thread may get lost.
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
    """Reads the contents of a tensor by its address, when they are first used."""

    __slots__ = ()

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """A writable buffer with the `size` bytes at an address, and the offset of the bytes in it."""
        raise NotImplementedError

    def read(self, at: Any, size: int) -> bytes:
        """A copy of `size` bytes at an address."""
        raise NotImplementedError

    def on_gpu(self, ref: TensorRef, hold: Any) -> Tensor:
        """The tensor that a reference to a GPU stands for. It keeps `hold` alive."""
        raise NotImplementedError


class Granted:
    """A granted region of another process; owns its descriptor. The kernel reads and writes at most 2 GiB per call."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # A mapping for writing large contents: later writes then cause no page faults.
        self._map: Optional[HeldMap] = None
        self.can_shrink = _can_shrink(fd)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """A copy of `size` bytes. Raises LocalError if there are fewer."""
        parts = []
        while size:
            part = os.pread(self._fd, size, offset)
            if not part:
                raise LocalError(SHRUNK)
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, contents: Any, size: int) -> None:
        """Write an array or bytes.

        Raises LocalError if the region is too small, or there is no memory for it.
        """
        status = os.fstat(self._fd)
        if status.st_size < offset + size:  # a write would enlarge the client's object
            raise LocalError(SHRUNK)
        try:
            if not is_large(size) or type(contents) is bytes:
                self._write_bytes(offset, memoryview(contents if type(contents) is bytes else contents.tobytes()))
                return
            if status.st_blocks * _BLOCK_BYTES < status.st_size:
                os.posix_fallocate(self._fd, offset, size)  # without it, a store is a bus error if memory runs out
        except OSError as exc:
            raise LocalError(f"shared memory cannot be written: {exc.strerror}") from exc
        mapped = self._map
        if mapped is None or len(mapped) < offset + size:
            mapped = self._map = _map_file(self._fd, 0, status.st_size, mmap.MAP_SHARED)
            mapped.guard = Guard(pointer_of(mapped), status.st_size)
        np.ndarray(contents.shape, contents.dtype, mapped, offset)[...] = contents
        if mapped.guard is not None and mapped.guard.is_hit:
            self._map = None  # it has memory of this process where the object ended
            raise LocalError(SHRUNK)

    def _write_bytes(self, offset: int, contents: memoryview) -> None:
        while contents:
            count = os.pwrite(self._fd, contents, offset)
            offset, contents = offset + count, contents[count:]

    def close(self) -> None:
        """Close the descriptor. Mappings of tensors stay valid."""
        self._map = None
        os.close(self._fd)


class Regions(Source):
    """All regions of this process by number; 0 is the model's request region."""

    def __init__(self, requests: Region, grants: socket.socket) -> None:
        self.requests = requests
        self._grants = grants
        self._regions: Dict[int, Union[Region, Granted]] = {0: requests}
        self._number = 0
        # The memory of the request region, and its last address: for native code, too.
        self.own = (requests.map, requests.limit)
        self._pointer = pointer_of(requests.map)
        self._lock = threading.Lock()
        self._gpu: Optional[GpuMemory] = None
        self._ask: Callable[[str, List[Any]], Any] = _nobody
        self._tell: Callable[[str, List[Any]], None] = _nobody
        self._lend: Callable[[int], Loan] = _nobody_lends

    def connect(
        self,
        ask: Callable[[str, List[Any]], Any],
        tell: Callable[[str, List[Any]], None],
        lend: Callable[[int], Loan],
    ) -> None:
        """Set the functions of the host (see stub/host.py) that memory on GPUs comes from, and `lend` of GpuMemory."""
        self._ask, self._tell, self._lend = ask, tell, lend

    @property
    def gpu(self) -> GpuMemory:
        """The memory on GPUs that processes share."""
        with self._lock:
            if self._gpu is None:
                from pyruntime.stub.gpu_memory import GpuMemory  # most processes need none

                self._gpu = GpuMemory(self._ask, self._tell, self._lend)
            return self._gpu

    def on_gpu(self, ref: TensorRef, hold: Any) -> Tensor:
        """See Source."""
        from pyruntime.stub.pb_utils.pooled import pooled_tensor

        return pooled_tensor(self.gpu, ref, hold)

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """See Source; for a request's tensors."""
        if type(at) is bytes:
            return bytearray(at), 0
        if at <= self.own[1]:
            return self.own[0], at
        if is_large(size):
            return self.map(at, size, None, shared=False), at % PAGE_BYTES
        return bytearray(self.read(at, size)), 0

    def set_number(self, number: int) -> None:
        """Set the number that other processes use for this request region."""
        self._number = number
        self._regions[number] = self.requests

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        if type(at) is bytes:
            return at
        if at <= self.own[1]:
            return self.own[0][at : at + size]
        number, offset = split(at)
        return self._region(number).read(offset, size)

    def write(self, at: int, contents: Any, size: int) -> None:
        """Write an array, or bytes, of `size` bytes to an address in a client's region. Raises LocalError."""
        number, offset = split(at)
        region = self._region(number)
        assert isinstance(region, Granted)  # the host sends no other address here
        region.write(offset, contents, size)

    def is_granted(self, at: Any) -> bool:
        """Whether an address is in a region of another process."""
        return type(at) is int and at > self.own[1] and split(at)[0] != self._number

    def expect(self, at: int) -> None:
        """Receive the region of an address now, because the grants socket can queue only a few."""
        self._region(split(at)[0])

    def map(self, at: int, size: int, hold: Any, shared: bool) -> HeldMap:
        """Map `size` bytes at an address for one tensor. They begin in the mapping at `at` modulo the page size.

        Raises LocalError if the region has become too small.
        """
        number, offset = split(at)
        start = offset // PAGE_BYTES * PAGE_BYTES
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        region = self._region(number)
        mapped = _map_file(region.fileno(), start, offset - start + size, flags)
        mapped.hold = hold
        mapped.shared = shared
        mapped.address = address(number, start)
        mapped.pointer = pointer_of(mapped)
        if isinstance(region, Granted) and region.can_shrink:
            mapped.guard = Guard(mapped.pointer, len(mapped))
        return mapped

    def locate(self, contents: Any) -> Optional[int]:
        """The address of an array's contents, if they are contiguous in a region that other processes can map."""
        if not isinstance(contents, np.ndarray) or not contents.flags.c_contiguous:
            return None
        base: Any = contents
        while isinstance(base, np.ndarray):
            base = base.base
        pointer: int = contents.__array_interface__["data"][0]
        if base is self.requests.map:
            return address(self._number, pointer - self._pointer)
        if type(base) is HeldMap and base.shared:
            return base.address + pointer - base.pointer
        return None

    def unmap(self, number: int) -> None:
        """Close a region: no later message refers to it. Existing views stay valid."""
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
        """Receive the next region from the grants socket. The host sends it before the first message that needs it."""
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
    """Reads a large tensor of another model's response."""

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
    """Reads a small tensor that was copied from its region."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """See Source."""
        return bytearray(self._data), 0

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        return self._data


def _nobody(method: str, arguments: List[Any]) -> Any:
    """Before the model is loaded, no tensor refers to a GPU."""
    raise LocalError(f"{method} before the model is loaded")


def _nobody_lends(size: int) -> Loan:
    return _nobody("lend", [size])  # type: ignore[no-any-return]


def _can_shrink(fd: int) -> bool:
    """Whether somebody may shrink the memory: a client's, while regions of the host are sealed."""
    try:
        return not fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK
    except OSError:  # its file system has no seals
        return True


def is_large(size: int) -> bool:
    """Whether a tensor of this size in another model's region is worth a mapping instead of a copy."""
    return size >= LARGE_BYTES


def _map_file(fd: int, start: int, size: int, flags: int) -> HeldMap:
    """Map a part of a file. Raises LocalError if it has become too small."""
    try:
        return HeldMap(fd, size, flags, offset=start)
    except ValueError as exc:  # mmap checks the size of the file
        raise LocalError(SHRUNK) from exc


def pointer_of(mapped: mmap.mmap) -> int:
    return int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
