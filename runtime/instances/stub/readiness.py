# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls a model's own is_ready, once for all callers at the same time."""

from __future__ import annotations

import asyncio
import logging

from pyruntime.runtime.execution.executor import IS_READY_TIMEOUT_S, CallBack
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.utils.messages import IsReady

_LOG = logging.getLogger("pyruntime.instances")


class Readiness:
    """See the module, for one stub. `timeout_s` is None for a model in a debugger."""

    def __init__(self, connection: StubConnection, timeout_s: float | None = IS_READY_TIMEOUT_S) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._waiting: list[CallBack] = []
        # One question at a time: each one takes a thread of the stub until the model answers.
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None

    def check(self, call_back: CallBack) -> None:
        """Call back with whether the model is ready: at once if it has no is_ready."""
        if not self._connection.checks_ready:
            call_back(True)
            return
        self._waiting.append(call_back)
        if len(self._waiting) > 1:
            return
        if self._timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._timed_out)
        if not self._asked:
            self._asked = True
            self._connection.check_ready()

    def answered(self, message: IsReady) -> None:
        """The model has answered."""
        self._asked = False
        if message.problem:
            _LOG.error("%s: %s", self._connection.name, message.problem)
        elif not message.ready:
            _LOG.debug("Model '%s' is not ready (user-defined check failed).", self._connection.name)
        self._tell(message.ready)

    def died(self) -> None:
        """The stub is gone."""
        self._tell(False)

    def _timed_out(self) -> None:
        _LOG.error("%s: Timed out waiting for user-defined is_ready() response", self._connection.name)
        self._tell(False)

    def _tell(self, ready: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for call_back in waiting:
            call_back(ready)
