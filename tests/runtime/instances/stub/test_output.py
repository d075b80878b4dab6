# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The output of a stub, as it comes out of its pipe."""

import logging
import os

import pytest

from pyruntime.runtime.instances.stub.output import OutputReader
from pyruntime.runtime.observe.model_log import LINES_AT_ONCE_MAX


class Log:
    """A ModelLog that can be silenced."""

    def __init__(self):
        self.lines = []
        self.dropped = 0
        self.silenced = False
        self.closed = False

    def is_silenced(self):
        return self.silenced

    def write_line(self, level, line):
        self.lines.append((logging.getLevelName(level), line))

    def write_crash(self, line, is_first, is_detail):
        self.lines.append(("CRASH", line))

    def drop(self, size):
        self.dropped += size

    def close(self):
        self.closed = True


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def reader(log):
    return OutputReader(log)


def test_lines(reader, log):
    """Lines are logged when they are complete, and the last one when the pipe is closed."""
    reader.data_received(b"one\ntw")
    assert log.lines == [("INFO", "one")]
    reader.data_received(b"o\nthree")
    reader.connection_lost(None)
    assert log.lines == [("INFO", "one"), ("INFO", "two"), ("INFO", "three")]
    assert log.closed


def test_crash_report(reader, log):
    """The lines of a crash report are logged as such."""
    reader.data_received(b"begins\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call\n")
    assert [level for level, _ in log.lines] == ["INFO", "CRASH", "CRASH", "CRASH"]


def test_many_lines_at_once(reader, log):
    """The others are only counted."""
    reader.data_received(b"ab\n" * (LINES_AT_ONCE_MAX + 5))
    assert len(log.lines) == LINES_AT_ONCE_MAX
    assert log.dropped == 10


def test_silenced(reader, log):
    """Output of a silenced model is read and counted, and not logged."""
    reader.data_received(b"one\nlost ")
    log.silenced = True
    reader.data_received(b"x" * 1000 + b"\n" * 1000)
    reader.data_received(b"y" * 1000)
    assert log.dropped == 3000
    log.silenced = False
    reader.data_received(b"three\n")
    assert log.lines == [("INFO", "one"), ("INFO", "three")]


def test_the_rest_is_read_before_the_pipe_is_closed(reader, log):
    """What was written just before the end is not lost, and nobody waits for more."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    with open(read_fd, "rb", 0), open(write_fd, "wb", 0) as pipe:
        reader.read_rest(read_fd)
        pipe.write(b"last\n")
        reader.read_rest(read_fd)
    assert log.lines == [("INFO", "last")]
