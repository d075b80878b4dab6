# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The thread of a native instance, for whoever looks for deadlocks. (pure)

See deadlock.py. Whether a backend waits for the requests that it makes during Execute is not to be seen; most do. They
count as waited for until Execute returns: who refuses one for that reason has to leave it some time to return first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyruntime.runtime.instances.deadlock import Waiting
from pyruntime.runtime.scheduling.job import Job


class MadeCall(Protocol):
    """A request that a backend has made."""

    def servers(self) -> tuple[Sequence[Waiting], str]:
        """Who could serve it now, and the name of its model: see Waiting.waiting_calls."""


class NativeWorker:
    """See the module. `on_first` is called before the first call: what waits behind one had better wait elsewhere."""

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
        """The request has a job."""
        self._calls.append(call)

    def ended(self, call: MadeCall) -> None:
        """A request has its last response. Does nothing if Execute has returned."""
        if call in self._calls:
            self._calls.remove(call)

    def is_waiting(self, call: MadeCall) -> bool:
        """Whether Execute may still wait for a request."""
        return call in self._calls

    def returned(self) -> None:
        """Execute has returned, and waits for nothing."""
        self._calls.clear()


def worker_of(job: Job | None) -> NativeWorker | None:
    """The thread that executes a job of a native model, None if there is none."""
    return getattr(job.instance, "worker", None) if job is not None else None
