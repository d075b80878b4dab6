# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Threads for what backends take their time over: initialising, finalising, saying whether they are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyruntime.utils.errors import LoadError

# As many instances are initialised at a time; the others wait for their turn.
THREADS_MAX = 32


class NativeThreads:
    """See the module. `failure` is the extension's exception."""

    def __init__(self, failure: type[Exception], tasks: asyncio.TaskGroup) -> None:
        self._failure = failure
        self._tasks = tasks
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="native")

    async def run(self, step: Callable[[], Any], undo: Callable[[], Any] | None = None) -> Any:
        """The result of `step`. Raises LoadError with what the backend says.

        A backend cannot be interrupted: cancelling this waits for it, and for `undo` if it succeeds all the same.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, step)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait((future,))
            if future.exception() is None and undo is not None:
                await asyncio.wait((loop.run_in_executor(self._pool, undo),))
            raise
        except self._failure as exc:
            raise LoadError(exc.args[1]) from exc

    def ask(self, question: Callable[[], Any], timeout_s: float, call_back: Callable[[Any], None]) -> None:
        """Call back with the answer to `question`, or with why there is none after `timeout_s` seconds."""

        async def ask() -> None:
            future = asyncio.get_running_loop().run_in_executor(self._pool, question)
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await asyncio.shield(future)
            except TimeoutError:
                answer = f"no answer within {timeout_s:g} s"
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
            except self._failure as exc:
                answer = exc.args[1]
            call_back(answer)

        self._tasks.create_task(ask(), name="ask a backend whether it is ready")

    def close(self) -> None:
        """Take no more; what runs is not waited for."""
        self._pool.shutdown(wait=False)
