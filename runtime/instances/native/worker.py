# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The thread of a native instance, as the search for deadlocks sees it: see deadlock.py. (pure)

The host cannot see whether a backend waits for the requests that it makes during Execute; most backends do. So these
requests count as waited for until Execute returns. A call that would be refused as a deadlock for that reason is
reviewed only after some time, in which Execute may return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.job import Job


class MadeCall(Protocol):
    """A request from a backend to a model."""

    def servers(self) -> tuple[Sequence[Waiting], str]:
        """The workers that could serve it now, and the name of its model: see Waiting.waiting_calls."""


class NativeWorker:
    """See the module. `on_first` is called before the first call: from then on, no batch is queued behind another."""

    def __init__(self, model_name: str, on_first: Callable[[], None]) -> None:
        self.model_name = model_name
        self.makes_calls = False
        self._on_first = on_first
        self._calls: list[MadeCall] = []

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """See Waiting."""
        return [call.servers() for call in self._calls]

    def expect(self) -> None:
        """The backend makes a request during Execute."""
        if not self.makes_calls:
            self.makes_calls = True
            self._on_first()

    def made(self, call: MadeCall) -> None:
        """A request was queued: it has a job now."""
        self._calls.append(call)

    def ended(self, call: MadeCall) -> None:
        """A request has received its last response. Does nothing if Execute has returned."""
        if call in self._calls:
            self._calls.remove(call)

    def is_waiting(self, call: MadeCall) -> bool:
        """Whether Execute may still wait for a request."""
        return call in self._calls

    def returned(self) -> None:
        """Execute has returned: it waits for no request."""
        self._calls.clear()


def worker_of(job: Job | None) -> NativeWorker | None:
    """The thread that executes a job of a native model; None for any other job."""
    return getattr(job.instance, "worker", None) if job is not None else None
