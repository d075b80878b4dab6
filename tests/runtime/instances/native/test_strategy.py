# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of a batching strategy, with the test as its library."""

import math
import time

import pytest

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.native.strategy import NativeStrategy
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.utils.request_codec import RequestOptions


class Failure(Exception):
    """An exception of the extension."""


class Handle:
    """Stands for the extension's strategy; `answer` is its answer to a request, or an exception."""

    def __init__(self):
        self.asked = []
        self.answer = False

    def begin(self):
        pass

    def include(self, wire, base):
        self.asked.append(wire)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def handle():
    return Handle()


@pytest.fixture
def strategy(handle):
    memory = RequestMemory("m", 4096, 4096)
    made = NativeStrategy(handle, Failure, "m", memory)
    made.begin()
    yield made
    memory.close()


def job(parameters=""):
    return Job("", RequestOptions(parameters=parameters), [], 1, None, [], None, time.monotonic_ns())


def test_parameters(strategy, handle):
    """They are as the backend will read them."""
    assert not strategy.include(job('{"a": 1, "odd": null}'))
    parameters = handle.asked[0][5]
    assert parameters["a"] == 1
    assert math.isnan(parameters["odd"])


@pytest.mark.parametrize("problem", [OverflowError("int too big to convert"), TypeError("no text")])
def test_a_request_that_the_extension_cannot_read(strategy, handle, problem):
    """The request stays in the batch: its execution reports the problem."""
    handle.answer = problem
    assert strategy.include(job())


def test_a_strategy_that_fails(strategy, handle, caplog):
    """It has not said yes, and the log says why."""
    handle.answer = Failure(1, "no include")
    assert not strategy.include(job())
    assert "Custom batching include function failed for model m: no include" in caplog.text
