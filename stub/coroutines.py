# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs `async def execute`, in an event loop of the executing thread that is created on first use.

The loop reads from the link itself, so that the answer to a model's call reaches the awaiting coroutine without a
thread switch. While background coroutines are left (of decoupled models, and tasks that the model created), the loop
also waits for the next batch.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Coroutine, Optional, Set

from pyruntime.stub.link import Interrupted, Link


class Coroutines:
    """The event loop of one thread. Only this thread may call methods other than `work_arrived`."""

    def __init__(self, link: Link, reads: bool, on_loop: Callable[[Any], None]) -> None:
        """`reads` says whether the loop may read from the link; `on_loop` is called with the loop once it exists."""
        self._link = link
        self.reads = reads
        self._on_loop = on_loop
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._background: Set[Any] = set()
        self._arrival: Optional[asyncio.Future[None]] = None

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine to its end. Returns its result, or raises its exception."""
        return self._get_loop().run_until_complete(coroutine)

    def run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine while the thread waits for work. Only allowed if the loop may read from the link."""
        loop = self._get_loop()
        task = loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def wait(self, work: Callable[[], object], interrupted: Optional[Interrupted] = None) -> bool:
        """Wait until there is work; False if the host hung up before. As Link.wait."""
        loop = self._loop
        if loop is None or not self.reads or not (self._background or asyncio.all_tasks(loop)):
            return self._link.wait(work, interrupted)
        waiting = loop.create_task(self._wait(work))
        while True:
            try:
                return loop.run_until_complete(waiting)
            except BaseException as exc:  # the loop has handled what its callbacks and tasks raise
                if interrupted is None or waiting.done():
                    raise
                interrupted(exc)

    def work_arrived(self) -> None:
        """There may be work, or the host may have hung up. From any thread."""
        arrival, loop = self._arrival, self._loop
        if arrival is not None and loop is not None:
            loop.call_soon_threadsafe(_resolve, arrival)

    def close(self) -> None:
        """Close the loop, if there is one."""
        if self._loop is not None:
            self._loop.close()

    async def _wait(self, work: Callable[[], object]) -> bool:
        loop = asyncio.get_running_loop()
        while not work():
            if self._link.closed:
                return False
            self._arrival = loop.create_future()
            if not work():  # it may have arrived before there was anything to resolve
                await self._arrival
        return True

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
            if self.reads:
                loop.add_reader(self._link.fileno(), self._poll)
                self._on_loop(loop)
        return loop

    def _poll(self) -> None:
        self._link.poll()
        if self._link.closed:
            assert self._loop is not None  # it calls this
            self._loop.remove_reader(self._link.fileno())
            self.work_arrived()


def _resolve(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)
