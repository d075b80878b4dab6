# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs work that would block the event loop for too long in threads; and the sizes from which that is so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyruntime.utils.errors import Code, InferenceError

# Threads that work on requests at a time. More would only compete for the processors and for Python's lock, and each
# takes memory. Other work of the server, such as the loading of models, has other threads and is not delayed.
THREADS_MAX = 4

# A compressed body up to this size, in bytes, is decompressed at once, or at least its beginning.
DECOMPRESSED_AT_ONCE_MAX = 16 << 10
# A JSON document is parsed at once up to this size, in bytes: a few milliseconds of work at most.
PARSED_AT_ONCE_MAX = 64 << 10
# A response is classified, compressed or written as JSON at once up to this size, in bytes: a few milliseconds of
# work at most.
ANSWERED_AT_ONCE_MAX = 64 << 10

_LOG = logging.getLogger("pyruntime.frontends")

T = TypeVar("T")

_threads = ThreadPoolExecutor(THREADS_MAX, "request")


def _bare(failure: InferenceError) -> InferenceError:
    """The error without the frames that it has passed, and without what caused it.

    They hold the bytes of the request: the frames as arguments, and the error of a parser as its text. As part of a
    cycle they would stay until the next garbage collection.
    """
    failure.__cause__ = failure.__context__ = None
    return failure.with_traceback(None)


def at_once(work: Callable[[], T], then: Callable[[T | InferenceError], None]) -> None:
    """Run `work` at once, and call `then` with its result, or with the InferenceError that it raises."""
    result: T | InferenceError
    try:
        result = work()
    except InferenceError as exc:
        result = _bare(exc)
    then(result)


def in_thread(
    tasks: asyncio.TaskGroup, work: Callable[[], T], then: Callable[[T | InferenceError], None], name: str
) -> None:
    """As `at_once`, but a thread runs `work`; `then` is called later, on the event loop's thread.

    Every other exception becomes an InferenceError, so that it affects only this piece of work. `then` must not raise.
    It is not called if `tasks` are cancelled before, while the thread continues.
    """

    async def attempt() -> None:
        result: T | InferenceError
        try:
            result = await asyncio.get_running_loop().run_in_executor(_threads, work)
        except InferenceError as exc:
            result = _bare(exc)
        except MemoryError:
            result = InferenceError("there is not enough memory for the request", Code.UNAVAILABLE)
        except Exception:
            _LOG.exception("%s failed", name)
            result = InferenceError("the server failed to handle the request")
        then(result)

    tasks.create_task(attempt(), name=name)
