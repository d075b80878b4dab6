# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Handles events of native threads on the event loop.

Native threads put events into a queue and never wait for Python. The first event makes a descriptor readable; the
event loop then handles all events of the queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from pyruntime.runtime.observe.model_log import ModelLog

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.native")
# The levels of TRITONSERVER_LogMessage, verbose last.
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


class _Instance(Protocol):
    """See NativeBatches, whose methods these are."""

    def responded(self, job: object, *event: object) -> None: ...

    def released(self, job: object, *event: object) -> None: ...

    def noted(self, job: object, ns: int, activity: str) -> None: ...


class _Job(Protocol):
    """A job that a native instance executes."""

    instance: _Instance


class NativeEvents:
    """See the module. `on_call` handles the calls of native code to the server: see calls.py."""

    def __init__(self, native: ModuleType, on_call: Callable[[_triton.Call], None]) -> None:
        self._native = native
        self._log = ModelLog(_LOG, "")
        self._acts: dict[int, Callable[..., None]] = {
            native.RESPONSE: _responded,
            native.EARLIER_RESPONSE: lambda job, *rest: job.respond.earlier(job, *rest),
            native.RELEASED: _released,
            native.BATCH_STATISTICS: lambda owner, times: owner.times.batch(times, time.time_ns() // 1_000_000),
            native.RESPONSE_STATISTICS: lambda owner, *rest: owner.times.response(*rest),
            native.STATE: lambda job, *rest: job.instance.state_updated(job, *rest),
            native.COUNTED: lambda owner, *rest: owner.counted(*rest),
            native.RETURNED: lambda connection: connection.returned(),
            native.LOG: self._log_message,
            native.CALL: on_call,
            native.ACTIVITY: _noted,
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False

    def begin(self) -> None:
        """Handle events on the running event loop, from now on."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._native.descriptor(), self.drain)

    def end(self) -> None:
        """Handle the events that are in the queue, and no later ones."""
        if self._loop is not None:
            self._loop.remove_reader(self._native.descriptor())
            self._loop = None
            self.drain()
            self._log.close()

    def settle(self) -> None:
        """Handle all events so far. Does nothing while `drain` runs."""
        if not self._draining:
            self.drain()

    def drain(self) -> None:
        """Handle all events so far."""
        self._draining = True
        try:
            self._pass_on()
        finally:
            self._draining = False

    def _pass_on(self) -> None:
        native = self._native
        sent, encoded, answered, executed = native.SENT, native.ENCODED, native.ANSWERED, native.EXECUTED
        for event in self._native.drain():
            kind = event[0]
            try:
                # Nearly all events are of these kinds.
                if kind == sent:
                    _, job, rest, sent_ns, released, times, execution = event
                    job.instance.sent(job, rest, sent_ns, released, times, execution)
                elif kind == encoded:
                    _, job, response, times, execution = event
                    job.instance.encoded(job, response, times, execution)
                elif kind == answered:
                    _, job, failure, outputs, parameters, times, execution = event
                    job.instance.answered(job, failure, outputs, parameters, times, execution)
                elif kind == executed:
                    _, batches, execution = event
                    batches.executed(*execution)
                else:
                    self._acts[kind](*event[1:])
            except Exception:  # a failure must not affect the other events
                _LOG.exception("an event of a native backend could not be handled")

    def _log_message(self, level: int, file: str, line: int, message: str) -> None:
        self._log.write(_LEVELS[level], message, file, line)


def _responded(job: _Job, *rest: object) -> None:
    job.instance.responded(job, *rest)


def _released(job: _Job, *rest: object) -> None:
    job.instance.released(job, *rest)


def _noted(job: _Job | None, ns: int, activity: str, name: str) -> None:
    if job is not None:
        job.instance.noted(job, ns, name or activity)
