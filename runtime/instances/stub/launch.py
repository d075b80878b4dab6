# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Starts stub processes of the host's own interpreter, and watches for their ends.

They are forked from a server process that has numpy and the stub's code loaded already: 8 ms and a few MiB each,
instead of 70 ms and 18 MiB for a fresh interpreter. The forkserver also reaps them, and reports each exit status on a
descriptor of its own, which the event loop watches.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from multiprocess import context, forkserver, reduction

from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.utils.start import received, start_stub

PRELOAD = ["numpy", "msgpack", "setproctitle", "pyruntime.stub.preload"]


def start_forkserver() -> None:
    """Start the forkserver now, so that it imports numpy while the host reads configurations."""
    forkserver.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()


class _Child(Protocol):
    """A process of the multiprocess package, which has no types."""

    pid: int
    sentinel: int
    exitcode: int

    def join(self) -> None: ...

    def close(self) -> None: ...


class StubProcess:
    """A stub process. `exited` resolves, once, to how it ended. Cancelling a wait for it is harmless."""

    def __init__(self, process: _Child, loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self._loop = loop
        self.pid: int = process.pid
        self.exited: asyncio.Future[ProcessExit] = loop.create_future()
        # The number may belong to another process by the time of a signal; a pidfd never does.
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._pidfd = -1
        loop.add_reader(process.sentinel, self._on_exit)

    def kill(self) -> None:
        """Send SIGKILL, if the process still exists."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._process.join()
        exit = ProcessExit(self._process.exitcode)
        self._process.close()
        # The processes that its model started and did not end. SIGTERM, because some of them have to clean up.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if not self.exited.done():
            self.exited.set_result(exit)


def launch_stub(
    name: str,
    sock: socket.socket,
    grants: socket.socket,
    output_fd: int,
    requests_fd: int,
    responses_fd: int,
    growth_bytes: int,
    loop: asyncio.AbstractEventLoop,
) -> StubProcess:
    """Start the stub of instance `name`; it inherits copies of the descriptors. The caller closes its own.

    Blocks for the fork, which takes milliseconds once the forkserver runs.
    """
    with _no_main_module():
        process = _Process(
            target=_target,
            args=(name, sock, grants, _Fd(output_fd), _Fd(requests_fd), _Fd(responses_fd), growth_bytes),
            name=name,
            daemon=True,
        )
        process.start()
    return StubProcess(process, loop)


_Process = context.ForkServerProcess
_target = start_stub


class _Fd:
    """A descriptor in the arguments of a child, which receives a duplicate in its place."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[object, ...]:
        return received, (reduction.DupFd(self._fd),)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide `__main__` while a child starts: the child would import it again, and a stub does not need it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
