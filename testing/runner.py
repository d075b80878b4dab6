# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that runs a model under test, like the main thread of a stub.

It uses the stub's event loop for `async def execute`, and replaces the socket by direct calls.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import msgpack

from pyruntime.stub.coroutines import Coroutines
from pyruntime.stub.link import Interrupted, Link
from pyruntime.utils.messages import Message

T = TypeVar("T")


class StillRunning(Exception):
    """A function called in the thread has not returned in time."""


class DirectLink(Link):
    """A link without a socket: the sending thread handles each message at once."""

    def __init__(self, handle: Callable[[Message], None]) -> None:
        self.closed = False
        self._handle = handle
        self._changed = threading.Condition()
        # Never readable; an event loop needs a descriptor.
        self._fd = os.eventfd(0)

    def fileno(self) -> int:
        """See Link."""
        return self._fd

    def send(self, message: Message) -> None:
        """See Link."""
        self._handle(message)

    def send_frame(self, kind: type[Any], frame: bytes) -> None:
        """See Link."""
        _, fields = msgpack.unpackb(frame)
        self._handle(kind(*fields))

    def post(self, message: Message) -> None:
        """See Link."""
        self._handle(message)

    def wait(self, done: Callable[[], object], interrupted: Interrupted | None = None) -> bool:
        """See Link."""
        with self._changed:
            self._changed.wait_for(lambda: done() or self.closed)
        return bool(done())

    def wake(self) -> None:
        """See Link."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """See Link."""
        os.close(self._fd)


class Runner:
    """The thread. It runs one job after the other, until `stop`."""

    def __init__(self, name: str, handle: Callable[[Message], None]) -> None:
        """`name` is the thread's; `handle` is called with the messages of the model's side."""
        self.link = DirectLink(handle)
        self.coroutines = Coroutines(self.link, True, self._set_loop)
        self._jobs: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, job: Callable[[], None]) -> None:
        """Queue a job, which must not raise."""
        self._jobs.append(job)
        self._wake()

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Run a function in the thread. Returns its result or raises its exception; StillRunning after a timeout."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as exc:  # a model may raise SystemExit
                outcome.set_exception(exc)

        self.post(run)
        if not wait([outcome], timeout_s).done:
            raise StillRunning
        return outcome.result()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after all queued jobs, and wait for it; False if it takes longer."""
        self.link.closed = True
        self._wake()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def where(self, root: str) -> str:
        """The current place of the thread in the code below the folder `root`, "" if it is elsewhere."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        for at in reversed(traceback.extract_stack(frame) if frame is not None else []):
            if at.filename.startswith(os.path.join(root, "")):
                return f"{os.path.relpath(at.filename, root)}({at.lineno}): {at.name}"
        return ""

    def _set_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def _wake(self) -> None:
        self.link.wake()
        self.coroutines.work_arrived()

    def _run(self) -> None:
        try:
            while self.coroutines.wait(lambda: self._jobs):
                self._jobs.popleft()()
        finally:
            self._end_tasks()
            self.coroutines.close()
            self.link.close()

    def _end_tasks(self) -> None:
        """Cancel tasks that the model has left running. In a stub they end with the process."""
        loop = self._loop
        if loop is None:
            return
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
