# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Work at once and in threads: the thread of its execution, and its exceptions."""

import asyncio
import threading

import pytest

from pyruntime.runtime.inference.threads import at_once, in_thread
from pyruntime.utils.errors import Code, InferenceError

REFUSAL = InferenceError("no", Code.INVALID_ARG)


def fail(error):
    raise error


def results_of(*work):
    """The results of all pieces of work, once they are done."""
    results = []

    async def main():
        async with asyncio.TaskGroup() as tasks:
            for each in work:
                in_thread(tasks, each, results.append, "work")
            assert results == []

    asyncio.run(main())
    return results


def test_at_once():
    """The result or the exception is passed on before the call returns."""
    results = []
    at_once(lambda: 1, results.append)
    at_once(lambda: fail(REFUSAL), results.append)
    assert results == [1, REFUSAL]


def test_in_thread():
    """The work is not done by the event loop's thread, but its result is passed on there."""
    threads = []
    done = []
    (result,) = results_of(threading.get_ident)
    assert result != threading.get_ident()

    async def main():
        async with asyncio.TaskGroup() as tasks:
            in_thread(tasks, lambda: done.append(1), lambda _: threads.append(threading.get_ident()), "work")

    asyncio.run(main())
    assert (done, threads) == ([1], [threading.get_ident()])


def test_refusal_in_thread():
    """It is handed on as it is."""
    assert results_of(lambda: fail(REFUSAL)) == [REFUSAL]


@pytest.mark.parametrize("thread", [False, True])
def test_nothing_is_kept_of_a_failure(thread):
    """An error that is kept holds neither frames nor its cause: they refer to the bytes of the request."""

    def work():
        try:
            int("the bytes of a request")
        except ValueError as exc:
            raise InferenceError("no", Code.INVALID_ARG) from exc

    results = results_of(work) if thread else []
    if not thread:
        at_once(work, results.append)
    (failure,) = results
    assert (failure.message, failure.__traceback__, failure.__cause__, failure.__context__) == ("no", None, None, None)


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (MemoryError(), "there is not enough memory for the request", Code.UNAVAILABLE),
        (ZeroDivisionError("secret"), "the server failed to handle the request", Code.INTERNAL),
    ],
)
def test_failure_in_thread(error, message, code, caplog):
    """It costs the one request only, and the client learns nothing of its inside; the log does."""
    failure, result = sorted(results_of(lambda: fail(error), lambda: 1), key=lambda found: found == 1)
    assert (failure.message, failure.code, result) == (message, code, 1)
    assert ("secret" in caplog.text) is isinstance(error, ZeroDivisionError)
