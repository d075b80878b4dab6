# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The door between host and stub: what a fresh child process calls first.

The host names this function when it starts a child, and so never imports the stub's code itself.
"""

from __future__ import annotations

import importlib
from typing import Any


def received(handed_over: Any) -> int:
    """The descriptor that the forkserver handed over, now this process's own."""
    fd: int = handed_over.detach()
    return fd


def start_stub(*args: Any) -> None:
    """Run a stub: see `run` in stub/main.py."""
    importlib.import_module("pyruntime.stub.main").run(*args)
