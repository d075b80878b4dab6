# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Preserves the terminal that `pyruntime serve --debug` shares with a debugger."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDIN = 0
NO_TERMINAL = (
    "--debug: standard input is no terminal, so breakpoint() finds nobody to ask; "
    "a debugger that is attached by network works all the same"
)


def has_terminal() -> bool:
    """Whether a user can type commands for a debugger."""
    return os.isatty(STDIN)


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Restore the terminal's modes at the end: a debugger that is killed at its prompt leaves it without echo."""
    if not has_terminal():
        yield
        return
    import termios  # only a server in debug mode needs it

    before = termios.tcgetattr(STDIN)
    try:
        yield
    finally:
        # A background process that changes a terminal is stopped by SIGTTOU.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with suppress(termios.error):  # it has been closed
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
