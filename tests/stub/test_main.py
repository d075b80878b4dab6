# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The signals of a stub, and of processes that its model forks."""

import subprocess
import sys

import pytest

# A child that gets a signal before anything that the stub does in it.
FORKS = """
import os, signal, sys
from pyruntime.stub import main

signum = signal.Signals[sys.argv[1]]
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signum))
for each in main.IGNORED:
    signal.signal(each, main._ignore)
main._heed_in_children()
os.kill(os.getpid(), signum)
pid = os.fork()
if pid == 0:
    os._exit(0)
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_to_a_new_child(name):
    """A stub ignores these signals. A process that it forks ends by them, also by one that comes at once."""
    done = subprocess.run([sys.executable, "-c", FORKS, name], capture_output=True, text=True, check=True)
    assert int(done.stdout) == {"SIGINT": -2, "SIGTERM": -15}[name]
