# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the stubs of all servers of this user, and has them tell what their threads do.

No server is asked: stubs are found in /proc, whatever they and their servers are busy with. How a stub is asked and
answers is told in utils/stacks.py.
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

from pyruntime.runtime.cli.proc_status import GONE, ThreadStatus, is_handled
from pyruntime.utils.stacks import END, HEADING_BYTES_MAX, LINK, STACK_SIGNAL, Heading, decode_heading

# Both take milliseconds. A process that is swapped out, or a machine that is overloaded, may take longer; and many
# threads that all have work for the interpreter's lock share it by 5 ms each.
BELL_S_MAX = 2.0
SIGNAL_S_MAX = 3.0
POLL_S = 0.005
# 100 frames of 1000 characters in each of 100 threads, of which faulthandler takes no more.
STACKS_BYTES_MAX = 16 << 20


class Stub:
    """A stub that was found: its process, which cannot turn into another one, and what it is asked and answers by.

    `stacks` is what it said, `by_signal` that the interpreter's lock could not be had meanwhile, and `problem` why
    stacks are missing, as the end of a sentence.
    """

    def __init__(self, pid: int, pidfd: int, bell: int, file: BinaryIO, heading: Heading) -> None:
        """`file` has been read to the end of its heading. Everything stays the caller's to close."""
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
        """Ask, or look for the answer; whether there is nothing left to do. `now` is a time in seconds."""
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
        """Do not wait any longer."""
        if self._deadline is None:
            self.problem = "is being asked by somebody else"
            return
        self.problem = f"did not answer within {BELL_S_MAX + SIGNAL_S_MAX:g} s"
        with suppress(ProcessLookupError, FileNotFoundError):
            still = _threads(self.pid)[self.pid].stands_still
            self.problem += f": it {still}" if still else ""

    def _ask(self, now: float) -> None:
        try:
            # Held until we end: nobody else may take what we asked for.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        status = _threads(self.pid)[self.pid]
        if status.is_halted:
            self.problem = status.stands_still
            return
        self._deadline = now + BELL_S_MAX
        os.ftruncate(self._file.fileno(), self._start)
        with suppress(BlockingIOError):  # it has been rung more often than a pipe holds
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
        # In this order: once there is something to read a handler has begun, and only then can it be at its end.
        answered = self._read()
        threads = _threads(self.pid)
        if not answered and self.by_signal and self.stacks and is_handled(threads, STACK_SIGNAL, self._blocked_before):
            self._read()
            return True
        if threads[self.pid].stands_still == GONE:
            self.problem = GONE
        return answered

    def _read(self) -> bool:
        """Take what is there; whether it is a whole answer to the bell."""
        self._file.seek(self._start)
        text, end, _ = self._file.read(STACKS_BYTES_MAX).partition(END)
        self.stacks = text.decode("utf-8", "backslashreplace")
        return bool(end)


def ask_for_stacks(stubs: Iterable[Stub]) -> None:
    """Have all of them answer, at the same time. Waits BELL_S_MAX and SIGNAL_S_MAX at most."""
    start = time.monotonic()
    while stubs := [stub for stub in stubs if not stub.proceed(time.monotonic())]:
        if time.monotonic() - start > BELL_S_MAX + SIGNAL_S_MAX:
            for stub in stubs:
                stub.give_up()
            return
        time.sleep(POLL_S)


def find_stubs(resources: ExitStack) -> list[Stub]:
    """Every stub of this user; what it takes to ask them is closed by `resources`.

    A server counts as the stub of each of its native instances.
    """
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [stub for pid in pids for stub in _stubs_of(pid, resources)]


def _stubs_of(pid: int, resources: ExitStack) -> list[Stub]:
    """The stubs that a process is; none if it is not this user's, or ends while we look."""
    folder = Path(f"/proc/{pid}/fd")
    with ExitStack() as ours:
        try:
            if folder.stat().st_uid != os.geteuid():
                return []
            # First of all: what we learn of the number from now on is of this process, or this will not reach any.
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
    """The stub that has this file open; None if it is none."""
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
    """What a process has open, by its names, and where; but for what it closes while we look."""
    links: dict[str, list[Path]] = {}
    for entry in folder.iterdir():
        with suppress(FileNotFoundError):
            links.setdefault(os.readlink(entry), []).append(entry)
    return links


def _threads(pid: int) -> dict[int, ThreadStatus]:
    """All threads of a process, its first one included. Raises ProcessLookupError if it is gone."""
    threads = {}
    for entry in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError, FileNotFoundError):  # a thread that has just ended
            threads[int(entry.name)] = ThreadStatus.parse((entry / "status").read_text())
    if pid not in threads:
        raise ProcessLookupError(pid)
    return threads
