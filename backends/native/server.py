# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server as the native backend of one model sees it: handles its events, calls and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyruntime.backends.native.batches import Batches
from pyruntime.backends.native.calls import Calls
from pyruntime.backends.native.events import Events, log
from pyruntime.backends.native.gpu_outputs import NativeGpuOutputs
from pyruntime.backends.native.library import import_extension
from pyruntime.backends.native.metrics import NativeMetrics
from pyruntime.runtime.native.process import prepare_process
from pyruntime.stub.host import Host, get_host

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

# The levels of TRITONSERVER_LogMessage, verbose last.
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
# The interval at which metrics are read while the instance is idle, in seconds: shorter than that of scrapes.
_METRICS_S = 1.0


class Server:
    """See the module. `native` is the extension."""

    # Set by `serve`.
    _host: Host

    def __init__(self, model: str) -> None:
        """Raises LoadError if this process cannot load the extension."""
        self.native = native = import_extension(model)
        prepare_process(native)
        self._gpu_outputs = NativeGpuOutputs()
        self._calls = Calls(get_host, self._gpu_outputs)
        self._metrics = NativeMetrics(native.metrics)
        self._batches: Batches | None = None
        self._memory_usage: Callable[[], list[tuple[int, int, int]]] = list
        self._reported: list[tuple[int, int, int]] = []
        acts: dict[int, Callable[..., None]] = {
            native.EARLIER_RESPONSE: lambda job, *rest: job.batches.responded(job, *rest),
            native.RESPONSE: lambda job, *rest: job.batches.responded(job, *rest),
            native.RELEASED: lambda job, reschedule, _: job.batches.released(job, reschedule),
            native.ANSWERED: lambda job, *rest: job.batches.answered(job, *rest),
            native.STATE: lambda job, *state: job.batches.state_updated(job, *state),
            native.EXECUTED: lambda batches, *_: batches.executed(),
            native.LOG: partial(log, _LEVELS),
            native.CALL: self._calls.call,
        }
        # The stub measures times itself, and the server keeps the traces.
        for kind in (native.BATCH_STATISTICS, native.RESPONSE_STATISTICS, native.ACTIVITY):
            acts[kind] = _ignore
        self._events = Events(native, acts, self._look)

    def serve(
        self, decoupled: bool, states: Mapping[str, str], create: Callable[[Batches], _triton.Instance]
    ) -> Batches:
        """Begin to serve: the host exists now. Returns the batches, which requests go to; see there."""
        self._host = get_host()
        self._batches = Batches(self._events, self._host, self._gpu_outputs, decoupled, states, self._calls.run, create)
        return self._batches

    def report_memory(self, usage: Callable[[], list[tuple[int, int, int]]]) -> None:
        """Report `usage` to the host from now on, whenever it has changed. See Host for the items."""
        self._memory_usage = usage

    def settle(self) -> None:
        """Handle all events of the backend so far."""
        self._events.settle()

    def end(self) -> None:
        """The backend is finalised: handle its events, and no later ones."""
        self._events.end()
        self._calls.close()

    def _look(self) -> float | None:
        """See Events."""
        if self._batches is None:
            return None  # metrics that are created during the load are shown after it
        has_metrics = self._metrics.show(self._host)
        usage = self._memory_usage()
        if usage != self._reported:
            self._reported = usage
            self._host.report_memory(usage)
        return self._batches.look() or (_METRICS_S if has_metrics else None)


def _ignore(*_: object) -> None:
    """Ignore an event."""
