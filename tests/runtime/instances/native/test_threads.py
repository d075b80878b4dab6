# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for backends, whose steps the test keeps waiting."""

import asyncio
import subprocess
import sys
import threading

import pytest

from pyruntime.runtime.instances.native.threads import THREADS_MAX, NativeThreads
from pyruntime.utils.errors import Code, LoadError


class Failure(Exception):
    """An exception of the extension."""


@pytest.fixture
def run():
    """`run(test)`: run a coroutine function with NativeThreads and a step that waits until `let_go` is called."""

    def run(test):
        let_go = threading.Event()

        async def main():
            async with asyncio.TaskGroup() as tasks:
                try:
                    await test(NativeThreads(Failure, tasks, 60), let_go)
                finally:
                    let_go.set()

        asyncio.run(main())

    return run


def test_a_step(run):
    """A step runs on a thread, and returns or raises."""

    async def test(threads, _):
        assert await threads.run(threading.current_thread) is not threading.current_thread()

        def fail():
            raise Failure(Code.UNAVAILABLE, "no such thing")

        with pytest.raises(LoadError, match="no such thing") as caught:
            await threads.run(fail)
        assert caught.value.code is Code.UNAVAILABLE

    run(test)


def test_cancelling_a_step(run):
    """It is waited for, and undone."""

    async def test(threads, let_go):
        undone, begun = [], threading.Event()

        def step():
            begun.set()
            let_go.wait()

        task = asyncio.create_task(threads.run(step, undo=lambda: undone.append(True)))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert undone == [True]

    run(test)


def test_an_end_that_does_not_come(run):
    """It is waited for no longer than the limit, and its later result is ignored."""

    async def test(threads, let_go):
        threads = NativeThreads(Failure, threads._tasks, 0.001)
        with pytest.raises(LoadError, match="it did not come back within"):
            await threads.end(let_go.wait)
        threads._patience_s = 60  # no other end is to come within so little
        await threads.end(lambda: None)

    run(test)


def test_giving_up_a_step_that_does_not_end(run):
    """A step that was given up is not waited for, and is undone if it succeeds."""

    async def test(threads, let_go):
        threads = NativeThreads(Failure, threads._tasks, 0.001)
        begun, undone = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def step():
            begun.set()
            let_go.wait()

        task = asyncio.create_task(threads.run(step, undo=lambda: loop.call_soon_threadsafe(undone.set)))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        let_go.set()
        await undone.wait()

    run(test)


def test_a_question_without_an_answer(run):
    """A missing answer is reported in time. The same question waits for the same thread: there is room for others."""

    async def test(threads, let_go):
        asked, answers, begun = [], [], threading.Event()

        def question():
            asked.append(True)
            begun.set()
            let_go.wait()

        for _ in range(THREADS_MAX + 1):
            answered = asyncio.Event()
            threads.ask(question, 0.001, lambda answer, done=answered: (answers.append(answer), done.set()))
            await answered.wait()
        assert set(answers) == {"no answer within 0.001 s"}
        await asyncio.to_thread(begun.wait)
        assert asked == [True]
        assert await threads.run(lambda: 7) == 7

    run(test)


def test_a_question(run):
    """Each is asked anew once the one before has an answer."""

    async def test(threads, _):
        numbers, answers = iter(range(2)), []
        question = numbers.__next__
        for _ in range(2):
            answered = asyncio.Event()
            threads.ask(question, 60, lambda answer, done=answered: (answers.append(answer), done.set()))
            await answered.wait()
        assert answers == [0, 1]

    run(test)


@pytest.mark.processes
def test_the_process_ends_without_them():
    """A backend that does not come back from a call keeps no process alive."""
    code = """
import asyncio, threading
from pyruntime.runtime.instances.native.threads import NativeThreads

async def main():
    async with asyncio.TaskGroup() as tasks:
        answered = asyncio.Event()
        NativeThreads(OSError, tasks, 5).ask(threading.Event().wait, 0.001, lambda answer: answered.set())
        await answered.wait()

asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
