# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Threads for the slow calls of backends: to initialise, to finalise, and to say whether they are ready.

Each call has a daemon thread of its own. A backend that never returns from a call therefore neither keeps the process
alive nor takes a thread from other calls.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pyruntime.utils.errors import Code, LoadError

# At most so many instances are initialised at the same time; the others wait.
THREADS_MAX = 32

T = TypeVar("T")
V = TypeVar("V")


class NativeThreads:
    """See the module. `failure` is the extension's exception; a backend may take `patience_s` seconds to end."""

    def __init__(self, failure: type[Exception], tasks: asyncio.TaskGroup, patience_s: float) -> None:
        self._failure = failure
        self._tasks = tasks
        self._patience_s = None if math.isinf(patience_s) else patience_s
        self._places = asyncio.Semaphore(THREADS_MAX)
        # The questions without an answer yet.
        self._asked: dict[Callable[[], object], asyncio.Future[object]] = {}

    async def run(self, step: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
        """Run `step` and return its result. Raises LoadError with the backend's message.

        A backend cannot be interrupted: a cancelled call still waits for up to `patience_s`. If `step` succeeds after
        all, even later than that, `undo` is run.
        """
        async with self._places:
            future = _begin(step)
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError:
                await asyncio.wait((_undone(future, undo),), timeout=self._patience_s)
                raise
            return self._result(future)

    async def end(self, step: Callable[[], object]) -> None:
        """Run `step`, which finalises something. Raises LoadError if it fails, or takes longer than `patience_s`.

        In the second case the thread continues, and its result is ignored.
        """
        async with self._places:
            future = _begin(step)
            try:
                await asyncio.wait((future,), timeout=self._patience_s)
            finally:
                if not future.done():
                    future.add_done_callback(_seen)
            if not future.done():
                raise LoadError(f"it did not come back within {self._patience_s:g} s, and is left behind")
            self._result(future)

    def _result(self, future: asyncio.Future[T]) -> T:
        try:
            return future.result()
        except self._failure as exc:
            # Without its traceback, whose frames have the step: they would keep an instance and its thread until the
            # garbage collector finds them.
            raise LoadError(exc.args[1], Code(exc.args[0])) from exc.with_traceback(None)

    def ask(self, question: Callable[[], object], timeout_s: float, call_back: Callable[[object], None]) -> None:
        """Call back with the answer to `question`; with a text if it fails, or takes longer than `timeout_s` seconds.

        Callers that ask the same question at the same time share one answer.
        """

        async def ask() -> None:
            try:
                async with asyncio.timeout(timeout_s):
                    answer: object = await asyncio.shield(self._answer_to(question))
            except TimeoutError:
                answer = f"no answer within {timeout_s:g} s"
            except self._failure as exc:
                answer = exc.args[1]
            call_back(answer)

        self._tasks.create_task(ask(), name="ask a backend whether it is ready")

    def _answer_to(self, question: Callable[[], object]) -> asyncio.Future[object]:
        future = self._asked.get(question)
        if future is None:
            future = self._asked[question] = _begin(question)
            future.add_done_callback(lambda done: self._answered(question, done))
        return future

    def _answered(self, question: Callable[[], object], done: asyncio.Future[object]) -> None:
        del self._asked[question]
        done.exception()  # retrieved, so that asyncio logs no failure that no caller waits for


def _seen(future: asyncio.Future[T]) -> None:
    """Retrieve the failure of a step that no caller waits for, so that asyncio does not log it."""
    future.exception()


def _undone(future: asyncio.Future[T], undo: Callable[[], object] | None) -> asyncio.Future[None]:
    """A future that is done when the step is done, and `undo` after it if the step succeeded."""
    undone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(done: asyncio.Future[object]) -> None:
        _seen(done)
        undone.set_result(None)

    def begin(done: asyncio.Future[T]) -> None:
        if done.exception() is None and undo is not None:
            _begin(undo).add_done_callback(end)
        else:
            undone.set_result(None)

    future.add_done_callback(begin)
    return undone


def _begin(step: Callable[[], T]) -> asyncio.Future[T]:
    """Run a step in a thread of its own. Returns the future of its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def do() -> None:
        try:
            result = step()
        except BaseException as exc:
            tell(future.set_exception, exc)
        else:
            tell(future.set_result, result)

    def tell(setter: Callable[[V], None], value: V) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(setter, value)

    threading.Thread(target=do, name="native", daemon=True).start()
    return future
