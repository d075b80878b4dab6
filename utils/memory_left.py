# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that there is memory left before a region grows.

When memory runs out, the kernel does not refuse to grow a region: it kills a process, and that may be the host. So
before each growth this module reads how much memory the machine and the cgroups of this process have left, and refuses
what would leave too little. Processes that grow at the same time share what is kept free.

It finds cgroups of version 2 and 1 at the usual mount points, if they have a limit when it first looks.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from pyruntime.utils.errors import OutOfMemoryError

# Stays free of the machine's memory, and of each cgroup's: for the server, and for regions that grow at the same time.
KEPT_BYTES_MAX = 256 << 20
# Where there is little memory, 1 / KEPT_SHARE of it stays free instead.
KEPT_SHARE = 16
# A limit of more is none: cgroups of version 1 write a number near 2^63.
_NO_LIMIT_BYTES = 1 << 60

_KIB = 1024

# Reads a file of the system. Raises OSError.
Read = Callable[[str], str]


class MemoryLeft(NamedTuple):
    """The memory under one limit, in bytes: all of it, and what is available."""

    total: int
    available: int

    @property
    def kept(self) -> int:
        """How much must stay available, in bytes."""
        return min(KEPT_BYTES_MAX, self.total // KEPT_SHARE)


class Machine:
    """The memory of the machine, with its swap space."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def left(self) -> MemoryLeft:
        """Read what is left. Raises OSError, KeyError or ValueError where the system does not say it."""
        found = _numbers(self._read("/proc/meminfo").replace(":", " "))
        available = found["MemAvailable"] + found["SwapFree"]
        return MemoryLeft(found["MemTotal"] * _KIB, available * _KIB)


class Cgroup:
    """The memory of a cgroup, without its swap space.

    `limit` and `usage` are names of files in `folder`. In memory.stat the names of numbers that include the cgroups
    below begin with `prefix`.
    """

    def __init__(self, read: Read, folder: str, limit: str, usage: str, prefix: str) -> None:
        self._read = read
        self._folder = folder
        self._limit = limit
        self._usage = usage
        self._caches = (f"{prefix}inactive_file", f"{prefix}active_file")

    @property
    def files(self) -> Tuple[str, str, str, Tuple[str, str]]:
        """See cgroup_files."""
        folder = self._folder
        return f"{folder}/{self._limit}", f"{folder}/{self._usage}", f"{folder}/memory.stat", self._caches

    def limit(self) -> Optional[int]:
        """The most memory that it may use, in bytes; None if it has no limit."""
        try:
            limit = int(self._read(f"{self._folder}/{self._limit}"))
        except (OSError, ValueError):  # there is no such file, or it says "max"
            return None
        return limit if limit < _NO_LIMIT_BYTES else None

    def left(self) -> MemoryLeft:
        """Read what is left. Raises OSError, KeyError or ValueError where the system does not say it."""
        limit = self.limit()
        if limit is None:
            return MemoryLeft(_NO_LIMIT_BYTES, _NO_LIMIT_BYTES)
        used = int(self._read(f"{self._folder}/{self._usage}"))
        found = _numbers(self._read(f"{self._folder}/memory.stat"))
        cached = sum(found[name] for name in self._caches)  # the kernel frees these before it kills a process
        return MemoryLeft(limit, max(limit - used + cached, 0))


def find_limits(read: Read) -> List[Union[Machine, Cgroup]]:
    """The machine, and the cgroups with a limit that this process is in."""
    try:
        memberships = [line.split(":", 2) for line in read("/proc/self/cgroup").splitlines()]
    except OSError:
        memberships = []
    cgroups = []
    for number, controllers, path in memberships:
        if number == "0":
            cgroups += [Cgroup(read, each, "memory.max", "memory.current", "") for each in _folders("", path)]
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
            cgroups += [Cgroup(read, each, *names) for each in _folders("/memory", path)]
    return [Machine(read), *[cgroup for cgroup in cgroups if cgroup.limit() is not None]]


def check_memory_left(size: int) -> None:
    """Raise OutOfMemoryError if `size` bytes more would leave too little memory. Takes some 30 µs."""
    check_limits(size, _found_limits())


def cgroup_files() -> List[Tuple[str, str, str, Tuple[str, str]]]:
    """The files of the cgroups with a limit, for native code that checks by itself.

    The limit, the usage and the statistics of each, and the names in these of what the kernel can free.
    """
    return [each.files for each in _found_limits() if isinstance(each, Cgroup)]


def check_limits(size: int, limits: List[Union[Machine, Cgroup]]) -> None:
    """As check_memory_left, for these limits."""
    for limit in limits:
        try:
            left = limit.left()
        except (OSError, KeyError, ValueError):  # a system that does not say it cannot be asked
            continue
        if left.available - size < left.kept:
            raise OutOfMemoryError(
                f"no shared memory left for {size} bytes: {left.available} bytes are available, of which {left.kept} "
                "are kept free"
            )


@lru_cache(maxsize=None)
def _found_limits() -> List[Union[Machine, Cgroup]]:
    return find_limits(lambda path: Path(path).read_text())


def _folders(mount: str, path: str) -> List[str]:
    """The folders of a cgroup and of those above it. In a container the path may not exist, but the topmost does."""
    cgroup = PurePosixPath(path)
    return [f"/sys/fs/cgroup{mount}{each}".rstrip("/") for each in (cgroup, *cgroup.parents)]


def _numbers(text: str) -> Dict[str, int]:
    """Lines of a name and a number."""
    return {fields[0]: int(fields[1]) for fields in map(str.split, text.splitlines()) if len(fields) > 1}
