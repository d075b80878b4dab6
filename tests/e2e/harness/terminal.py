# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A terminal with a server at it: what its user sees, and types."""

import os
import re
import sys
import termios
from contextlib import suppress

# Makes the terminal named first the one of the command that follows, as a shell would.
AT_TERMINAL = """
import os, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)
for fd in range(3):
    os.dup2(terminal, fd)
os.close(terminal)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Terminal:
    """A terminal: the text that its user sees, and the keys that they type."""

    def __init__(self):
        self._ours, theirs = os.openpty()
        self.path = os.ttyname(theirs)
        # Held open, so that the terminal outlives its processes and can be looked at afterwards.
        self.theirs = theirs
        os.set_blocking(self._ours, False)
        self._seen = b""
        self.wrapper = [sys.executable, "-c", AT_TERMINAL, self.path]

    def seen(self):
        """Everything so far, as text without what moves the cursor."""
        with suppress(BlockingIOError):
            while data := os.read(self._ours, 1 << 16):
                self._seen += data
        return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", self._seen.decode(errors="replace")).replace("\r", "")

    def type(self, text):
        os.write(self._ours, text.encode())

    def echoes(self):
        """Whether typed text is shown, as a shell leaves it."""
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ECHO)

    def close(self):
        os.close(self._ours)
        os.close(self.theirs)
