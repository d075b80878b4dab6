# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Messages about crashes in native code, and the signals of processes that native code forks."""

import os
import re
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

# Loads the extension, prepares the process, and goes on.
PREPARED = """
import ctypes, faulthandler, os, signal, sys
from pyruntime.runtime.native import _triton
from pyruntime.runtime.native.process import prepare_process
"""
FORK = """
libc = ctypes.PyDLL(None)
child = libc.fork()
if child == 0:
    libc.pause()
    os._exit(7)
os.kill(child, {signum})
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(code):
    """The exit status and the output of a Python that runs `code`."""
    # Sanitizers, which come this way, have signal handlers of their own.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-c", PREPARED + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("first", ["faulthandler.enable()", "", "prepare_process(_triton)"])
@pytest.mark.parametrize(("crash", "signum"), [("ctypes.string_at(0)", signal.SIGSEGV), ("os.abort()", signal.SIGABRT)])
def test_crash(first, crash, signum):
    """The native stack is written once, beside Python's own report, and the process still ends by the signal."""
    done = run(f"{first}\nprepare_process(_triton)\nfaulthandler.enable()\n{crash}")
    assert done.returncode == -signum
    assert done.stderr.count("Current thread's C stack trace") == 1
    assert re.search(r'^  Binary file ".*libc\..*", at .*\+0x[0-9a-f]+ \[0x[0-9a-f]+\]$', done.stderr, re.MULTILINE)
    assert done.stderr.count("Fatal Python error: ") == 1
    assert 'File "<string>"' in done.stderr


def test_crash_of_which_nobody_else_tells():
    """Python need not tell of crashes."""
    done = run("_triton.trace_crashes()\nos.kill(os.getpid(), signal.SIGBUS)")
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Binary file") > 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_forked(signum):
    """In a process that was forked without Python's knowledge, a signal that is handled here has its default effect."""
    handled = f"signal.signal({int(signum)}, lambda *_: None)\nprepare_process(_triton)\n"
    assert run(handled + FORK.format(signum=int(signum))).stdout == f"{-signum}\n"


def test_forked_from_who_only_uses_us():
    """A handler that is Python's own stays."""
    done = run(
        # A parent may have made us ignore the signal, and then Python has no handler.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "prepare_process(_triton)\n"
        "if (child := os.fork()) == 0:\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert done.stdout == "7\n"


@pytest.mark.parametrize("number", [0, -1, 64, 1 << 70])
def test_no_signal(number):
    """There are not so many."""
    from pyruntime.runtime.native import _triton

    with pytest.raises((ValueError, OverflowError)):
        _triton.reset_at_fork(number)
