# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks that are parts of requests: whatever they raise, the group that they run in goes on."""

import asyncio

import pytest

from pyruntime.runtime.calls.guarded import start_guarded
from pyruntime.utils.errors import Code


def run(work, fail):
    """Run `work`, and another task that ends later."""
    done = []

    async def other():
        for _ in range(5):
            await asyncio.sleep(0)
        done.append(True)

    async def within():
        async with asyncio.TaskGroup() as tasks:
            start_guarded(tasks, work, fail, "copy a tensor")
            tasks.create_task(other())

    asyncio.run(within())
    assert done == [True]


async def fails():
    raise KeyError("a bug")


def test_success(caplog):
    """Nothing is said of what succeeds."""

    async def work():
        await asyncio.sleep(0)

    run(work, pytest.fail)
    assert caplog.records == []


def test_failure(caplog):
    """A bug is logged with where it was, and the request is answered."""
    failures = []
    run(fails, failures.append)
    ((message, code),) = [(each.message, each.code) for each in failures]
    assert (message, code) == ("the server failed to copy a tensor; its log says why", Code.INTERNAL)
    (record,) = caplog.records
    assert (record.getMessage(), record.exc_info[0]) == ("The server failed to copy a tensor.", KeyError)


def test_failure_of_the_answer(caplog):
    """A second bug does not end the others, either."""

    def fail(failure):
        raise ValueError("another bug")

    run(fails, fail)
    assert [record.exc_info[0] for record in caplog.records] == [KeyError, ValueError]
