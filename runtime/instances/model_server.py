# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server as its models see it. (pure)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyruntime.runtime.calls.model_call import Callee
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.regions import GpuRegion


class GpuServer(Protocol):
    """The memory on GPUs that processes share: see brokers/leases.py."""

    async def lease(self, uuid: str, size: int, event: bytes) -> GpuRegion:
        """A region in which a process writes tensors. Raises GpuError."""


class ModelServer(Protocol):
    """The services of a server for its models. `owner` identifies one life of one stub."""

    @property
    def gpus(self) -> GpuServer: ...

    @property
    def peers(self) -> GpuPeers: ...

    def find(self, name: str, version: int) -> Callee:
        """The model to call. Raises InferenceError if it does not serve."""

    def query(self, method: str, arguments: tuple[object, ...]) -> bool | int | bytes:
        """See app/queries.py. Raises InferenceError."""

    def when_ready(
        self, name: str, version: int, caller: str, call_back: Callable[[Callee | Exception], None]
    ) -> Callable[[], object]:
        """Find a model for a `caller` that is being loaded itself: if the model is being loaded, wait for it.

        `call_back` gets the model, or an InferenceError if it does not serve. The function returned ends the wait.
        """

    def trace_call(self, callee: Callee, job: Job, context: str) -> None:
        """See model_call.CallTracer."""

    def ask(
        self, owner: object, loading: str, method: str, arguments: list[object], reply: Callable[[int, object], None]
    ) -> None:
        """See Ask in utils/messages.py; `reply` is called with the fields of the Reply.

        `loading` is the name of the asking model while it is being loaded itself, otherwise "".
        """

    def measure(self, owner: object, metric: int, operation: str, value: float) -> None:
        """See Measure in utils/messages.py. Raises InferenceError."""

    def gone(self, owner: object) -> None:
        """A stub has ended: delete its metrics."""
