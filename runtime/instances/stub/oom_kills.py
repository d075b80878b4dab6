# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel's out-of-memory killer has ended a process, by its own count for the server's cgroup.

Nothing says which process that was: the count of a cgroup is evidence where one of its processes was killed by SIGKILL
and nobody else is known to have done it. Each kill that it counts is taken for one death.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

BY_KERNEL = "the kernel's out-of-memory killer has ended a process of the server's cgroup"

# Reads a file of the system. Raises OSError.
Read = Callable[[str], str]


class OomKills:
    """The kills that were counted, and those that were taken for a death."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._files = list(_files(read))
        self._seen = self._count()

    def has_more(self) -> bool:
        """Whether there was one more than at the last call. False where the system does not say it."""
        if self._count() <= self._seen:
            return False
        self._seen += 1
        return True

    def _count(self) -> int:
        """The kills so far, in the first of the files that has them."""
        for path in self._files:
            with suppress(OSError, ValueError):
                for line in self._read(path).splitlines():
                    name, _, number = line.partition(" ")
                    if name == "oom_kill":
                        return int(number)
        return 0


def _files(read: Read) -> Iterator[str]:
    """Where the kernel counts the kills in this process's cgroup: of version 2, or of version 1.

    In a container the path of the cgroup may not exist, but the topmost does.
    """
    with suppress(OSError):
        for line in read("/proc/self/cgroup").splitlines():
            number, controllers, path = line.split(":", 2)
            cgroup = PurePosixPath(path)
            for each in (cgroup, *cgroup.parents):
                if number == "0":
                    yield f"/sys/fs/cgroup{each}/memory.events".replace("//", "/")
                elif "memory" in controllers.split(","):
                    yield f"/sys/fs/cgroup/memory{each}/memory.oom_control".replace("//", "/")


_kills: OomKills | None = None


def watch() -> None:
    """Begin to count: what was killed before was no stub of this server."""
    global _kills
    _kills = OomKills(lambda path: Path(path).read_text())


def has_more() -> bool:
    """See OomKills. False before `watch`."""
    return _kills is not None and _kills.has_more()
