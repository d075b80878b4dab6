# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds and ends the processes below this one, whatever session or process group they moved to.

A subreaper becomes the parent of each process below it whose own parent has ended. So nothing leaves the tree, and a
child keeps its number until this process has waited for it. It needs the server's own Python, as all of the launcher.
"""

import ctypes
import os
import signal
from contextlib import suppress
from typing import Collection, Dict, List, Tuple

_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Become the parent of all processes below this one whose own parent ends. Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot become a subreaper")


def reap() -> Tuple[Dict[int, int], bool]:
    """Wait for all children that have ended. Their exit codes, as in ProcessExit, and whether any child is left."""
    ended: Dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return ended, True
            ended[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return ended, False


def ask_to_end() -> None:
    """Send SIGTERM to all processes below this one, because some have to clean up."""
    children = _children()
    family = [os.getpid()]
    for parent in family:  # which grows meanwhile
        for pid in children.get(parent, ()):
            family.append(pid)
            _terminate(pid, parent)


def kill_children(spared: Collection[int] = ()) -> None:
    """Send SIGKILL to each child but those in `spared`. The children of a child become children then."""
    for pid in _children().get(os.getpid(), ()):
        if pid not in spared:
            with suppress(PermissionError):  # it changed its user
                os.kill(pid, signal.SIGKILL)


def _terminate(pid: int, parent: int) -> None:
    with suppress(ProcessLookupError, PermissionError, FileNotFoundError):
        pidfd = os.pidfd_open(pid)
        try:
            # A number that belongs to another process by now is no child of that parent. Later it makes no difference.
            if _parent(pid) in (parent, os.getpid()):
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        finally:
            os.close(pidfd)


def _children() -> Dict[int, List[int]]:
    """The children of each process of this machine that has any, zombies included."""
    found: Dict[int, List[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                found.setdefault(_parent(int(entry)), []).append(int(entry))
    return found


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
