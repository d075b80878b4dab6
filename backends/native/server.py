# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the server is to the native backend of one model: events, calls and metrics, from the first to the last."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from pyruntime.backends.native.batches import Batches
from pyruntime.backends.native.calls import Calls
from pyruntime.backends.native.events import Events, log
from pyruntime.backends.native.library import import_extension
from pyruntime.backends.native.metrics import NativeMetrics
from pyruntime.runtime.native.process import prepare_process
from pyruntime.stub.host import Host, get_host

# The levels of TRITONSERVER_LogMessage, verbose last.
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
# How often metrics are read while the instance has nothing to do, in seconds: more often than they are scraped.
_METRICS_S = 1.0


class Server:
    """See the module. `native` is the extension."""

    # When it serves.
    _host: Host

    def __init__(self, model: str) -> None:
        """Raises LoadError if this process cannot have the extension."""
        self.native = native = import_extension(model)
        prepare_process(native)
        self._calls = Calls(get_host)
        self._metrics = NativeMetrics(native.metrics)
        self._batches: Batches | None = None
        acts: dict[int, Callable[..., None]] = {
            native.RESPONSE: lambda job, *rest: job.batches.responded(job, *rest),
            native.RELEASED: lambda job, reschedule, _: job.batches.released(job, reschedule),
            native.ANSWERED: lambda job, *rest: job.batches.answered(job, *rest),
            native.EXECUTED: lambda batches, *_: batches.executed(),
            native.LOG: partial(log, _LEVELS),
            native.CALL: self._calls.call,
        }
        # The stub measures by itself, and the server keeps the traces; states are refused.
        for kind in (native.BATCH_STATISTICS, native.RESPONSE_STATISTICS, native.ACTIVITY, native.STATE):
            acts[kind] = _ignore
        self._events = Events(native, acts, self._look)

    def serve(self, decoupled: bool) -> Batches:
        """Where requests go, from now on; a server is there to send responses to."""
        self._host = get_host()
        self._batches = Batches(self._events, self._host, decoupled, self._calls.run)
        return self._batches

    def settle(self) -> None:
        """Pass on what the backend has said."""
        self._events.settle()

    def end(self) -> None:
        """The backend is finalised: pass on what it has said, and nothing any more."""
        self._events.end()
        self._calls.close()

    def _look(self) -> float | None:
        """See Events."""
        if self._batches is None:
            return None  # metrics that are made while the model loads are seen when it has
        has_metrics = self._metrics.show(self._host)
        return self._batches.look() or (_METRICS_S if has_metrics else None)


def _ignore(*_: object) -> None:
    """Nobody wants to know."""
