# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""When executions are overdue, on a clock that the test moves."""

import pytest

from pyruntime.runtime.instances.stub.execution_timer import NS_PER_MS, ExecutionTimer

LIMIT_MS = 100


class Stub:
    """Executions that begin and end as the test says, over a clock and the timers of an event loop."""

    def __init__(self):
        self.now_ms = 1000.0
        self.begun = {}
        self.waited_ms = 0
        self.expired = []
        self.due = {}
        self.timer = ExecutionTimer(LIMIT_MS, self, self._later, lambda: int(self.now_ms * NS_PER_MS))

    def executions(self):
        return [(number, int(begin * NS_PER_MS)) for number, begin in self.begun.items()]

    def last_wait_ns(self, now_ns):
        return int(self.waited_ms * NS_PER_MS)

    def expire(self, numbers, limit_ms):
        assert limit_ms == LIMIT_MS
        self.expired.append(set(numbers))

    def _later(self, wait_s, call_back):
        timer = Timer(self.due)
        self.due[timer] = (self.now_ms + wait_s * 1000, call_back)
        return timer

    def begin(self, number):
        self.begun[number] = self.now_ms
        self.timer.begin()

    def end(self, number):
        del self.begun[number]

    def run(self, ms):
        """Let time pass, and the timers ring at theirs."""
        end = self.now_ms + ms
        while self.due and min(at for at, _ in self.due.values()) <= end:
            timer = min(self.due, key=lambda each: self.due[each][0])
            self.now_ms, call_back = self.due.pop(timer)
            call_back()
        self.now_ms = end


class Timer:
    def __init__(self, due):
        self._due = due

    def cancel(self):
        self._due.pop(self, None)


@pytest.fixture
def stub():
    return Stub()


def test_an_execution_is_overdue_at_the_limit(stub):
    stub.begin(1)
    stub.run(LIMIT_MS)
    assert stub.expired == []
    stub.run(1)
    assert stub.expired == [{1}]


def test_an_answer_that_came_while_the_server_stood_still_is_in_time(stub):
    """The timer rings before the answer is read."""
    stub.begin(1)
    timer = next(iter(stub.due))
    _, call_back = stub.due.pop(timer)
    stub.now_ms += 100 * LIMIT_MS
    call_back()
    assert stub.expired == []
    stub.end(1)
    stub.begin(2)
    stub.run(LIMIT_MS)
    assert stub.expired == []


def test_an_execution_that_ends_in_time_is_not_overdue(stub):
    stub.begin(1)
    stub.run(LIMIT_MS - 1)
    stub.end(1)
    stub.run(10 * LIMIT_MS)
    assert stub.expired == []
    assert not stub.due


def test_each_execution_has_the_whole_time(stub):
    stub.begin(1)
    stub.run(60)
    stub.end(1)
    stub.begin(2)
    stub.run(100)
    assert stub.expired == []
    stub.run(1)
    assert stub.expired == [{2}]


def test_many_executions_have_one_timer(stub):
    for number in range(1000):
        stub.begin(number)
        stub.run(0.001)
        stub.end(number)
        assert len(stub.due) == 1


def test_what_is_overdue_at_the_same_time_expires_together(stub):
    stub.begin(1)
    stub.begin(2)
    stub.run(50)
    stub.begin(3)
    stub.run(51)
    assert stub.expired == [{1, 2}]


def test_the_stub_expires_once(stub):
    """It is killed then, and no execution begins in it."""
    stub.begin(1)
    stub.run(LIMIT_MS + 1)
    stub.timer.begin()
    stub.run(10 * LIMIT_MS)
    assert stub.expired == [{1}]
    assert not stub.due


def test_after_a_stream_waited_for_its_client_the_time_begins_again(stub):
    stub.begin(1)
    stub.run(90)
    stub.waited_ms = stub.now_ms
    stub.run(100)
    assert stub.expired == []
    stub.run(1)
    assert stub.expired == [{1}]


def test_an_early_timer_is_set_again(stub):
    """Event loops round times to milliseconds, so that a timer may ring a little too early."""
    stub.begin(1)
    timer = next(iter(stub.due))
    _, call_back = stub.due.pop(timer)
    stub.now_ms += LIMIT_MS - 0.4
    call_back()
    assert stub.expired == []
    stub.run(2)
    assert stub.expired == [{1}]


def test_nothing_expires_after_the_end_of_the_stub(stub):
    stub.begin(1)
    stub.timer.stop()
    stub.run(10 * LIMIT_MS)
    assert stub.expired == []
