# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the stubs of all servers of this user, and requests the stacks of their threads.

It finds stubs in /proc and asks no server, so that it works even if stubs and servers hang. utils/stacks.py describes
the protocol.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from pyruntime.runtime.observe.proc_status import GONE, ThreadStatus, is_handled, parent_of
from pyruntime.utils.stacks import END, HEADING_BYTES_MAX, LINK, STACK_SIGNAL, Heading, decode_heading

# Both take milliseconds, and longer if the process is swapped out or the machine is overloaded. With many busy threads,
# each of them holds the interpreter's lock for 5 ms before the thread that answers gets it.
BELL_S_MAX = 2.0
SIGNAL_S_MAX = 3.0
POLL_S = 0.005
# 100 frames of 1000 characters in each of 100 threads: faulthandler writes no more.
STACKS_BYTES_MAX = 16 << 20


class Stub:
    """A stub, and the state of the request for its stacks. The pidfd ensures that the pid is not reused.

    `stacks` is its answer. `by_signal` says that a signal was needed because another thread kept the interpreter's
    lock. `problem` says why stacks are missing, as the end of a sentence.
    """

    def __init__(self, pid: int, pidfd: int, bell: int, file: BinaryIO, heading: Heading) -> None:
        """`file` is read to the end of its heading. The caller closes all descriptors."""
        self.pid = pid
        self.heading = heading
        self.stacks = ""
        self.by_signal = False
        self.problem = ""
        self._pidfd = pidfd
        self._bell = bell
        self._file = file
        self._start = file.tell()
        self._deadline: float | None = None
        self._blocked_before: set[int] = set()

    def proceed(self, now: float) -> bool:
        """Send the request, or look for the answer. Returns whether this stub is finished. `now` is in seconds."""
        try:
            if self._deadline is None:
                self._ask(now)
            elif self._has_answered():
                return True
            elif now >= self._deadline and self.by_signal:
                self.give_up()
            elif now >= self._deadline:
                self._insist(now)
        except (ProcessLookupError, FileNotFoundError):
            self.problem = GONE
        return bool(self.problem)

    def give_up(self) -> None:
        """Stop waiting, and set `problem`."""
        if self._deadline is None:
            self.problem = "is being asked by somebody else"
            return
        self.problem = f"did not answer within {BELL_S_MAX + SIGNAL_S_MAX:g} s"
        with suppress(ProcessLookupError, FileNotFoundError):
            still = _threads(self.pid)[self.pid].stands_still
            self.problem += f": it {still}" if still else ""

    def _ask(self, now: float) -> None:
        try:
            # Locked until this process ends, so that no other one takes the answer.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        status = _threads(self.pid)[self.pid]
        if status.is_halted:
            self.problem = status.stands_still
            return
        self._deadline = now + BELL_S_MAX
        os.ftruncate(self._file.fileno(), self._start)
        with suppress(BlockingIOError):  # the pipe is full of earlier requests
            os.write(self._bell, b"?")

    def _insist(self, now: float) -> None:
        threads = _threads(self.pid)
        if not threads[self.pid].catches(STACK_SIGNAL):
            self.problem = f"does not answer, and has no handler for signal {STACK_SIGNAL}"
            return
        self.by_signal = True
        self._deadline = now + SIGNAL_S_MAX
        self._blocked_before = {number for number, each in threads.items() if each.blocks(STACK_SIGNAL)}
        signal.pidfd_send_signal(self._pidfd, STACK_SIGNAL)

    def _has_answered(self) -> bool:
        # Read first, then look at the threads: the handler has begun once the file has contents, and `is_handled` needs
        # a handler that has begun.
        answered = self._read()
        threads = _threads(self.pid)
        if not answered and self.by_signal and self.stacks and is_handled(threads, STACK_SIGNAL, self._blocked_before):
            self._read()
            return True
        if threads[self.pid].stands_still == GONE:
            self.problem = GONE
        return answered

    def _read(self) -> bool:
        """Read the file. Returns whether it has a complete answer to the bell."""
        self._file.seek(self._start)
        text, end, _ = self._file.read(STACKS_BYTES_MAX).partition(END)
        self.stacks = text.decode("utf-8", "backslashreplace")
        return bool(end)


def ask_for_stacks(stubs: Iterable[Stub]) -> None:
    """Request the stacks of all `stubs` at the same time. Waits at most BELL_S_MAX + SIGNAL_S_MAX seconds."""
    start = time.monotonic()
    while stubs := [stub for stub in stubs if not stub.proceed(time.monotonic())]:
        if time.monotonic() - start > BELL_S_MAX + SIGNAL_S_MAX:
            for stub in stubs:
                stub.give_up()
            return
        time.sleep(POLL_S)


def find_stubs(resources: ExitStack) -> list[Stub]:
    """All stubs of this user. `resources` closes their descriptors.

    A server counts as the stub of each of its native instances.
    """
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [stub for pid in pids for stub in _stubs_of(pid, resources)]


def is_below(pid: int, ancestor: int) -> bool:
    """Whether a process is `ancestor`, or below it in the tree of processes. False if the process has ended."""
    while pid > 1 and pid != ancestor:
        try:
            pid = parent_of(Path(f"/proc/{pid}/stat").read_text())
        except (OSError, ValueError):
            return False
    return pid == ancestor


def _stubs_of(pid: int, resources: ExitStack) -> list[Stub]:
    """The stubs in a process; none if it belongs to another user or ends meanwhile."""
    folder = Path(f"/proc/{pid}/fd")
    with ExitStack() as ours:
        try:
            if folder.stat().st_uid != os.geteuid():
                return []
            # The pidfd comes first. If the pid is reused later, a signal to the pidfd fails instead of reaching the
            # wrong process.
            pidfd = os.pidfd_open(pid)
            ours.callback(os.close, pidfd)
            links = _links(folder)
        except OSError:
            return []
        found = [_stub_of(pid, pidfd, each, links, resources) for each in links.get(LINK, ())]
        stubs = [stub for stub in found if stub is not None]
        if stubs:
            resources.push(ours.pop_all())
        return stubs


def _stub_of(pid: int, pidfd: int, path: Path, links: dict[str, list[Path]], resources: ExitStack) -> Stub | None:
    """The stub that has this file open; None if the file is not a stub's."""
    with ExitStack() as ours:
        try:
            file = ours.enter_context(path.open("r+b", buffering=0))
            heading = decode_heading(file.readline(HEADING_BYTES_MAX))
            if heading is None or heading.pid != _threads(pid)[pid].own_pid:
                return None
            bell = os.open(links[heading.bell][0], os.O_WRONLY | os.O_NONBLOCK)
            ours.callback(os.close, bell)
        except (OSError, ValueError, KeyError):
            return None
        resources.push(ours.pop_all())
        return Stub(pid, pidfd, bell, file, heading)


def _links(folder: Path) -> dict[str, list[Path]]:
    """The open files of a process: their names, and for each its paths below /proc. Skips files closed meanwhile."""
    links: dict[str, list[Path]] = {}
    for entry in folder.iterdir():
        with suppress(FileNotFoundError):
            links.setdefault(os.readlink(entry), []).append(entry)
    return links


def _threads(pid: int) -> dict[int, ThreadStatus]:
    """All threads of a process, including its main thread. Raises ProcessLookupError if it has ended."""
    threads = {}
    for entry in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError, FileNotFoundError):  # the thread has just ended
            threads[int(entry.name)] = ThreadStatus.parse((entry / "status").read_text())
    if pid not in threads:
        raise ProcessLookupError(pid)
    return threads
