# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the stacks of a model's stubs for the page, as `pyruntime stack` does for a terminal.

Only processes below this server count: another server of the same user may have a model of the same name.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from typing import NamedTuple

from pyruntime.runtime.observe.stubs import ask_for_stacks, find_stubs, is_below
from pyruntime.utils.errors import Code, InferenceError

# Characters of the stacks of one process that are returned: some hundred threads.
STACKS_CHARS_MAX = 1 << 18


class Stacks(NamedTuple):
    """The stacks of one stub. `problem` says why some are missing, as the end of a sentence; "" if none are.

    `by_signal` says that a call into C kept the interpreter's lock.
    """

    instance: str
    version: str
    pid: int
    by_signal: bool
    problem: str
    text: str


class OwnStacks:
    """See the module. Serves one request at a time: each one waits in a thread, for five seconds at most."""

    def __init__(self) -> None:
        self._is_busy = False

    async def read(self, model: str) -> list[Stacks]:
        """The stacks of all stubs of a model, also of those that are loading it. Empty if there are none.

        Raises InferenceError UNAVAILABLE while another request is served. A cancelled call leaves the thread working.
        """
        if self._is_busy:
            raise InferenceError("stacks are being read for another client: try again", Code.UNAVAILABLE)
        self._is_busy = True
        try:
            return await asyncio.to_thread(_read, model)
        finally:
            self._is_busy = False


def _read(model: str) -> list[Stacks]:
    with ExitStack() as resources:
        stubs = [stub for stub in find_stubs(resources) if stub.heading.model == model]
        own = [stub for stub in stubs if is_below(stub.pid, os.getpid())]
        ask_for_stacks(own)
        return sorted(
            Stacks(
                stub.heading.instance,
                stub.heading.version,
                stub.pid,
                stub.by_signal,
                stub.problem,
                stub.stacks[:STACKS_CHARS_MAX],
            )
            for stub in own
        )
