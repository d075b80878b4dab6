# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from pyruntime.runtime.observe.proc_status import GONE, ThreadStatus, is_handled, parent_of

TEXT = """Name:\tpython3: a
State:\tS (sleeping)
Tgid:\t4711
NStgid:\t4711\t12
SigPnd:\t0000000000000000
ShdPnd:\t0000000000000002
SigBlk:\t1000000000000000
SigCgt:\t1000000000000400
"""
IDLE = ThreadStatus.parse(TEXT)
SIGNAL = 61
BIT = 1 << 60


def status(**changes):
    """A thread that neither waits for a signal nor blocks one, but for `changes`."""
    fields = {"state": "R", "own_pid": 12, "pending": 0, "blocked": 0, "caught": BIT, **changes}
    return ThreadStatus(**fields)


def test_parse():
    """Numbers and masks are read, the number that the process has for itself among them."""
    assert ThreadStatus("S", 12, 2, BIT, BIT | 1 << 10) == IDLE
    assert IDLE.catches(SIGNAL)
    assert IDLE.blocks(SIGNAL)
    assert not IDLE.awaits(SIGNAL)
    assert IDLE.awaits(2)


def test_parse_our_own():
    """The file of a real process is one."""
    own = ThreadStatus.parse(Path("/proc/self/status").read_text())
    assert (own.state, own.stands_still) == ("R", "")


@pytest.mark.parametrize("text", ["", "State:\n", TEXT.replace("SigCgt", "Sig"), TEXT.replace("4711\t12", "x"), "a"])
def test_parse_something_else(text):
    """A text in another format is refused."""
    with pytest.raises(ValueError):
        ThreadStatus.parse(text)


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        ("R", ""),
        ("D", "waits for a device"),
        ("S", ""),
        ("T", "is stopped"),
        ("t", "is held by a debugger"),
        ("Z", GONE),
    ],
)
def test_stands_still(letter, words):
    """Only some states keep a process from handling a signal."""
    assert status(state=letter).stands_still == words


@pytest.mark.parametrize(
    ("threads", "blocked_before", "handled"),
    [
        ({1: status(), 2: status()}, set(), True),
        ({1: status(pending=BIT), 2: status()}, set(), False),
        ({1: status(), 2: status(blocked=BIT)}, set(), False),
        ({1: status(), 2: status(blocked=BIT)}, {2}, True),
        ({1: status(blocked=BIT), 2: status(blocked=BIT)}, {2}, False),
        ({1: status(pending=BIT >> 1, blocked=BIT << 1)}, set(), True),
    ],
)
def test_is_handled(threads, blocked_before, handled):
    """A handler runs while a thread blocks its signal that did not before; until then the signal is pending."""
    assert is_handled(threads, SIGNAL, blocked_before) is handled


def test_parent():
    """It comes after the state, behind a name that may look like anything."""
    assert parent_of("7 (a) b) (c) S 3 7 7 0") == 3
    assert parent_of("1 (init) S 0 1 1") == 0


@pytest.mark.parametrize("text", ["", "7 (a", "7 (a) S", "7 (a) S x"])
def test_what_is_no_stat_file(text):
    """It is refused."""
    with pytest.raises(ValueError, match=r"not the stat file|invalid literal"):
        parent_of(text)
