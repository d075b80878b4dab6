# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that start processes have the marker `processes`; `make test-fast` leaves them out.

Those in tests/e2e all have it. Any other test that starts a process fails there.
"""

import _posixsubprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

MARKER = "processes"
END_TO_END = Path(__file__).resolve().parent.parent / "e2e"
# The audit events of the interpreter for the start of a process.
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})


class Guard:
    """`test` is the one that runs and may start no process; None while processes may be started."""

    test = None

    def audit(self, event, arguments):
        if event in STARTS:
            self.refuse(event, arguments)

    def refuse(self, event, arguments):
        if self.test is not None:
            # No Exception, which the tested code might handle.
            raise pytest.fail.Exception(f"{self.test} is not marked `{MARKER}` and does {event}{arguments[:2]}")


guard = Guard()


@contextmanager
def allowed():
    """Processes may be started here, whichever test runs: by a fixture for many tests, such as a compiler."""
    test, guard.test = guard.test, None
    try:
        yield
    finally:
        guard.test = test


def pytest_configure(config):
    sys.addaudithook(guard.audit)
    # The one way that is not audited; multiprocessing starts processes in it.
    fork_exec = _posixsubprocess.fork_exec

    def guarded(*arguments):
        guard.refuse("fork_exec", arguments)
        return fork_exec(*arguments)

    _posixsubprocess.fork_exec = guarded


def pytest_collection_modifyitems(items):
    for item in items:
        if END_TO_END in item.path.parents:
            item.add_marker(MARKER)
    # Files that take long come first, so that at the end no worker waits for one that has just begun such a file.
    long = {item.path for item in items if item.get_closest_marker(MARKER)}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    guard.test = None if item.get_closest_marker(MARKER) else item.nodeid
    try:
        return (yield)
    finally:
        guard.test = None
