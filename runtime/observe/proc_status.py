# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses /proc/<pid>/status and /proc/<pid>/stat, and decides whether a signal's handler has ended. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

GONE = "has ended"
# The states of proc(5) in which a thread runs nothing, as the end of a sentence.
_STATES = {"D": "waits for a device", "T": "is stopped", "t": "is held by a debugger", "X": GONE, "Z": GONE}


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """The status of one thread. In the masks, bit n - 1 stands for signal n.

    `own_pid` is the pid in the process's own namespace. `pending` are the signals that are sent to this thread or to
    its process and not delivered yet, `caught` those that have a handler.
    """

    state: str
    own_pid: int
    pending: int
    blocked: int
    caught: int

    @classmethod
    def parse(cls, text: str) -> ThreadStatus:
        """Parse the file's contents. Raises ValueError if they are not a process's status."""
        fields = dict(line.split(":", 1) for line in text.splitlines())
        try:
            return cls(
                state=fields["State"].split()[0],
                own_pid=int(fields["NStgid"].split()[-1]),
                pending=int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16),
                blocked=int(fields["SigBlk"], 16),
                caught=int(fields["SigCgt"], 16),
            )
        except (KeyError, IndexError) as error:
            raise ValueError(f"not the status of a process, without {error}: {text!r}") from error

    @property
    def stands_still(self) -> str:
        """Why the thread runs nothing, as the end of a sentence; "" if it runs or sleeps."""
        return _STATES.get(self.state, "")

    @property
    def is_halted(self) -> bool:
        """Whether it stays so until another process acts. A thread that waits for a device may continue by itself."""
        return self.state in _STATES and self.state != "D"

    def blocks(self, signum: int) -> bool:
        """Whether the thread blocks a signal: by its own choice, or while it runs the signal's handler."""
        return bool(self.blocked & _bit(signum))

    def catches(self, signum: int) -> bool:
        """Whether the process has a handler for a signal; without one the signal might end it."""
        return bool(self.caught & _bit(signum))

    def awaits(self, signum: int) -> bool:
        """Whether a signal was sent and is not delivered yet."""
        return bool(self.pending & _bit(signum))


def is_handled(threads: Mapping[int, ThreadStatus], signum: int, blocked_before: Set[int]) -> bool:
    """Whether the handler of a signal, known to have begun, has ended.

    The kernel blocks a signal while its handler runs, only in the thread that runs it. `threads` are all threads of the
    process by their number, `blocked_before` those that blocked the signal before it was sent.
    """
    return not any(
        status.awaits(signum) or (status.blocks(signum) and number not in blocked_before)
        for number, status in threads.items()
    )


def parent_of(stat: str) -> int:
    """The pid of the parent, from the contents of /proc/<pid>/stat; 0 for none. Raises ValueError if they are not that.

    The name of the program comes before it, in parentheses, and may have parentheses and blanks itself.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 2:
        raise ValueError(f"not the stat file of a process: {stat!r}")
    return int(fields[1])


def _bit(signum: int) -> int:
    return 1 << (signum - 1)
