# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The door between host and stub: what a fresh child process calls first.

The host names this function when it starts a child, and so never imports the stub's code itself.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def received(handed_over: Any) -> int:
    """The descriptor that the forkserver handed over, now this process's own."""
    fd: int = handed_over.detach()
    return fd


def _let_go_of_the_forkserver() -> None:
    """Close our end of the pipe that keeps the forkserver alive.

    Every child gets one, to start children of its own with. But the forkserver must end with the host, because stubs
    end with the forkserver; and it ends when the last holder of that pipe does.
    """
    from multiprocess import forkserver  # which a stub of another interpreter would not have

    server = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


def start_stub(*args: Any) -> None:
    """Run a stub: see `run` in stub/main.py."""
    _let_go_of_the_forkserver()
    importlib.import_module("pyruntime.stub.main").run(*args)
