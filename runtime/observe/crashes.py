# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Separates crash reports from the output of a model, line by line. (pure)

A report is the output of faulthandler, after the C stack trace that native/triton/process.cc writes.
"""

from __future__ import annotations

import re

_BEGIN = ("Current thread's C stack trace ", "Fatal Python error: ")
# The lines that may follow, in any CPython from 3.8 on: blank lines between threads, their headings, frames of Python
# and C, and the list of extension modules.
_REST = re.compile(
    r'$|Current thread|Thread 0x|  File "|  Binary file "|  \.\.\.|  <|<Cannot show|  Garbage-collecting'
    r"|Python runtime state: |Extension modules: "
)


class CrashReport:
    """Tracks whether the output of one process is in a crash report."""

    def __init__(self) -> None:
        self._inside = False

    def has(self, line: str) -> bool:
        """Whether the next line is part of a report."""
        self._inside = line.startswith(_BEGIN) or (self._inside and _REST.match(line) is not None)
        return self._inside
