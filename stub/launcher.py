# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The launcher: a process that has numpy and the stub's code loaded, and forks the guardian of each stub.

It does nothing else, so that little can fail, and keeps no descriptor from one launch to the next. A launch that fails
is reported to the host, and leaves no trace. The guardians do not depend on it (see guardian.py); as a subreaper it
only ends what is left of a stub whose guardian was killed. utils/launching.py has what it says.

It needs the server's own Python, and begins with `main`, whose arguments stand on the command line: the socket that
requests come over, the limit of descriptors in stubs, and a module to import before all stubs, or "". It ends when the
host's end of that socket is closed and all guardians have ended.
"""

import errno
import gc
import importlib
import os
import select
import socket
import sys
import time
from contextlib import suppress
from typing import List, NoReturn, Optional, Set, Tuple

import numpy  # noqa: F401  # most models need it, so that it is loaded once
import setproctitle

from pyruntime.stub.descendants import become_subreaper, kill_children, reap
from pyruntime.stub.guardian import forget_signals, guard, ignore_signals, note_signals
from pyruntime.utils.launching import DESCRIPTORS, FAILED, encode_reply
from pyruntime.utils.openmp import wait_passively

TITLE = "pyruntime launcher"
# How long guardians have to end after the host, in seconds: longer than the processes that they wait for, and shorter
# than the host waits. A model may have stopped its guardian.
GUARDIANS_S_MAX = 3.5


def main() -> None:
    """Serve launches until the host has ended."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.set_inheritable(False)
    models_files_max = int(sys.argv[2])
    module = sys.argv[3]
    # As in the stubs of other interpreters.
    sys.argv[:] = ["triton_python_backend_stub"]
    setproctitle.setproctitle(TITLE)
    become_subreaper()
    ignore_signals()
    noted = note_signals()
    if module:
        wait_passively()
        with suppress(Exception):  # each stub imports it again, and reports why that fails
            importlib.import_module(module)
    # Without this the first collection in each stub would write to every object, and so copy every page.
    gc.collect()
    gc.freeze()
    _Launcher(requests, noted, models_files_max).serve()


class _Launcher:
    """See the module."""

    def __init__(
        self, requests: socket.socket, noted: Tuple[socket.socket, socket.socket], models_files_max: int
    ) -> None:
        """`noted` is of `note_signals`."""
        self._requests = requests
        self._noted = noted
        self._wake_up = noted[0]
        self._models_files_max = models_files_max
        self._guardians: Set[int] = set()
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)
        self._poll.register(self._wake_up, select.POLLIN)

    def serve(self) -> None:
        """Serve launches until the host has ended, and all guardians."""
        host_lives = any_left = True
        deadline: Optional[float] = None
        while host_lives or any_left:
            for fd, _ in self._poll.poll(None if deadline is None else max(deadline - time.monotonic(), 0) * 1000 + 1):
                if fd == self._wake_up.fileno():
                    self._wake_up.recv(4096)
                elif not self._serve_one():
                    host_lives = False
                    self._poll.unregister(self._requests)
                    deadline = time.monotonic() + GUARDIANS_S_MAX
            any_left = self._reap()
            if any_left and deadline is not None and time.monotonic() >= deadline:
                kill_children()  # each death is an event, after which the children of that child are killed
                self._guardians.clear()
                deadline = None

    def _reap(self) -> bool:
        """Wait for guardians that have ended. Returns whether any child is left."""
        ended, any_left = reap()
        orphaned = any(pid not in self._guardians or code for pid, code in ended.items())
        self._guardians.difference_update(ended)
        if orphaned and any_left:
            kill_children(self._guardians)
        return any_left

    def _serve_one(self) -> bool:
        """Serve one request. Returns False if there are no more, because the host has ended."""
        received: List[int] = []
        try:
            data, received, _, _ = socket.recv_fds(self._requests, 1, len(DESCRIPTORS), socket.MSG_CMSG_CLOEXEC)
            if not data:
                return False
            self._launch(received)
        except ConnectionResetError:
            return False
        except (OSError, MemoryError) as exc:
            self._report(received, getattr(exc, "errno", None) or errno.ENOMEM)
        for fd in received:
            os.close(fd)
        return True

    def _launch(self, received: List[int]) -> None:
        """Fork a guardian. Raises OSError."""
        if len(received) < len(DESCRIPTORS):  # the kernel dropped some
            raise OSError(errno.EMFILE, "the launcher has no more descriptors")
        pid = os.fork()
        if not pid:
            self._guard(received)
        self._guardians.add(pid)

    def _guard(self, received: List[int]) -> NoReturn:
        """Become a guardian."""
        self._requests.close()
        forget_signals(self._noted)
        descriptors = dict(zip(DESCRIPTORS, received))
        guard(socket.socket(fileno=descriptors.pop("control")), descriptors, self._models_files_max)

    def _report(self, received: List[int], number: int) -> None:
        """Tell the host why a launch failed, if its control socket came. Otherwise it reads an end of file."""
        if received:
            control: Optional[socket.socket] = None
            with suppress(OSError):
                control = socket.socket(fileno=received[0])
                control.send(encode_reply(FAILED, number))
            if control is not None:
                control.detach()
