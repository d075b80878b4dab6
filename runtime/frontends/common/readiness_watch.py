# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tells listeners whether the server is ready, and when that changes.

Models are loaded and unloaded, restart, and may change their readiness without a notice. So the server is asked
periodically while there are listeners, once for all of them. All of this belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.readiness import check_server_ready

# From one answer to the next question, in seconds. Load balancers need fresh answers, and each question asks the
# models.
INTERVAL_S = 1.0

# It must not raise, and may stop listening while it is called.
Listener = Callable[[bool], None]


class _Watch:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._ready: bool | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        self.listeners.append(listener)
        if self._ready is not None:
            listener(self._ready)
        elif len(self.listeners) == 1:
            self._ask()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._timer = None
        check_server_ready(self._state, self._answered)

    def _answered(self, ready: bool) -> None:
        if not self.listeners:
            return  # all were removed while the models were asked
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._ask)
        if ready is not self._ready:
            self._ready = ready
            for listener in self.listeners.copy():
                listener(ready)


# One for each server that has listeners.
_watches: dict[ServerState, _Watch] = {}


def watch_ready(state: ServerState, listener: Listener) -> None:
    """Call `listener` with whether the server is ready, as soon as that is known, and again whenever it changes."""
    watch = _watches.get(state)
    if watch is None:
        watch = _watches[state] = _Watch(state)
    watch.add(listener)


def unwatch_ready(state: ServerState, listener: Listener) -> None:
    """Stop calling a listener. It has no effect on an unknown one."""
    watch = _watches.get(state)
    if watch is None or listener not in watch.listeners:
        return
    watch.listeners.remove(listener)
    if not watch.listeners:
        watch.close()
        del _watches[state]
