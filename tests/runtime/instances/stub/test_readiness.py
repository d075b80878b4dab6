# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Readiness questions to a model: one for all callers at a time, with a limit. The test controls the clock."""

import asyncio
import logging

import pytest

from pyruntime.runtime.execution.executor import IS_READY_TIMEOUT_S
from pyruntime.runtime.instances.stub.readiness import Readiness
from pyruntime.utils.messages import IsReady


class Connection:
    """Notes how often the stub is asked."""

    name = "m_0"

    def __init__(self):
        self.checks_ready = True
        self.asked = 0

    def check_ready(self):
        self.asked += 1


class Timer:
    def __init__(self, delay, call):
        self.delay = delay
        self.call = call
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class Loop:
    """An event loop whose time passes when a test says so."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, call):
        self.timers.append(Timer(delay, call))
        return self.timers[-1]

    def pass_time(self):
        """Everything that is due happens."""
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.cancelled:
                timer.call()


@pytest.fixture
def loop(monkeypatch):
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def connection():
    return Connection()


@pytest.fixture
def readiness(connection, loop):
    return Readiness(connection)


class TestCheck:
    def test_without_the_method(self, connection, loop):
        """A model without is_ready is ready, and is not asked."""
        connection.checks_ready = False
        told = []
        Readiness(connection).check(told.append)
        assert told == [True]
        assert connection.asked == 0

    @pytest.mark.parametrize("ready", [True, False])
    def test_answer(self, readiness, connection, loop, ready):
        """The answer of the model counts."""
        told = []
        readiness.check(told.append)
        assert (connection.asked, told) == (1, [])
        readiness.answered(IsReady(ready, ""))
        assert told == [ready]
        loop.pass_time()
        assert told == [ready]

    def test_many_at_a_time(self, readiness, connection):
        """Callers that come while the model is being asked get the same answer."""
        told = []
        for number in range(3):
            readiness.check(lambda ready, number=number: told.append((number, ready)))
        assert connection.asked == 1
        readiness.answered(IsReady(True, ""))
        assert told == [(0, True), (1, True), (2, True)]

    def test_again(self, readiness, connection):
        """A caller that comes after the answer has the model asked again."""
        told = []
        readiness.check(told.append)
        readiness.answered(IsReady(True, ""))
        readiness.check(told.append)
        assert connection.asked == 2
        readiness.answered(IsReady(False, ""))
        assert told == [True, False]

    def test_from_within(self, readiness, connection):
        """A callback may ask again at once."""
        told = []

        def ask_again(ready):
            told.append(ready)
            readiness.check(told.append)

        readiness.check(ask_again)
        readiness.answered(IsReady(True, ""))
        assert (connection.asked, told) == (2, [True])
        readiness.answered(IsReady(False, ""))
        assert told == [True, False]

    def test_of_a_model_that_cannot_say(self, readiness, caplog):
        """A model that fails to answer is not ready; the log has the reason."""
        told = []
        readiness.check(told.append)
        readiness.answered(IsReady(False, "is_ready() must return a boolean value"))
        assert told == [False]
        assert "m_0: is_ready() must return a boolean value" in caplog.text

    def test_of_a_model_that_is_not(self, readiness, caplog):
        """This is logged as debug only, because it happens whenever a model starts."""
        caplog.set_level(logging.DEBUG, "pyruntime.instances")
        readiness.check(lambda ready: None)
        readiness.answered(IsReady(False, ""))
        (record,) = caplog.records
        assert record.levelno == logging.DEBUG
        assert record.getMessage() == "Model 'm_0' is not ready (user-defined check failed)."


class TestTimeout:
    def test_is_not_ready(self, readiness, loop, caplog):
        """A model that does not answer in time is not ready."""
        told = []
        readiness.check(told.append)
        readiness.check(told.append)
        assert [timer.delay for timer in loop.timers] == [IS_READY_TIMEOUT_S]
        loop.pass_time()
        assert told == [False, False]
        assert "m_0: Timed out waiting for user-defined is_ready() response" in caplog.text

    def test_answers_too_late(self, readiness, loop):
        """A late answer is ignored, or is that for the next caller."""
        told = []
        readiness.check(told.append)
        loop.pass_time()
        readiness.answered(IsReady(True, ""))
        assert told == [False]
        readiness.check(told.append)
        readiness.answered(IsReady(True, ""))
        assert told == [False, True]

    def test_of_an_earlier_question(self, readiness, loop, caplog):
        """The timer of an answered question does not end the next one."""
        told = []
        readiness.check(told.append)
        readiness.answered(IsReady(True, ""))
        timers = list(loop.timers)
        readiness.check(told.append)
        loop.timers = timers
        loop.pass_time()
        assert told == [True]
        assert caplog.records == []
        readiness.answered(IsReady(True, ""))
        assert told == [True, True]

    def test_none(self, connection, loop):
        """Without a limit, for debugging, the answer may take any time."""
        told = []
        readiness = Readiness(connection, None)
        readiness.check(told.append)
        assert loop.timers == []
        readiness.answered(IsReady(True, ""))
        assert told == [True]


class TestDeath:
    def test_while_it_is_asked(self, readiness, loop):
        """A stub that is gone is not ready, and is not waited for."""
        told = []
        readiness.check(told.append)
        readiness.died()
        assert told == [False]
        loop.pass_time()
        assert told == [False]

    def test_otherwise(self, readiness):
        """Without callers a death has no effect."""
        readiness.died()
