# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The entry point of a stub process: sets up the process, and runs the worker."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import platform
import signal
import socket
import sys
import threading
from typing import Any

from pyruntime.stub import c_pb_utils, debugging, logs, pb_utils, plain
from pyruntime.stub.high_descriptors import move_up
from pyruntime.stub.memory import Regions
from pyruntime.stub.worker import Worker
from pyruntime.utils.channel import StubChannel
from pyruntime.utils.messages import PROTOCOL_VERSION, Hello
from pyruntime.utils.regions import Region

_PR_SET_PDEATHSIG = 1
# Ctrl-C goes to all processes of the terminal, but only the host decides when a stub stops.
IGNORED = (signal.SIGINT, signal.SIGTERM)
# Added to this process's score for the kernel's OOM killer, of which a process that uses all memory has 1000: so the
# kernel kills a model before the server, unless the server uses much more.
OOM_SCORE_ADDED = 500
OOM_SCORE_MAX = 1000
# What processes that a model starts import, where its Python lacks it.
IMPORTABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "importable")


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
    """Run the stub of instance `name` until the host stops it. All descriptors belong to this process.

    `at_terminal` says that a user debugs the model at the terminal, which this process shares with the server.
    """
    _become_child(name, output_fd, at_terminal)
    # The same objects as in the packages of these names, which this interpreter may lack.
    sys.modules["triton_python_backend_utils"] = pb_utils
    pb_utils.get_input_tensor_by_name = plain.get_input_tensor_by_name  # of native code, where there is any
    sys.modules["c_python_backend_utils"] = c_pb_utils
    # As in Triton: a model that reads options, as `argparse` does, must not find those of the server.
    sys.argv[:] = [""]
    # A model must not import modules from the host's current folder.
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != os.getcwd()]
    sys.path.append(IMPORTABLE)
    sock, grants = (socket.socket(fileno=move_up(each.detach())) for each in (sock, grants))
    requests, responses = (Region(move_up(each)) for each in (requests_fd, responses_fd))
    with sock, grants:
        worker = Worker(name, sock, StubChannel(), Regions(requests, grants), responses, growth_bytes)
        os.register_at_fork(after_in_child=worker.forked)
        worker.link.send(Hello(PROTOCOL_VERSION, os.getpid(), platform.python_version()))
        logs.install(worker.link.send)
        # A broken pipe means that the host has ended, so no client waits for an answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.run()


def _ignore(signum: int, frame: Any) -> None:
    pass


def _heed_in_children() -> None:
    """Give the children that a model forks the default handlers of IGNORED.

    The signals are blocked meanwhile: one that comes just after the fork would meet the stub's handler, and be lost.
    """
    forking = threading.local()

    def block() -> None:
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def heed() -> None:
        for signum in IGNORED:
            if signal.getsignal(signum) is _ignore:
                signal.signal(signum, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=heed)


def _become_child(name: str, output_fd: int, at_terminal: bool) -> None:
    """Set the title, the log pipe and the signal handlers; die with the parent process."""
    try:
        import setproctitle

        setproctitle.setproctitle(f"triton_python_backend_stub {name}")
    except ImportError:
        pass  # another interpreter may lack it; the title is a convenience
    if at_terminal:
        debugging.use_terminal()  # in the server's process group, because others may not read from the terminal
    else:
        debugging.refuse_breakpoints()
        os.setpgid(0, 0)  # signals from the terminal are for the server
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        # Line-buffered, so that the log has all lines that a model printed before it crashed.
        sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.close(output_fd)
    faulthandler.enable()
    # Not SIG_IGN, which programs that the model runs would inherit.
    for signum in IGNORED:
        signal.signal(signum, _ignore)
    _heed_in_children()
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        score = min(int(file.read()) + OOM_SCORE_ADDED, OOM_SCORE_MAX)
        file.seek(0)
        file.write(str(score))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
