# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tells what is written about a crash from what a model prints, line by line. (pure)

That is what faulthandler writes, and before it where native code was: see native/triton/process.cc.
"""

from __future__ import annotations

import re

_BEGIN = ("Current thread's C stack trace ", "Fatal Python error: ")
# Everything that may follow, in any CPython from 3.8 on: blank lines between threads, their headings, frames of Python
# and of C, and the modules that have C code.
_REST = re.compile(
    r'$|Current thread|Thread 0x|  File "|  Binary file "|  \.\.\.|  <|<Cannot show|  Garbage-collecting'
    r"|Python runtime state: |Extension modules: "
)


class CrashReport:
    """Where in such a report the output of one process is, if it is in one."""

    def __init__(self) -> None:
        self._inside = False

    def has(self, line: str) -> bool:
        """Whether the next line is part of a report."""
        self._inside = line.startswith(_BEGIN) or (self._inside and _REST.match(line) is not None)
        return self._inside
