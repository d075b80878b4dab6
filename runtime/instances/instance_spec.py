# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What an instance is made from, and what it tells whoever gives it work. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.environments.environment import Environment
from pyruntime.runtime.instances.call_request import ValidatedSignatures
from pyruntime.runtime.instances.deadlock import Waiting
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.runtime.scheduling.job import Job, Respond

Batch = list[Job]


class Callee(Protocol):
    """A model version, for a model that calls it. `workers` are all who execute its requests."""

    spec: ModelSpec
    version: int
    memory: RequestMemory
    kinds: ValidatedSignatures

    @property
    def workers(self) -> Sequence[Waiting]: ...

    def accept(self, request: InferRequest, respond: Respond) -> Job:
        """See ModelVersion."""

    def start(self, job: Job) -> None:
        """See ModelVersion."""

    def cancel(self, job: Job) -> None:
        """See ModelVersion."""


class ModelServer(Protocol):
    """What the models of a server may want of it. `owner` stands for one life of one stub."""

    def resolve(self, name: str, version: int) -> Callee:
        """The model that a call goes to. Raises InferenceError if it does not serve."""

    def find(self, name: str, version: int) -> Callee:
        """The same, for native code: the errors are the server's own."""

    def query(self, method: str, arguments: tuple[Any, ...]) -> bool | int | bytes:
        """See server_queries.py. Raises InferenceError."""

    def when_ready(
        self, name: str, version: int, caller: str, call_back: Callable[[Callee | Exception], None]
    ) -> Callable[[], object]:
        """For a model that calls another one while it loads: wait for that one, if there is any sense in it.

        What is returned ends the wait.
        """

    def trace_call(self, callee: Callee, job: Job, context: str) -> None:
        """A call that was made for a request with this context of a trace is about to start."""

    def ask(
        self, owner: object, loading: str, method: str, arguments: list[Any], reply: Callable[[int, Any], None]
    ) -> None:
        """See Ask in utils/messages.py; `reply` is called with the fields of the Reply.

        `loading` is the name of the model that asks, if it is itself being loaded.
        """

    def measure(self, owner: object, metric: int, operation: str, value: float) -> None:
        """See Measure in utils/messages.py. Raises InferenceError."""

    def gone(self, owner: object) -> None:
        """The stub has ended: forget what it asked for."""


@dataclass(frozen=True, slots=True)
class StubInstanceSpec:
    """All that it takes to start an instance of one model version.

    `concurrency` is how many threads of one process execute; `environment` is the Python that the model wants instead
    of the host's.
    """

    name: str
    spec: ModelSpec
    version: int
    location: dict[str, str]
    args: dict[str, str]
    memory: RequestMemory
    growth_bytes: int
    statistics: ModelStatistics
    server: ModelServer
    concurrency: int = 1
    environment: Environment | None = None


class Owner(Protocol):
    """Who gives an instance its work. Every method is called on the event loop's thread and must not raise."""

    def place_freed(self) -> None:
        """An instance can take another batch."""

    def put_back(self, batch: Batch) -> None:
        """A batch that never started; it goes to the front of the queue."""

    def reschedule(self, job: Job) -> None:
        """The model wants this job executed again; it goes to the end of the queue."""

    def instance_changed(self) -> None:
        """An instance became ready, died, or was given up."""
