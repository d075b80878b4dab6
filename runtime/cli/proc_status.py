# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What /proc/<pid>/status says of a process or of one of its threads, and whether a signal was handled. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

GONE = "has ended"
# States of proc(5) in which nothing happens, as the end of a sentence.
_STATES = {"D": "waits for a device", "T": "is stopped", "t": "is held by a debugger", "X": GONE, "Z": GONE}


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """One thread; of the masks bit n - 1 stands for signal n.

    `own_pid` is the number that the process has for itself, in its own namespace. `pending` are signals that wait for
    this thread or for any of its process, `caught` those that the process has a handler for.
    """

    state: str
    own_pid: int
    pending: int
    blocked: int
    caught: int

    @classmethod
    def parse(cls, text: str) -> ThreadStatus:
        """From the file's contents. Raises ValueError where they are something else."""
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
        """Why it does nothing now, as the end of a sentence; "" if it does, or only waits."""
        return _STATES.get(self.state, "")

    @property
    def is_halted(self) -> bool:
        """Whether it will do nothing until somebody else does something; what waits for a device may go on."""
        return self.state in _STATES and self.state != "D"

    def blocks(self, signum: int) -> bool:
        """Whether the thread holds a signal back: because it was told to, or while it runs the signal's handler."""
        return bool(self.blocked & _bit(signum))

    def catches(self, signum: int) -> bool:
        """Whether the process has a handler for a signal, which might end it otherwise."""
        return bool(self.caught & _bit(signum))

    def awaits(self, signum: int) -> bool:
        """Whether a signal was sent and has not arrived."""
        return bool(self.pending & _bit(signum))


def is_handled(threads: Mapping[int, ThreadStatus], signum: int, blocked_before: Set[int]) -> bool:
    """Whether the handler of a signal, known to have begun, is at its end.

    A signal is blocked while its handler runs, in the thread that it runs in and in no other. `threads` are all threads
    of the process by their number, `blocked_before` those that blocked the signal before it was sent.
    """
    return not any(
        status.awaits(signum) or (status.blocks(signum) and number not in blocked_before)
        for number, status in threads.items()
    )


def _bit(signum: int) -> int:
    return 1 << (signum - 1)
