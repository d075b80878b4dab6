# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The entry point of a forked stub.

The host names this function when it starts a child, so that it never imports the stub's code itself.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def received(handed_over: Any) -> int:
    """The descriptor that the forkserver passed, now owned by this process."""
    fd: int = handed_over.detach()
    return fd


def _release_forkserver() -> None:
    """Close our end of the pipe that keeps the forkserver alive.

    Every child inherits one, to start children of its own. But the forkserver must end with the host, because stubs end
    with the forkserver, and it ends only when all copies of that pipe are closed.
    """
    from multiprocess import forkserver  # imported here, because stubs of other interpreters may lack it

    server = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


def start_stub(*args: Any) -> None:
    """Run a stub: see `run` in stub/main.py."""
    _release_forkserver()
    importlib.import_module("pyruntime.stub.main").run(*args)
