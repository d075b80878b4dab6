# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers `pyruntime stack` in this process: see utils/stacks.py for the protocol.

A thread waits for the bell. It holds the interpreter's lock while it answers, so no other thread runs Python code while
it reads their frames.
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

from pyruntime.stub.high_descriptors import move_up
from pyruntime.stub.logs import LOGGER
from pyruntime.utils.stacks import END, FILE_NAME, STACK_SIGNAL, Heading, encode_heading

# The most frames per thread. More frames, as in deep recursion, do not help.
FRAMES_MAX = 100
# Requests that arrived while an answer was written get one common answer.
_RINGS_AT_ONCE = 4096
_MFD_CLOEXEC = 1


class _StackServer:
    """The file and the pipe of this process."""

    def __init__(self, model: str, version: str, instance: str) -> None:
        """Raises OSError, or AttributeError if the system's C library is too old."""
        self.file = -1
        self.bell, self._ringing = map(move_up, os.pipe())
        try:
            self.name(model, version, instance)
        except BaseException:
            os.close(self.bell)
            os.close(self._ringing)
            raise

    def name(self, model: str, version: str, instance: str) -> None:
        """Change the heading, by a new file. Raises like the constructor."""
        heading = Heading(os.getpid(), os.readlink(f"/proc/self/fd/{self.bell}"), model, version, instance)
        file = _new_file(encode_heading(heading))
        if self.file < 0:
            self.file = file
            faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)
        else:
            try:
                os.dup2(file, self.file, inheritable=False)  # keeps the number, so that no answer is lost in between
            finally:
                os.close(file)

    def wait(self) -> None:
        """Answer requests forever."""
        while os.read(self.bell, _RINGS_AT_ONCE):
            os.write(self.file, _stacks(besides=threading.get_ident()).encode("utf-8", "backslashreplace") + END)

    def close(self) -> None:
        """Close the file and the bell."""
        faulthandler.unregister(STACK_SIGNAL)
        for fd in (self.file, self.bell, self._ringing):
            os.close(fd)


_door: Optional[_StackServer] = None


def install(model: str, version: str, instance: str) -> None:
    """Answer as an instance of a model. A second call changes the name.

    If the system does not permit it, this is logged, and the model is served nevertheless.
    """
    global _door
    try:
        if _door is not None:
            _door.name(model, version, instance)
        else:
            _door = _StackServer(model, version, instance)
            os.register_at_fork(after_in_child=_leave)
            threading.Thread(target=_door.wait, name="pyruntime stack", daemon=True).start()
    except (OSError, AttributeError) as exc:
        LOGGER.warning("`pyruntime stack` will not find this process under its name: %s", exc)


def _leave() -> None:
    """Close both in a child that the model forked, because they and the name are its parent's."""
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
    # `pyruntime stack` truncates the file after its heading, so writes must go to its current end.
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.write(fd, heading)
    return move_up(fd)


def _stacks(besides: int) -> str:
    """The stacks of all threads except `besides`, innermost calls first."""
    # Not threading.enumerate(), because a thread that hangs may hold its lock.
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
