# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks that are parts of requests. The server ends with an error of its tasks: one of these fails its request only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from pyruntime.utils.errors import Code, InferenceError

_LOG = logging.getLogger("pyruntime.calls")


def start_guarded(
    tasks: asyncio.TaskGroup,
    work: Callable[[], Coroutine[Any, Any, None]],
    fail: Callable[[InferenceError], None],
    name: str,
) -> None:
    """Run `work` as a task. `name` says what it does: "copy a tensor".

    An error that it raises is logged, and `fail` is called with an InferenceError INTERNAL: it answers the request, and
    frees what `work` has left.
    """
    tasks.create_task(_guard(work, fail, name), name=name)


async def _guard(
    work: Callable[[], Coroutine[Any, Any, None]], fail: Callable[[InferenceError], None], name: str
) -> None:
    try:
        await work()
    except Exception:
        _LOG.exception("The server failed to %s.", name)
        try:
            fail(InferenceError(f"the server failed to {name}; its log says why", Code.INTERNAL))
        except Exception:
            _LOG.exception("The server failed to say that it failed to %s.", name)
