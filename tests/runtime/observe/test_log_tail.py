# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import logging
from dataclasses import replace

import pytest

from pyruntime.runtime.observe.log_tail import LINE_CHARS_KEPT_MAX, LINES_KEPT_MAX, LogTail
from pyruntime.runtime.settings import ServerSettings

SETTINGS = ServerSettings(("/models",))
LOG = logging.getLogger("pyruntime.test")


@pytest.fixture
def tail(monkeypatch):
    monkeypatch.setattr(logging.getLogger("pyruntime"), "level", logging.DEBUG)
    made = LogTail(SETTINGS)
    made.attach()
    yield made
    made.detach()


def test_lines(tail):
    """Each record is one line, with its number, its level, and the place in the model where it has one."""
    LOG.info("one %d", 1)
    LOG.error("two", extra={"stub_file": "model.py", "stub_line": 7})
    first, second = tail.after(0)
    assert (first.number, first.level, first.file, first.message) == (1, "I", "test_log_tail.py", "one 1")
    assert (second.number, second.level, second.file, second.line, second.message) == (2, "E", "model.py", 7, "two")
    assert second.time_ms >= first.time_ms > 0


def test_new_lines_only(tail):
    """A reader gets what it does not have; all, if it has the lines of another server."""
    for index in range(3):
        LOG.info("%d", index)
    assert [line.message for line in tail.after(1)] == ["1", "2"]
    assert tail.after(3) == []
    assert [line.message for line in tail.after(4)] == ["0", "1", "2"]


def test_limits(tail):
    """The oldest lines go first, and long ones are cut."""
    for index in range(LINES_KEPT_MAX + 5):
        LOG.info("%d", index)
    kept = tail.after(0)
    assert len(kept) == LINES_KEPT_MAX
    assert kept[0].message == "5"
    LOG.info("%s", "x" * (LINE_CHARS_KEPT_MAX + 1))
    assert tail.after(0)[-1].message == "x" * LINE_CHARS_KEPT_MAX + " ..."


def test_tracebacks_and_tables(tail):
    """They are part of the line's text."""
    try:
        raise ValueError("wrong")
    except ValueError:
        LOG.exception("failed")
    LOG.info("Models", extra={"table": "| a |"})
    failed, table = tail.after(0)
    assert failed.message.startswith("failed\nTraceback")
    assert failed.message.endswith("ValueError: wrong")
    assert table.message == "Models\n| a |"


def test_what_cannot_be_formatted(tail):
    """It is left to the handler that writes the log."""
    tail.emit(logging.LogRecord("pyruntime", logging.INFO, "f", 1, "%d", ("x",), None))
    assert tail.after(0) == []


def test_levels(tail):
    """Only levels that are logged are kept."""
    LOG.debug("verbose")
    tail.adjust(replace(SETTINGS, log_verbose=1, log_info=False))
    LOG.debug("verbose")
    LOG.info("info")
    assert [line.level for line in tail.after(0)] == ["V"]


def test_detached(tail):
    """Nothing is kept any more."""
    tail.detach()
    LOG.info("one")
    assert tail.after(0) == []
