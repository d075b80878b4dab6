# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What processes share of a GPU of the stand-in: memory and events. stand_in.py has the rules for their use.

They are memfds without a name, which other processes open through /proc: they end with their owner, and leave nothing
behind.

    memory := header contents
    header := owner freed writer copy opener* next (start end writer copy)*
                                                 numbers of eight bytes: the first `writer` and `copy` are what an event
                                                 carries, each opener is a process, or 0, and then come the last copies
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Optional, Tuple

from pyruntime.utils.gpu.driver import HANDLE_BYTES

# The kinds of objects.
MEMORY, EVENT = b"stand-in", b"st-event"
# The header has a page.
PAGE_BYTES = 4096
OPENERS_MAX = 256
_NUMBER = struct.Struct("<Q")
_OWNER, _FREED, _WRITER, _COPY, _FIRST_OPENER = range(5)
# The last copies to a memory: those before them are not checked.
_COPIES = 62
_NEXT_COPY = _FIRST_OPENER + OPENERS_MAX
_FIRST_COPY = _NEXT_COPY + 1
_HANDLE = struct.Struct("<8sQQQ8s")


class Handle(NamedTuple):
    """What a handle says: the kind of object, its owner and the descriptor there, and the GPU."""

    kind: bytes
    owner: int
    fd: int
    inode: int
    device: bytes


def read_handle(handle: bytes) -> Optional[Handle]:
    """None if it is none of the stand-in's."""
    return Handle._make(_HANDLE.unpack_from(handle)) if len(handle) == HANDLE_BYTES else None


class Shared:
    """See the module. `handle` is for other processes, and `opened` counts how often this one has it open."""

    def __init__(self, fd: int, handle: Handle) -> None:
        """`fd` is the descriptor in this process."""
        self._fd = fd
        self._handle = handle
        self.map = mmap.mmap(fd, os.fstat(fd).st_size)
        self.handle = _HANDLE.pack(*handle).ljust(HANDLE_BYTES, b"\0")
        self.opened = 1

    @staticmethod
    def create(kind: bytes, size: int, device: bytes) -> Shared:
        """A new object of this process, with contents of `size` bytes."""
        fd = os.memfd_create("pyruntime stand-in", os.MFD_CLOEXEC)
        os.ftruncate(fd, PAGE_BYTES + size)
        shared = Shared(fd, Handle(kind, os.getpid(), fd, os.fstat(fd).st_ino, device))
        shared._set(_OWNER, os.getpid())
        return shared

    @staticmethod
    def open(handle: Handle) -> Optional[Shared]:
        """The object of another process, None if it is gone."""
        try:
            fd = os.open(f"/proc/{handle.owner}/fd/{handle.fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        if os.fstat(fd).st_ino != handle.inode:
            os.close(fd)
            return None
        return Shared(fd, handle)

    @property
    def size(self) -> int:
        """The size of the contents."""
        return len(self.map) - PAGE_BYTES

    @property
    def owner(self) -> int:
        """The process that created it."""
        return self._get(_OWNER)

    def free(self) -> None:
        """Nobody may use it any more, or open it."""
        self._set(_FREED, 1)

    @property
    def recorded(self) -> Tuple[int, int]:
        """The process that recorded an event last, 0 if none has, and its last copy before."""
        return self._get(_WRITER), self._get(_COPY)

    def record(self, writer: int, copy: int) -> None:
        """Record an event behind a copy of a process."""
        self._set(_WRITER, writer)
        self._set(_COPY, copy)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process changes the header meanwhile."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @property
    def is_live(self) -> bool:
        """Whether its owner lives and has not freed it."""
        return not self._get(_FREED) and _inode(self._handle.owner, self._handle.fd) == self._handle.inode

    def replace_opener(self, old: int, new: int) -> bool:
        """Put a process in the place of another one in the list of openers; 0 is a free place."""
        with self.locked():
            for at in range(_FIRST_OPENER, _FIRST_OPENER + OPENERS_MAX):
                if self._get(at) == old:
                    self._set(at, new)
                    return True
        return False

    def openers(self) -> Iterator[int]:
        """The processes that have it open and live."""
        for at in range(_FIRST_OPENER, _FIRST_OPENER + OPENERS_MAX):
            pid = self._get(at)
            if pid and lives(pid):
                yield pid

    def wrote(self, start: int, end: int, writer: int, copy: int) -> None:
        """Note the copy of a process to a part of the contents; 0 for one that is complete."""
        for at in range(_FIRST_COPY, _FIRST_COPY + _COPIES * 4, 4):
            if start <= self._get(at) and self._get(at + 1) <= end:
                self._set(at + 3, 0)
        if copy:
            at = _FIRST_COPY + self._get(_NEXT_COPY) % _COPIES * 4
            self._set(_NEXT_COPY, self._get(_NEXT_COPY) + 1)
            for number in (start, end, writer, copy):
                self._set(at, number)
                at += 1

    def settled(self, writer: int, copy: int) -> None:
        """The copies of a process up to this one are complete, for all processes."""
        for at in range(_FIRST_COPY, _FIRST_COPY + _COPIES * 4, 4):
            if self._get(at + 2) == writer and self._get(at + 3) <= copy:
                self._set(at + 3, 0)

    def copies(self, start: int, end: int) -> List[Tuple[int, int]]:
        """The copies to a part of the contents that may not be complete: their processes and numbers."""
        found = []
        for at in range(_FIRST_COPY, _FIRST_COPY + _COPIES * 4, 4):
            if self._get(at + 3) and self._get(at) < end and start < self._get(at + 1):
                found.append((self._get(at + 2), self._get(at + 3)))
        return found

    def end(self) -> None:
        """Unmap it here."""
        self.map.close()
        os.close(self._fd)

    def _get(self, at: int) -> int:
        number: int = _NUMBER.unpack_from(self.map, at * _NUMBER.size)[0]
        return number

    def _set(self, at: int, number: int) -> None:
        _NUMBER.pack_into(self.map, at * _NUMBER.size, number)


def _inode(pid: int, fd: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/fd/{fd}").st_ino
    except OSError:
        return 0


def is_other(pid: int) -> bool:
    """Whether it is another process, and lives. One that has ended copies nothing any more."""
    return pid != os.getpid() and lives(pid)


def lives(pid: int) -> bool:
    """Whether a process lives."""
    return os.path.exists(f"/proc/{pid}/exe")  # a zombie has none
