# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Makes what has a part for each model in slices, between which the event loop serves other requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from pyruntime.utils.errors import InferenceError

# The parts of one slice: a part takes some 0.1 ms, and other requests wait for a slice as they do for any turn.
SLICE_PARTS = 16

_LOG = logging.getLogger("pyruntime.frontends")

T = TypeVar("T")


def in_slices(
    tasks: Callable[[], asyncio.TaskGroup],
    parts: Iterator[T],
    then: Callable[[list[T] | InferenceError], None],
    name: str,
) -> None:
    """Call `then` with all parts: at once if they are one slice, else in a later turn of the event loop.

    An exception that is no InferenceError of the first slice becomes one. `then` must not raise.
    """
    made = list(islice(parts, SLICE_PARTS))
    if len(made) < SLICE_PARTS:
        then(made)
        return

    async def go_on() -> None:
        try:
            while True:
                await asyncio.sleep(0)
                more = list(islice(parts, SLICE_PARTS))
                made.extend(more)
                if len(more) < SLICE_PARTS:
                    break
        except InferenceError as exc:
            then(exc)
        except Exception:
            _LOG.exception("cannot %s", name)
            then(InferenceError(f"the server failed to {name}"))
        else:
            then(made)

    tasks().create_task(go_on(), name=name)
