# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces parts of files in the memory of this process by copies that nobody else can change.

A file that is mapped is memory that others can write to: `cp` over it changes what this process reads, and a file that
is cut off ends the process at the next look. So a copy takes the place of a mapping, at the same addresses and at one
moment: what reads there goes on.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import List, NamedTuple, Sequence

_MAY_MOVE, _FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
# memfd_create, whose names may have so many characters, and fcntl: nobody shall change the copy.
_CLOSE_ON_EXEC, _ALLOW_SEALING = 1, 2
_NAME_BYTES_MAX = 200
_ADD_SEALS, _ALL_SEALS = 1033, 0xF
_CHUNK_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Mapping(NamedTuple):
    """A part of a file in the memory of this process; `flags` are those of /proc/PID/maps, such as "r-xp".

    `offset` is where it begins in the file.
    """

    start: int
    end: int
    flags: str
    offset: int
    path: str

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.start


def mappings() -> List[Mapping]:
    """What this process maps of files that are still there."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            # Address, permissions, offset, device, inode and, for a file, its path.
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/") and not fields[5].endswith(" (deleted)"):
                start, end = (int(each, 16) for each in fields[0].split("-"))
                path = fields[5].replace("\\012", "\n")
                found.append(Mapping(start, end, fields[1], int(fields[2], 16), path))
    return found


def is_in(path: str, places: Sequence[str]) -> bool:
    """Whether a file is one of `places`, or below one that is a folder."""
    return any(path == place or path.startswith(os.path.join(place, "")) for place in places)


def replace(path: str, parts: Sequence[Mapping]) -> None:
    """Put a copy in the place of each mapping of a file. Raises OSError, which leaves the rest as it was."""
    copy = os.memfd_create(os.path.basename(path)[:_NAME_BYTES_MAX], _CLOSE_ON_EXEC | _ALLOW_SEALING)
    try:
        at = 0
        for part in parts:
            _copy(part, copy, at)
            at += part.size
        fcntl.fcntl(copy, _ADD_SEALS, _ALL_SEALS)
        at = 0
        for part in parts:
            _exchange(part, copy, at)
            at += part.size
    finally:
        os.close(copy)


def replace_by(copy: str, parts: Sequence[Mapping]) -> bool:
    """Put the file `copy`, which nobody writes to, in the place of the mappings of another file.

    False, and nothing is changed, if it has other contents than the memory. Raises OSError, which leaves the rest as it
    was.
    """
    descriptor = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not all(_is_equal(part, descriptor) for part in parts):
            return False
        for part in parts:
            _exchange(part, descriptor, part.offset)
    finally:
        os.close(descriptor)
    return True


def _copy(part: Mapping, target: int, at: int) -> None:
    """Copy memory to a file, by a file, where a page that is gone is an error and no signal. Raises OSError."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        done = 0
        while done < part.size:
            contents = os.pread(memory.fileno(), min(_CHUNK_BYTES, part.size - done), part.start + done)
            done += os.pwrite(target, contents, at + done)


def _is_equal(part: Mapping, copy: int) -> bool:
    """Whether memory has the contents of a file, and zeros behind its end. Raises OSError."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        done = 0
        while done < part.size:
            contents = os.pread(memory.fileno(), min(_CHUNK_BYTES, part.size - done), part.start + done)
            wanted = os.pread(copy, len(contents), part.offset + done)
            if wanted.ljust(len(contents), b"\0") != contents:
                return False
            done += len(contents)
    return True


def _exchange(part: Mapping, copy: int, at: int) -> None:
    """Put a part of a file in the place of a mapping, at one moment. Raises OSError, which leaves it as it was."""
    size = part.size
    # Mapped elsewhere first, where it may fail.
    new = _libc.mmap(None, size, _protection(part.flags), mmap.MAP_PRIVATE, copy, at)
    if new == _FAILED:
        raise _error()
    if _libc.mremap(new, size, size, _MAY_MOVE | _FIXED, part.start) == _FAILED:
        _libc.munmap(new, size)
        raise _error()


def _protection(flags: str) -> int:
    bits = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}
    return sum(bits[each] for each in flags[:3] if each != "-")


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
