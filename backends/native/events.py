# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Handles events of native threads.

Native threads put events into a queue and never wait for Python; a descriptor is readable while there are events. While
the model's thread waits for its batch, it handles them itself, which saves a switch of threads. At all other times a
thread of its own handles them, because backends respond, log and call at any time.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from types import ModuleType

from pyruntime.stub.logs import LOGGER

# The interval of checks for cancelled requests and changed metrics while requests are open, in seconds. Neither of them
# is an event.
LOOK_S = 0.05
# How long the thread may take to finish its current events, in seconds.
_END_S = 5.0


class Events:
    """See the module. `acts` are the handlers of events, by their kinds.

    `look` checks for changes that are no events. While a batch is executed, it is called every LOOK_S seconds; at other
    times after events, and again after the number of seconds that it returns, if any. It and `acts` are called with
    `lock` held.
    """

    def __init__(
        self, native: ModuleType, acts: dict[int, Callable[..., None]], look: Callable[[], float | None]
    ) -> None:
        self.lock = threading.RLock()
        self._drain = native.drain
        self._acts = acts
        self._look = look
        self._descriptor: int = native.descriptor()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._epoll.register(self._descriptor, select.EPOLLIN)
        self._has_ended = False
        self._again_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="pyruntime native events", daemon=True)
        self._thread.start()

    def wait(self, begin: Callable[[], object], done: Callable[[], object]) -> None:
        """Call `begin`, and handle events until `done()`, which an event makes true. The caller holds `lock`."""
        # Before any event, so that the other thread does not wake up.
        self._epoll.modify(self._descriptor, 0)
        look_at = time.monotonic() + LOOK_S
        try:
            begin()
            while not done():
                self._poll.poll(LOOK_S * 1000)
                self._pass_on()
                if (now := time.monotonic()) >= look_at:
                    self._look()
                    look_at = now + LOOK_S
        finally:
            before, self._again_s = self._again_s, self._look()
            self._epoll.modify(self._descriptor, select.EPOLLIN)
            if before is None and self._again_s is not None:
                os.eventfd_write(self._wake, 1)

    def settle(self) -> None:
        """Handle all events so far."""
        with self.lock:
            self._pass_on()
            self._look()

    def end(self) -> None:
        """Handle all events so far, and no later ones."""
        self._has_ended = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(_END_S)
        self.settle()
        if not self._thread.is_alive():
            self._epoll.close()
            os.close(self._wake)

    def _run(self) -> None:
        while not self._has_ended:
            self._epoll.poll(-1 if self._again_s is None else self._again_s)
            with self.lock:
                with contextlib.suppress(BlockingIOError):  # it woke for another reason
                    os.eventfd_read(self._wake)
                if not self._has_ended:
                    self._pass_on()
                    self._again_s = self._look()

    def _pass_on(self) -> None:
        acts = self._acts
        for kind, *fields in self._drain():
            try:
                acts[kind](*fields)
            except Exception:  # a failure must not affect the other events
                LOGGER.exception("an event of a native backend could not be handled")


def log(levels: tuple[int, ...], level: int, file: str, line: int, message: str) -> None:
    """Log a message of a backend, with its own file and line; `levels` maps its levels to those of `logging`."""
    for part in message.splitlines() or [""]:
        LOGGER.handle(LOGGER.makeRecord(LOGGER.name, levels[level], file, line, "%s", (part,), None))
