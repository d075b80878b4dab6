# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest

from pyruntime.runtime.observe import crashes
from pyruntime.runtime.observe.crashes import CrashReport

REPORT = """\
Fatal Python error: Segmentation fault

Thread 0x00007f6c5effe6c0 (most recent call first):
  File "model.py", line 7 in wait
  ...

Current thread 0x00007f6c683ff6c0 [worker] (most recent call first):
  Garbage-collecting
  <no Python frame>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/lib/libpython3.14.so", at _Py_DumpStack+0x48

Extension modules: numpy (total: 1)"""


def told_apart(lines):
    report = CrashReport()
    return [line for line in lines if report.has(line)]


def test_all_of_a_report():
    """All lines of a report are recognised, and lines before and after it are not."""
    lines = REPORT.splitlines()
    assert (
        told_apart(["printed", "", '  File "looks like a frame", line 1', *lines, "printed", "", *lines]) == lines * 2
    )


def test_what_comes_first():
    """The native stack may precede the report."""
    lines = ["Current thread's C stack trace (most recent call first):", '  Binary file "a.so", at f+0x48 [0x7f]', ""]
    assert told_apart(["printed", *lines, *REPORT.splitlines(), "printed"]) == lines + REPORT.splitlines()


def test_details():
    """A person is shown the thread that crashed, without frames of pyruntime; each report has one first line."""
    ours = Path(crashes.__file__).parents[2]
    lines = [
        "Fatal Python error: Aborted",
        "",
        "Thread 0x1 (most recent call first):",
        '  File "/models/m/1/model.py", line 1 in wait',
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "/models/m/1/model.py", line 2 in execute',
        f'  File "{ours}/stub/worker.py", line 3 in run',
        '  File "<string>", line 1 in <module>',
        "",
        "Extension modules: numpy (total: 1)",
    ]
    report = CrashReport()
    seen = [(report.has(line), report.is_first, report.is_detail) for line in lines * 2]
    assert all(inside for inside, _, _ in seen)
    assert [line for line, (_, first, _) in zip(lines, seen, strict=False) if first] == lines[:1]
    assert [line for line, (_, _, detail) in zip(lines, seen, strict=False) if not detail] == [lines[0], *lines[5:7]]


@pytest.mark.processes
@pytest.mark.parametrize(
    "code",
    ["ctypes.string_at(0)", "os.abort()", "[threading.Thread(target=time.sleep, args=(9,)).start(), os.abort()]"],
)
def test_what_this_python_writes(code):
    """The report that this Python writes is told apart from earlier output."""
    program = f"import ctypes, os, sys, threading, time\nprint('printed', file=sys.stderr)\n{code}"
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], stderr=subprocess.PIPE, text=True)
    lines = done.stderr.splitlines()
    assert len(lines) > 3
    assert told_apart(lines) == lines[1:]
