# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Signals in processes that are forked."""

import subprocess
import sys

import pytest

# Forks after the signals are noted; the fork forgets them and fails if it has kept a descriptor. asyncio does what this
# does after a fork, from Python 3.12 on.
PROGRAM = """
import os, signal
from pyruntime.stub.guardian import forget_signals, note_signals
if RESET:
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
before = os.listdir("/proc/self/fd")
noted = note_signals()
pid = os.fork()
if not pid:
    forget_signals(noted)
    os._exit(0 if os.listdir("/proc/self/fd") == before and signal.set_wakeup_fd(-1) == -1 else 1)
assert os.waitpid(pid, 0) == (pid, 0)
assert signal.set_wakeup_fd(-1) == noted[1].fileno()
"""


@pytest.mark.processes
@pytest.mark.parametrize("reset", [False, True])
def test_forget_signals(reset):
    """A fork has nothing of the signals of its parent, which keeps them, also where the fork was reset already."""
    subprocess.run([sys.executable, "-c", PROGRAM.replace("RESET", str(reset))], check=True)
