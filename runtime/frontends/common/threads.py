# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Work that may keep the event loop from everybody else: where it does, a thread does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from pyruntime.utils.errors import Code, InferenceError

_LOG = logging.getLogger("pyruntime.frontends")

T = TypeVar("T")


def at_once(work: Callable[[], T], then: Callable[[T | InferenceError], None]) -> None:
    """Do `work` here and now, and call `then` with what it returned, or with the InferenceError that it raised."""
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

    Whatever goes wrong costs this piece of work alone: every other exception becomes an InferenceError. `then` must not
    raise; it is not called where `tasks` are cancelled before, though the thread goes on.
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
