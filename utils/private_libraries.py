# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps libraries that this process has loaded as they were then, whatever becomes of their files.

The loader maps a library from its file. Who writes to that file, as `cp` does, writes to the code that runs, and a file
that is cut off ends the process at the next look. So each mapping of a library is replaced by a copy in a sealed memfd,
at the same addresses and at one moment: code that runs there goes on.

To the loader nothing has changed: not the path, by which libraries find their neighbours and debuggers the symbols, nor
the inode, by which it knows a library again. Libraries that were loaded before are left alone, as they may be writing
to their data; those that were loaded just now have run nothing but their constructors.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, NamedTuple, Sequence

# A library with more bytes stays mapped from its file: the copy would be memory that the kernel cannot take back.
LIBRARY_BYTES_MAX = 1 << 30

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

# Two threads may load libraries in one folder.
_lock = threading.Lock()


class Mapping(NamedTuple):
    """A part of a file in the memory of this process; `flags` are those of /proc/PID/maps, such as "r-xp"."""

    start: int
    end: int
    flags: str
    path: str


def mappings() -> List[Mapping]:
    """What this process maps of files that are still there."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            # Address, permissions, offset, device, inode and, for a file, its path.
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/") and not fields[5].endswith(" (deleted)"):
                start, end = (int(each, 16) for each in fields[0].split("-"))
                found.append(Mapping(start, end, fields[1], fields[5].replace("\\012", "\n")))
    return found


@contextmanager
def private_libraries(places: Sequence[str], warn: Callable[[str], None]) -> Iterator[None]:
    """Libraries that are loaded meanwhile are independent of their files afterwards, if those are in `places`.

    These are folders, and single files. `warn` is called with a sentence where that is not possible.
    """
    loaded = LoadedLibraries(places)
    yield
    loaded.keep(warn)


class LoadedLibraries:
    """The libraries in `places` that are loaded from now on until `keep`."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = [os.path.realpath(each) for each in places]
        self._before = self._mapped().keys()

    def keep(self, warn: Callable[[str], None]) -> None:
        """Make them independent of their files. Blocks. See `private_libraries`."""
        with _lock:
            for path, parts in self._mapped().items():
                if path in self._before or not any("x" in part.flags for part in parts):
                    continue
                size = sum(part.end - part.start for part in parts)
                if size > LIBRARY_BYTES_MAX:
                    warn(
                        f"'{path}' has {size} bytes, which is more than {LIBRARY_BYTES_MAX}, and stays mapped from its "
                        "file: do not write to it while a model uses it; put another file in its place"
                    )
                    continue
                try:
                    _replace(path, parts)
                except OSError as exc:
                    warn(
                        f"'{path}' stays mapped from its file, because it cannot be copied: {exc.strerror}. Do not "
                        "write to it while a model uses it; put another file in its place"
                    )

    def _mapped(self) -> Dict[str, List[Mapping]]:
        """The mappings of each file in the places, but for those that are written to, and those that nobody reads."""
        found: Dict[str, List[Mapping]] = {}
        for each in mappings():
            if each.flags[0] == "r" and each.flags[3] == "p" and self._is_meant(each.path):
                found.setdefault(each.path, []).append(each)
        return found

    def _is_meant(self, path: str) -> bool:
        return any(path == place or path.startswith(os.path.join(place, "")) for place in self._places)


def _replace(path: str, parts: Sequence[Mapping]) -> None:
    """Put a copy in the place of each mapping of a file. Raises OSError, which leaves the rest as it was."""
    copy = os.memfd_create(os.path.basename(path)[:_NAME_BYTES_MAX], _CLOSE_ON_EXEC | _ALLOW_SEALING)
    try:
        at = 0
        for part in parts:
            _copy(part, copy, at)
            at += part.end - part.start
        fcntl.fcntl(copy, _ADD_SEALS, _ALL_SEALS)
        at = 0
        for part in parts:
            _exchange(part, copy, at)
            at += part.end - part.start
    finally:
        os.close(copy)


def _copy(part: Mapping, target: int, at: int) -> None:
    """Copy memory to a file, by a file, where a page that is gone is an error and no signal. Raises OSError."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        done, size = 0, part.end - part.start
        while done < size:
            contents = os.pread(memory.fileno(), min(_CHUNK_BYTES, size - done), part.start + done)
            done += os.pwrite(target, contents, at + done)


def _exchange(part: Mapping, copy: int, at: int) -> None:
    """Put a part of a file in the place of a mapping, at one moment. Raises OSError, which leaves it as it was."""
    size = part.end - part.start
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
