# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Watchers of readiness get every change, and several of them ask the models no more often than one."""

import asyncio

import pytest

from pyruntime.runtime.frontends.common import readiness_watch
from pyruntime.runtime.frontends.common.readiness_watch import unwatch_ready, watch_ready

from ...event_loops import settle


@pytest.fixture(autouse=True)
def _asks_all_the_time(monkeypatch):
    monkeypatch.setattr(readiness_watch, "INTERVAL_S", 0)


@pytest.fixture
def run():
    """Runs a test, which leaves nothing behind."""

    def run(test):
        asyncio.run(test())
        assert readiness_watch._watches == {}

    return run


def test_all_hear_the_same(server, run):
    """Of the present, whenever they come, and of changes."""
    first, second = [], []

    async def test():
        watch_ready(server.state, first.append)
        assert first == [True]
        watch_ready(server.state, second.append)
        assert second == [True]
        server.state.exiting = True
        await settle()
        assert first == second == [True, False]
        unwatch_ready(server.state, first.append)
        server.state.exiting = False
        await settle()
        assert (first, second) == ([True, False], [True, False, True])
        unwatch_ready(server.state, second.append)

    run(test)


def test_one_question_at_a_time(server, run):
    """Models that take their time are not asked again meanwhile, however many want to know."""
    server.instance.answers_checks = False
    first, second = [], []

    async def test():
        watch_ready(server.state, first.append)
        watch_ready(server.state, second.append)
        await settle()
        assert len(server.instance.checks) == 1
        assert first == second == []
        server.instance.answer_check(False)
        assert first == second == [False]
        await settle()
        assert len(server.instance.checks) == 1
        unwatch_ready(server.state, first.append)
        unwatch_ready(server.state, second.append)
        server.instance.answer_check(True)
        await settle()
        assert first == second == [False]
        assert server.instance.checks == []

    run(test)


def test_leaving_while_the_model_is_asked(server, run):
    """A watcher that comes after the others have left asks anew; the answer to the old question is ignored."""
    server.instance.answers_checks = False
    first, second = [], []

    async def test():
        watch_ready(server.state, first.append)
        unwatch_ready(server.state, first.append)
        watch_ready(server.state, second.append)
        server.instance.answer_check(False)
        assert first == second == []
        server.instance.answer_check(True)
        assert second == [True]
        unwatch_ready(server.state, second.append)

    run(test)


def test_leaving_while_being_told(server, run):
    """A listener may have enough of it at any time, at once too."""
    heard = []

    def listener(ready):
        heard.append(ready)
        unwatch_ready(server.state, listener)

    async def test():
        watch_ready(server.state, listener)
        await settle()
        assert heard == [True]
        unwatch_ready(server.state, listener)

    run(test)
