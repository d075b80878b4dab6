# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The levels of native code's log messages, and how these come to Python."""

from ctypes import c_bool, c_int

import pytest

from pyruntime.runtime.native import _triton

# The flags of _triton.set_log, and the levels of an event.
ERRORS, WARNINGS, INFOS = 1, 2, 4
ERROR, WARNING, INFO, VERBOSE = range(4)
MESSAGES_MAX = 10_000


@pytest.fixture(autouse=True)
def _levels():
    """Discard the events of other tests, and restore the levels afterwards."""
    _triton.drain()
    yield
    _triton.set_log(ERRORS | WARNINGS | INFOS, 0)
    _triton.drain()


def log(interface, level, message=b"a message", file=b"/a/b/c.cc", line=7):
    return interface.call("LogMessage", c_int(level), file, c_int(line), message)


def drained():
    return [event[1:] for event in _triton.drain() if event[0] == _triton.LOG]


def test_event(interface):
    """A message comes with its level, the file's name without the folders, and the line, in order."""
    _triton.set_log(ERRORS | WARNINGS | INFOS, 1)
    for level in (interface.INFO, interface.WARN, interface.ERROR, interface.VERBOSE):
        assert log(interface, level, b"two\nlines %d" % level) is None
    assert log(interface, interface.INFO, b"\xff", b"plain.cc") is None
    assert drained() == [
        (INFO, "c.cc", 7, "two\nlines 0"),
        (WARNING, "c.cc", 7, "two\nlines 1"),
        (ERROR, "c.cc", 7, "two\nlines 2"),
        (VERBOSE, "c.cc", 7, "two\nlines 3"),
        (INFO, "plain.cc", 7, "�"),
    ]


@pytest.mark.parametrize(("levels", "verbose", "wanted"), [
    (0, 0, set()),
    (ERRORS, 0, {"ERROR"}),
    (WARNINGS, 0, {"WARN"}),
    (INFOS, 0, {"INFO"}),
    (0, 1, {"VERBOSE"}),
    (ERRORS | WARNINGS | INFOS, 2, {"ERROR", "WARN", "INFO", "VERBOSE"}),
])  # fmt: skip
def test_levels(interface, levels, verbose, wanted):
    """A level that is off is not logged, and native code can ask for it."""
    _triton.set_log(levels, verbose)
    for name in ("INFO", "WARN", "ERROR", "VERBOSE"):
        level = getattr(interface, name)
        assert interface.get(c_bool, "LogIsEnabled", c_int(level)) == (name in wanted)
        assert log(interface, level) is None
        assert len(drained()) == (name in wanted)


@pytest.mark.parametrize("level", [-1, 4])
def test_level_that_is_none(interface, level):
    """There are four levels."""
    assert not interface.get(c_bool, "LogIsEnabled", c_int(level))
    assert log(interface, level) == (interface.INVALID_ARG, f"unknown logging level '{level}'")
    assert drained() == []


def test_flood(interface):
    """Messages that are not read do not fill the memory: further ones are only counted, which the next message says."""
    for _ in range(MESSAGES_MAX + 3):
        assert log(interface, interface.INFO) is None
    assert len(drained()) == MESSAGES_MAX
    assert log(interface, interface.INFO) is None
    assert log(interface, interface.INFO) is None
    lost = "3 messages before this one were too many to be kept"
    assert [message for *_, message in drained()] == [f"a message\n{lost}", "a message"]
