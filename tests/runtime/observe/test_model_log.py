# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Log records of models in the server's log: all of them, or those within the budget and a line about the rest."""

import asyncio
import logging
from itertools import count

import pytest

from pyruntime.runtime.observe import model_log
from pyruntime.runtime.observe.log_budget import LOG_BURST_BYTES, LOG_BYTES_PER_S
from pyruntime.runtime.observe.model_log import LINE_BYTES, LINES_AT_ONCE_MAX, ModelLog

_names = count()


class Written(logging.Handler):
    """Keeps records."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def lines(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture
def logger():
    made = logging.getLogger(f"a test of logs {next(_names)}")
    made.propagate = False
    made.setLevel(logging.INFO)
    return made


@pytest.fixture
def written(logger):
    handler = Written()
    logger.addHandler(handler)
    return handler


@pytest.fixture
def log(logger):
    return ModelLog(logger, "m_0: ")


def dropped(size):
    return f"m_0: {size} bytes of output were dropped: on average, {LOG_BYTES_PER_S} bytes a second are logged"


BEGINS = (
    f"m_0: output is dropped for a while: {LOG_BURST_BYTES} bytes may be logged at once, and {LOG_BYTES_PER_S} a second"
)


def test_record(log, written):
    """Each line of a record is a line, with the file and the line number of the model."""
    log.write(logging.ERROR, "one\ntwo", "model.py", 7)
    log.write(logging.INFO, "", "model.py", 8)
    assert written.lines == ["m_0: one", "m_0: two", "m_0: "]
    assert [(record.stub_file, record.stub_line) for record in written.records] == [
        ("model.py", 7),
        ("model.py", 7),
        ("model.py", 8),
    ]
    assert [record.levelname for record in written.records] == ["ERROR", "ERROR", "INFO"]


def test_traceback(log, written):
    """From its first line on, a traceback is written for people; what is before it is a message."""
    log.write(logging.ERROR, 'failed\nTraceback (most recent call last):\n  File "a"', "model.py", 7)
    assert written.lines == ["m_0: failed", "m_0: Traceback (most recent call last):", 'm_0:   File "a"']
    assert [record.in_traceback for record in written.records] == [False, True, True]


def test_syntax_error(log, written):
    """So is a syntax error, which has no frames."""
    log.write(logging.ERROR, 'failed\n  File "a", line 1\n    1 +\nSyntaxError: no', "model.py", 1)
    assert [record.in_traceback for record in written.records] == [False, True, True, True]


def test_lines_of_a_record_stand_below_each_other(log, written):
    """For people, all lines but the first are without the name of the model."""
    log.write(logging.ERROR, "failed\nTraceback (most recent call last):\n", "model.py", 7)
    first, second = written.records
    assert not hasattr(first, "continues")
    assert (second.continues, second.people) == (True, "Traceback (most recent call last):")


def test_crash_report(log, written):
    """The first line of a crash report has the name of the model; what says nothing of the model is a detail."""
    log.write_crash("Fatal Python error: Aborted", is_first=True, is_detail=False)
    log.write_crash("  File ours", is_first=False, is_detail=True)
    first, second = written.records
    assert not hasattr(first, "continues")
    assert (second.getMessage(), second.people, second.only_verbose) == ("m_0:   File ours", "  File ours", True)
    assert {record.levelname for record in written.records} == {"ERROR"}


def test_printed_line(log, written):
    """A line that a model printed has no file of the model."""
    log.write_line(logging.INFO, "hello %s")
    assert written.lines == ["m_0: hello %s"]
    assert not hasattr(written.records[0], "stub_file")


def test_what_is_not_logged_costs_nothing(log, written):
    """Records of a level that is switched off do not use up the budget."""
    for _ in range(2 * LOG_BURST_BYTES // 60_000):
        log.write(logging.DEBUG, "x" * 60_000, "model.py", 1)
        log.write_line(logging.DEBUG, "x" * 60_000)
    assert not log.is_silenced()
    assert written.lines == []


def flood(log):
    """Log until the budget is spent; the number of lines."""
    lines = 0
    while not log.is_silenced():
        log.write_line(logging.INFO, "x" * 9_900)
        lines += 1
    return lines


def test_flood(log, written, monkeypatch):
    """Beyond the budget nothing is logged, and one line says how much that is."""

    async def scenario():
        monkeypatch.setattr(model_log, "SILENCE_S", 0.0)
        lines = flood(log)
        assert lines * (9_900 + LINE_BYTES) >= LOG_BURST_BYTES
        for _ in range(3):
            log.write_line(logging.INFO, "lost")
        log.write(logging.ERROR, "lost\nlost", "model.py", 1)
        log.drop(1000)
        assert written.lines[lines:] == [BEGINS]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert written.lines[lines:] == [BEGINS, dropped(1000 + 5 * (4 + LINE_BYTES))]
        assert written.records[-1].levelname == "WARNING"

    asyncio.run(scenario())


def test_close(log, written):
    """A model that ends is reported about at once, and once."""

    async def scenario():
        lines = flood(log)
        log.drop(5)
        log.close()
        log.close()
        assert written.lines[lines:] == [BEGINS, dropped(5)]

    asyncio.run(scenario())


def test_close_of_a_quiet_log(log, written):
    """Without dropped lines there is no line about them."""
    log.drop(0)
    log.close()
    assert written.lines == []


def test_many_lines_at_once(log, written):
    """A record of very many lines does not keep the server from its requests."""

    async def scenario():
        log.write(logging.INFO, "x\n" * (LINES_AT_ONCE_MAX + 7), "model.py", 1)
        log.close()

    asyncio.run(scenario())
    assert written.lines == ["m_0: x"] * LINES_AT_ONCE_MAX + [BEGINS, dropped(7)]
