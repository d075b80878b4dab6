# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Work of requests that would block the event loop for too long, and the sizes from which a thread does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from pyruntime.utils.errors import Code, InferenceError

# A compressed body is decompressed at once up to this size, in bytes: it becomes a thousand times as large at worst,
# which takes 30 ms then.
DECOMPRESSED_AT_ONCE_MAX = 16 << 10
# A JSON document is parsed at once up to this size, in bytes: at most some ten milliseconds' work.
PARSED_AT_ONCE_MAX = 128 << 10
# A response is classified, compressed or written as JSON at once up to this size, in bytes: at most a few milliseconds'
# work.
ANSWERED_AT_ONCE_MAX = 64 << 10

_LOG = logging.getLogger("pyruntime.frontends")

T = TypeVar("T")


def at_once(work: Callable[[], T], then: Callable[[T | InferenceError], None]) -> None:
    """Do `work` at once, and call `then` with what it returned, or with the InferenceError that it raised."""
    result: T | InferenceError
    try:
        result = work()
    except InferenceError as exc:
        result = exc
    then(result)


def in_thread(
    tasks: asyncio.TaskGroup, work: Callable[[], T], then: Callable[[T | InferenceError], None], name: str
) -> None:
    """As `at_once`, but a thread does `work`; `then` is called later, on the event loop's thread.

    Every other exception becomes an InferenceError, so that it affects nothing but this piece of work. `then` must not
    raise; it is not called if `tasks` are cancelled before, though the thread goes on.
    """

    async def attempt() -> None:
        result: T | InferenceError
        try:
            result = await asyncio.to_thread(work)
        except InferenceError as exc:
            result = exc
        except MemoryError:
            result = InferenceError("there is not enough memory for the request", Code.UNAVAILABLE)
        except Exception:
            _LOG.exception("%s failed", name)
            result = InferenceError("the server failed to handle the request")
        then(result)

    tasks.create_task(attempt(), name=name)
