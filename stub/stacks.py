# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Has this process answer `pyruntime stack`: see utils/stacks.py for what is asked and answered, and how.

A thread of ours waits for the bell. It needs the interpreter's lock to answer, so no other thread runs Python while it
looks at them, and none of them notices.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import os
import sys
import threading
from types import FrameType
from typing import List, Optional

from pyruntime.stub.logs import LOGGER
from pyruntime.utils.stacks import END, FILE_NAME, STACK_SIGNAL, Heading, encode_heading

# Deeper recursion than this explains nothing more.
FRAMES_MAX = 100
# Those who rang while an answer was written get one answer.
_RINGS_AT_ONCE = 4096
_MFD_CLOEXEC = 1


class _Door:
    """The file and the pipe of this process."""

    def __init__(self, model: str, version: str, instance: str) -> None:
        """Raises OSError, or AttributeError where the system's C library is too old."""
        self.file = -1
        self.bell, self._ringing = os.pipe()
        try:
            self.name(model, version, instance)
        except BaseException:
            os.close(self.bell)
            os.close(self._ringing)
            raise

    def name(self, model: str, version: str, instance: str) -> None:
        """Answer under this name from now on, in a file of its own. Raises as the constructor does."""
        heading = Heading(os.getpid(), os.readlink(f"/proc/self/fd/{self.bell}"), model, version, instance)
        file = _new_file(encode_heading(heading))
        if self.file < 0:
            self.file = file
            faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)
        else:
            os.dup2(file, self.file, inheritable=False)  # in its place, so that no answer is lost between the two
            os.close(file)

    def wait(self) -> None:
        """Answer whoever rings, for ever."""
        while os.read(self.bell, _RINGS_AT_ONCE):
            os.write(self.file, _stacks(besides=threading.get_ident()).encode("utf-8", "backslashreplace") + END)

    def close(self) -> None:
        """Be nobody who answers."""
        faulthandler.unregister(STACK_SIGNAL)
        for fd in (self.file, self.bell, self._ringing):
            os.close(fd)


_door: Optional[_Door] = None


def install(model: str, version: str, instance: str) -> None:
    """From now on this process answers as an instance of a model; called again, under another name.

    Where the system does not permit that it is logged, and the model is served all the same.
    """
    global _door
    try:
        if _door is not None:
            _door.name(model, version, instance)
        else:
            _door = _Door(model, version, instance)
            os.register_at_fork(after_in_child=_leave)
            threading.Thread(target=_door.wait, name="pyruntime stack", daemon=True).start()
    except (OSError, AttributeError) as exc:
        LOGGER.warning("`pyruntime stack` will not find this process under its name: %s", exc)


def _leave() -> None:
    """In a process that the model forked: file and bell are its parent's, and so is the name."""
    global _door
    if _door is not None:
        _door.close()
        _door = None


def _new_file(heading: bytes) -> int:
    # Through ctypes, because interpreters that were built for old systems have no os.memfd_create.
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.memfd_create(FILE_NAME.encode(), _MFD_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    # Whoever asks empties the file behind its heading, so what is written goes to where its end is then.
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.write(fd, heading)
    return fd


def _stacks(besides: int) -> str:
    """What all threads do but one, innermost calls first."""
    # Not threading.enumerate(), whose lock the thread that is stuck may hold.
    names = {ident: thread.name for ident, thread in threading._active.copy().items()}  # type: ignore[attr-defined]
    parts: List[str] = []
    for ident, innermost in sys._current_frames().items():
        if ident == besides:
            continue
        lines = [f"Thread {names.get(ident, ident)} (most recent call first):"]
        at: Optional[FrameType] = innermost
        while at is not None and len(lines) <= FRAMES_MAX:
            code = at.f_code
            lines.append(f'  File "{code.co_filename}", line {at.f_lineno} in {code.co_name}')
            at = at.f_back
        parts.append("\n".join([*lines, *(["  ..."] if at is not None else []), ""]))
    return "\n".join(parts)
