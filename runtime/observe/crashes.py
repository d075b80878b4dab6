# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Separates crash reports from the output of a model, line by line. (pure)

A report is the output of faulthandler, after the C stack trace that native/triton/process.cc writes.
"""

from __future__ import annotations

import re
from pathlib import Path

_BEGIN = ("Current thread's C stack trace ", "Fatal Python error: ")
# The lines that may follow, in any CPython from 3.8 on: blank lines between threads, their headings, frames of Python
# and C, and the list of extension modules.
_REST = re.compile(
    r'$|Current thread|Thread 0x|  File "|  Binary file "|  \.\.\.|  <|<Cannot show|  Garbage-collecting'
    r"|Python runtime state: |Extension modules: "
)


# The frames below those of a model are pyruntime's, and the command that started its process.
_ROOT = Path(__file__).resolve().parent.parent.parent
_PARTS = ("stub", "utils", "runtime")
_OURS = (*(f'  File "{_ROOT}/{part}/' for part in _PARTS), '  File "<string>", line 1 in <module>')
_OTHER_THREAD, _THIS_THREAD = "Thread 0x", "Current thread"


class CrashReport:
    """Tracks whether the output of one process is in a crash report.

    `is_first`: the line that was asked about begins one; `is_detail`: it says nothing of what the model did.
    """

    def __init__(self) -> None:
        self._inside = False
        self._in_other_thread = False
        self.is_first = False
        self.is_detail = False

    def has(self, line: str) -> bool:
        """Whether the next line is part of a report."""
        begins = line.startswith(_BEGIN)
        self.is_first = begins and not self._inside
        self._inside = begins or (self._inside and _REST.match(line) is not None)
        self._in_other_thread = line.startswith(_OTHER_THREAD) or (
            self._in_other_thread and not begins and not line.startswith(_THIS_THREAD)
        )
        self.is_detail = not line or self._in_other_thread or line.startswith((*_OURS, "Extension modules: "))
        return self._inside
