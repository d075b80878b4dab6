# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc shows them: descendants, whether they are alive, and holders of named shared memory."""

import os
from dataclasses import dataclass, field
from pathlib import Path

# The names of the files in which CUDA keeps events that processes share.
_OF_CUDA = "/dev/shm/cuda.shm."


@dataclass(frozen=True)
class Process:
    """A process; the time it started at tells it from a later one of the same number. Its title may change."""

    pid: int
    started: int
    title: str = field(compare=False)

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        found = _read_process(self.pid)
        return found is not None and found[1].started == self.started


def find_process(pid: int) -> Process | None:
    """A running process; None if there is none with this number."""
    found = _read_process(pid)
    return None if found is None else found[1]


def _read_process(pid: int) -> tuple[int, Process] | None:
    """A process and its parent's number; None if it is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    state, parent, threads, started = fields[0], int(fields[1]), int(fields[17]), int(fields[19])
    # A killed process keeps its files open until its last thread is gone.
    gone = state in "ZX" and threads <= 1
    return None if gone else (parent, Process(pid, started, title))


def descendants(pid: int) -> list[Process]:
    """Everything that descends from a process."""
    numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    found = [process for process in map(_read_process, numbers) if process is not None]
    family = {pid}
    while more := {process.pid for parent, process in found if parent in family} - family:
        family |= more
    return [process for _, process in found if process.pid in family - {pid}]


def named_shared_memory(pid: int) -> list[str]:
    """The files of /dev/shm that a process holds and that still have a name, so that they could be left behind.

    Without those of CUDA's own, in which it keeps the state of events between processes.
    """
    names = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            names.add(os.readlink(entry))
        names.update(line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    except OSError:
        pass  # it has just gone
    return sorted(
        name
        for name in names
        if name.startswith("/dev/shm/") and not name.startswith(_OF_CUDA) and not name.endswith(" (deleted)")
    )
