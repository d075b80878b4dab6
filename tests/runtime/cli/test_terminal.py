# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import termios

import pytest

pytestmark = pytest.mark.processes

# Switches echo off as a prompt does, and ends without putting it back.
CODE = """
import os, signal, sys, termios
from pyruntime.runtime.cli.terminal import terminal_kept

if sys.argv[1:]:
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))  # it is ours from now on
with terminal_kept():
    settings = termios.tcgetattr(0)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(0, termios.TCSANOW, settings)
    if sys.argv[1:]:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpgrp())
            os._exit(0)
        os.waitpid(child, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
"""


@pytest.mark.parametrize("words", [[], ["background"]])
def test_terminal_is_left_as_it_was(words):
    """Changes of a debugger to the terminal are undone, also by a process that is no longer in the foreground."""
    ours, theirs = os.openpty()
    try:
        before = termios.tcgetattr(theirs)
        subprocess.run([sys.executable, "-c", CODE, *words], stdin=theirs, check=True)
        assert termios.tcgetattr(theirs) == before
        assert before[3] & termios.ECHO
    finally:
        os.close(ours)
        os.close(theirs)


def test_without_terminal():
    """Where there is no terminal there is nothing to do."""
    code = CODE[: CODE.index("    settings =")] + "    print('inside')\n"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "inside\n"
