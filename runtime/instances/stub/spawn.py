# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Starts stub processes under an interpreter of their own, for models that have an environment.

Stubs of the host's interpreter come from the forkserver instead, which is faster: see launch.py. Both kinds have the
same methods.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import msgpack

from pyruntime.runtime.environments.environment import Environment
from pyruntime.runtime.instances.stub.supervisor import ProcessExit

# Named by its path, because the host imports no code of the stub.
BOOTSTRAP = Path(__file__).resolve().parents[3] / "stub" / "bootstrap.py"


class SpawnedStub:
    """A stub process. `exited` resolves, once, to how it ended. Cancelling a wait for it is harmless."""

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self._loop = loop
        self.pid = process.pid
        self.exited: asyncio.Future[ProcessExit] = loop.create_future()
        # Readable once the process has ended. Its number is not reused before we wait for it, because it is our child.
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._on_exit)

    def kill(self) -> None:
        """Send SIGKILL, if the process still exists."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        # The processes that its model started and did not end. SIGTERM, because some of them have to clean up.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)
        code = self._process.wait()
        if not self.exited.done():
            self.exited.set_result(ProcessExit(code))


def spawn_stub(
    environment: Environment,
    name: str,
    sock: socket.socket,
    grants: socket.socket,
    output_fd: int,
    requests_fd: int,
    responses_fd: int,
    growth_bytes: int,
    loop: asyncio.AbstractEventLoop,
) -> SpawnedStub:
    """Start the stub of instance `name`; it inherits copies of the descriptors. The caller closes its own.

    Blocks until the interpreter has been executed, milliseconds. Raises OSError if that fails.
    """
    arguments = {
        "name": name,
        "sock": sock.fileno(),
        "grants": grants.fileno(),
        "output_fd": output_fd,
        "requests_fd": requests_fd,
        "responses_fd": responses_fd,
        "growth_bytes": growth_bytes,
        "msgpack": os.path.dirname(msgpack.__file__),
        "at_terminal": environment.at_terminal,
    }
    # Only our own process group can read from our terminal.
    shared = environment.at_terminal
    process = subprocess.Popen(
        [environment.interpreter, str(BOOTSTRAP), json.dumps(arguments)],
        stdin=None if shared else subprocess.DEVNULL,
        # Output from before the stub's own code runs is logged as well, such as why the interpreter fails.
        stdout=None if shared else output_fd,
        stderr=None if shared else output_fd,
        env=environment.variables,
        pass_fds=[sock.fileno(), grants.fileno(), output_fd, requests_fd, responses_fd],
        process_group=None if shared else 0,
    )
    try:
        return SpawnedStub(process, loop)
    except OSError:  # no descriptors are left to watch it with
        process.kill()
        process.wait()
        raise
