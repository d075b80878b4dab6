# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads that run at the same time, and may wait for others: a waiting one lends its slot, and none waits forever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pyruntime.runtime.repository.load_slots import LoadSlots
from pyruntime.runtime.repository.waits import WaitGraph
from pyruntime.utils.errors import Code, InferenceError


class LoadWaits:
    """At most `count` loads run at a time, at most one for each model."""

    def __init__(self, count: int) -> None:
        self._slots = LoadSlots(count)
        self._graph = WaitGraph()

    def __repr__(self) -> str:
        return f"<LoadWaits {self._graph!r}>"

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it during the load of a model."""
        async with self._slots.hold(name):
            try:
                yield
            finally:
                self._graph.end(name)

    @asynccontextmanager
    async def waiting(self, caller: str, name: str, refusal: str) -> AsyncIterator[None]:
        """The load of `caller`, "" for none, waits for that of `name` meanwhile.

        Raises InferenceError UNAVAILABLE, which begins with `refusal`, if that would never end.
        """
        if not caller:
            yield
            return
        cycle = self._graph.cycle(caller, name)
        if cycle:
            reason = f"each of these models would wait for the next one to load: {' -> '.join(cycle)}"
            raise InferenceError(f"{refusal.removesuffix('.')}: {reason}", Code.UNAVAILABLE)
        async with self._slots.lend(caller):
            wait = self._graph.add(caller, name)
            try:
                yield
            finally:
                self._graph.remove(wait)
