# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server as frontends see it: models, readiness, statistics, metrics, and the number of requests in progress.

Frontends depend on this module only; it depends on no frontend.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pyruntime
from pyruntime.runtime.app.load_reports import LoadReports
from pyruntime.runtime.app.memory_limit import memory_limit
from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.inference.intake import Intake
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.pending_bytes import PendingBytes, default_limit
from pyruntime.runtime.inference.threads import THREADS_MAX
from pyruntime.runtime.inference.turns import Turns
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.observe.log_settings import LogSettings
from pyruntime.runtime.observe.log_tail import LogTail
from pyruntime.runtime.observe.metrics import Metrics
from pyruntime.runtime.observe.stacks import OwnStacks
from pyruntime.runtime.observe.statistics_entry import statistics_entry
from pyruntime.runtime.repository.control import ModelControl
from pyruntime.runtime.repository.lifecycle import LATEST, IndexRow, LifecycleTable
from pyruntime.runtime.rounds import Rounds
from pyruntime.runtime.settings import ServerSettings
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.utils.errors import Code, InferenceError

VERSION = pyruntime.__version__


class LentConnection(Protocol):
    """A connection that can be lent."""

    def take_back(self) -> None:
        """Let the event loop read it again."""


class LentConnections(set[LentConnection]):
    """The connections that native threads read."""

    def recall(self) -> None:
        """Take all of them back, so that Python sees all further requests."""
        for connection in list(self):
            connection.take_back()


class ServerState:
    """The models of one server. `exiting` becomes True, and stays so, when the server begins to drain.

    `began_ms` is when the server began, in milliseconds since the epoch. `tasks` runs long operations. `settle` adds
    the responses that native threads sent to the counters. `lent` are the connections that these threads read.
    """

    def __init__(
        self,
        settings: ServerSettings,
        tasks: asyncio.TaskGroup,
        table: LifecycleTable[ModelVersion],
        control: ModelControl,
        metrics: Metrics,
        tracer: Tracer,
        log_settings: LogSettings,
        log_tail: LogTail,
        lent: LentConnections,
        settle: Callable[[], None],
        load_reports: LoadReports,
    ) -> None:
        self.settings = settings
        self.version = VERSION
        self.tasks = tasks
        self.table = table
        self.control = control
        self.metrics = metrics
        self.tracer = tracer
        self.log_settings = log_settings
        self.log_tail = log_tail
        self.lent = lent
        self.settle = settle
        self.load_reports = load_reports
        self.client_memory = ClientMemory(settings.allow_client_shm, settings.http_max_input_size)
        self.gpu_leases = GpuLeases(
            self.client_memory.brokers, settings.cuda_memory_pool_bytes, peer_access=settings.enable_peer_access
        )
        self.gpu_peers = GpuPeers(self.gpu_leases, tasks)
        self.stacks = OwnStacks()
        self.began_ms = time.time_ns() // 1_000_000
        self.loaded = False
        self.exiting = False
        self.in_flight = 0
        self.rounds = Rounds(time.monotonic, lambda call_back: self.soon(call_back))
        self.turns = Turns(THREADS_MAX)
        self.pending_bytes = PendingBytes(settings.max_pending_bytes or default_limit(memory_limit()), self.turns)
        self.intake = Intake(self.resolve, self.tracer, lambda: self.tasks, self.gpu_peers)
        self._idle = asyncio.Event()
        self._idle.set()

    def soon(self, call_back: Callable[[], None]) -> None:
        """Call back in the next turn of the event loop."""
        asyncio.get_running_loop().call_soon(call_back)

    def is_ready(self) -> bool:
        """Whether the server is ready, depending on --strict-readiness."""
        strict = self.settings.strict_readiness
        if not self.loaded or self.exiting or not self.table.is_ready(strict):
            return False
        return not strict or all(model.is_ready for model in self.models())

    def resolve(self, name: str, version: int = LATEST) -> ModelVersion:
        """The version that serves requests for a model. Raises InferenceError: unknown, not ready, or exiting."""
        if self.exiting:
            raise InferenceError("Server exiting", Code.UNAVAILABLE)
        model = self.table.serving.get((name, version))
        return self.table.resolve(name, version) if model is None else model

    async def wait_ready(self, name: str, version: int, caller: str) -> ModelVersion:
        """See ModelControl. Requests in progress when the server drains may still wait for a model."""
        return await self.control.wait_ready(name, version, caller)

    def models(self) -> list[ModelVersion]:
        """Every version that serves."""
        return [
            self.table.resolve(name, version)
            for name in dict.fromkeys(row.name for row in self.table.index())
            for version in self.table.ready_versions(name)
        ]

    def why_down(self, name: str, version: int) -> str:
        """Why the instances of a model, or of one version, are down; "" if they are not."""
        return "; ".join(
            model.problem
            for model in self.table.down.values()
            if model.spec.name == name and version in (LATEST, model.version)
        )

    def end_request(self) -> None:
        """A request is answered, or its client has disconnected. Its beginning incremented `in_flight`."""
        self.in_flight -= 1
        if not self.in_flight and self.exiting:
            self._idle.set()

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more requests, and wait for those in progress. False if some are left after `timeout_s` seconds."""
        self.exiting = True
        self.lent.recall()
        if not self.in_flight:
            return True
        self._idle.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def statistics(self, name: str = "", version: int = LATEST) -> list[dict[str, object]]:
        """The statistics of one version, of all versions of a model, or of all models.

        Raises InferenceError INVALID_ARG, with Triton's message, for an unknown model or version.
        """
        return list(self.statistics_parts(name, version))

    def statistics_parts(self, name: str = "", version: int = LATEST) -> Iterator[dict[str, object]]:
        """The same, version by version. Others may serve requests in between."""
        self.settle()
        versions = self.table.ready_versions(name) if name else ()
        if name and not versions:
            raise InferenceError(f"requested model '{name}' is not available", Code.INVALID_ARG)
        if version != LATEST and version not in versions:
            raise InferenceError(f"requested model version is not available for model '{name}'", Code.INVALID_ARG)
        models = [self.table.resolve(name, each) for each in versions] if name else self.models()
        return (
            statistics_entry(model.statistics, model.spec.name, model.version)
            for model in models
            if version in (LATEST, model.version)
        )

    def index(self, ready_only: bool) -> list[IndexRow]:
        """The repository index, with the reasons of instances that do not run."""
        rows = []
        for row in self.table.index():
            if row.state == "READY":
                problem = self.table.resolve(row.name, int(row.version)).problem
                row = IndexRow(row.name, row.version, row.state, problem) if problem else row
            elif ready_only:
                continue
            rows.append(row)
        return rows
