# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Threads for what backends take their time over: initialising, finalising, saying whether they are ready.

They are nobody's to wait for: a backend that does not come back from a call keeps neither the process alive, nor those
who have something else for a thread to do.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pyruntime.utils.errors import Code, LoadError

# As many instances are initialised at a time; the others wait for their turn.
THREADS_MAX = 32

T = TypeVar("T")
V = TypeVar("V")


class NativeThreads:
    """See the module. `failure` is the extension's exception; `patience_s` how long a backend may take to end."""

    def __init__(self, failure: type[Exception], tasks: asyncio.TaskGroup, patience_s: float) -> None:
        self._failure = failure
        self._tasks = tasks
        self._patience_s = None if math.isinf(patience_s) else patience_s
        self._places = asyncio.Semaphore(THREADS_MAX)
        # Questions that are not answered yet.
        self._asked: dict[Callable[[], object], asyncio.Future[object]] = {}

    async def run(self, step: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
        """The result of `step`. Raises LoadError with what the backend says.

        A backend cannot be interrupted: cancelling this waits for it as long as for one that ends, and has `undo` done
        if it succeeds all the same, be it later.
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
        """Do `step`, by which something of a backend's ends. Raises LoadError, also if it takes too long.

        The thread goes on then, and nobody hears of it any more.
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
            raise LoadError(exc.args[1], Code(exc.args[0])) from exc

    def ask(self, question: Callable[[], object], timeout_s: float, call_back: Callable[[object], None]) -> None:
        """Call back with the answer to `question`, or with why there is none after `timeout_s` seconds.

        Who asks the same while it is not answered waits for the same answer.
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
        done.exception()  # seen, if nobody waits for it any longer


def _seen(future: asyncio.Future[T]) -> None:
    """Nobody waits for what comes of it."""
    future.exception()


def _undone(future: asyncio.Future[T], undo: Callable[[], object] | None) -> asyncio.Future[None]:
    """Done when a step is, and `undo` after it if it has succeeded."""
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
    """What a step comes to, on a thread of its own."""
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
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(setter, value)

    threading.Thread(target=do, name="native", daemon=True).start()
    return future
