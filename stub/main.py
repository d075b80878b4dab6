# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The first thing a stub process does: settle into being a child, then hand over to the worker."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import platform
import signal
import socket
import sys
from typing import Any

from pyruntime.stub import c_pb_utils, debugging, logs, pb_utils
from pyruntime.stub.memory import Regions
from pyruntime.stub.worker import Worker
from pyruntime.utils.channel import StubChannel
from pyruntime.utils.messages import PROTOCOL_VERSION, Hello
from pyruntime.utils.regions import Region

_PR_SET_PDEATHSIG = 1


def run(
    name: str,
    sock: socket.socket,
    grants: socket.socket,
    output_fd: int,
    requests_fd: int,
    responses_fd: int,
    growth_bytes: int,
    at_terminal: bool = False,
) -> None:
    """Be the stub of instance `name` until told to stop. All descriptors belong to this process.

    `at_terminal` if somebody debugs the model, at the terminal that this process shares with the server.
    """
    _become_child(name, output_fd, at_terminal)
    # The same objects as in the packages of these names, which this interpreter need not have.
    sys.modules["triton_python_backend_utils"] = pb_utils
    sys.modules["c_python_backend_utils"] = c_pb_utils
    # The host's current folder is no place for a model to import from.
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != os.getcwd()]
    with sock, grants:
        regions = Regions(Region(requests_fd), grants)
        worker = Worker(name, sock, StubChannel(), regions, Region(responses_fd), growth_bytes)
        os.register_at_fork(after_in_child=worker.forked)
        worker.link.send(Hello(PROTOCOL_VERSION, os.getpid(), platform.python_version()))
        logs.install(worker.link.send)
        # A broken pipe means that the host is gone, and with it everybody who waits for an answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.run()


def _ignore(signum: int, frame: Any) -> None:
    pass


def _heed_signals() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) is _ignore:
            signal.signal(signum, signal.SIG_DFL)


def _become_child(name: str, output_fd: int, at_terminal: bool) -> None:
    """Take the stub's title, its log pipe and its signals; die with the process that started us."""
    try:
        import setproctitle

        setproctitle.setproctitle(f"triton_python_backend_stub {name}")
    except ImportError:
        pass  # another interpreter may lack it; the title is a convenience
    if at_terminal:
        debugging.use_terminal()  # in the server's process group, without which it could not be read
    else:
        debugging.refuse_breakpoints()
        os.setpgid(0, 0)  # what the model starts is of this group, and ends with the stub
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        # By the line, so that what a model printed before it crashed is in the log.
        sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.close(output_fd)
    faulthandler.enable()
    # Ctrl-C goes to the whole terminal, but only the host decides when a stub stops. Not SIG_IGN, which commands that
    # the model runs would inherit; and what it forks can be terminated again.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _ignore)
    os.register_at_fork(after_in_child=_heed_signals)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
