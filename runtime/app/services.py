# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Serves the models themselves: calls to other models, model control, metrics.

See instances.model_server. Arguments from models are as untrusted as requests of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pyruntime.runtime.app.queries import QUERIES, answer_query
from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.calls.model_call import Callee
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.observe.metrics import Metrics
from pyruntime.runtime.repository.lifecycle import LifecycleTable
from pyruntime.runtime.repository.versions import parse_version
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.messages import OK

_LOG = logging.getLogger("pyruntime.services")

Reply = Callable[[int, object], None]


class ModelServices:
    """See the module. `tasks` runs the operations that models wait for.

    `state` returns the state of the server, which is created later, because its models use these services.
    """

    def __init__(
        self,
        table: LifecycleTable[ModelVersion],
        metrics: Metrics,
        tracer: Tracer,
        state: Callable[[], ServerState],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._table = table
        self._metrics = metrics
        self._tracer = tracer
        self._state = state
        self._tasks = tasks
        self._warned: set[object] = set()
        # See ModelServer. A request in progress when the server drains may still make calls.
        self.find: Callable[[str, int], Callee] = table.resolve

    @property
    def gpus(self) -> GpuLeases:
        """See ModelServer."""
        return self._state().gpu_leases

    @property
    def peers(self) -> GpuPeers:
        """See ModelServer."""
        return self._state().gpu_peers

    def query(self, method: str, arguments: tuple[object, ...]) -> bool | int | bytes:
        """See ModelServer."""
        return answer_query(self._state(), method, arguments)

    def when_ready(
        self, name: str, version: int, caller: str, call_back: Callable[[Callee | Exception], None]
    ) -> Callable[[], object]:
        """See ModelServer."""
        wait = self._wait(name, version, caller, call_back)
        return self._tasks.create_task(wait, name=f"{caller} waits for {name}").cancel

    async def _wait(
        self, name: str, version: int, caller: str, call_back: Callable[[Callee | Exception], None]
    ) -> None:
        try:
            callee: Callee | Exception = await self._state().wait_ready(name, version, caller)
        except InferenceError as exc:
            callee = exc
        call_back(callee)

    def trace_call(self, callee: Callee, job: Job, context: str) -> None:
        """See ModelServer. A context without an open trace of this server reaches the callee unchanged."""
        trace = self._tracer.call(callee, job.id, context)
        if trace is not None:
            trace.attach(job, callee.memory.region)

    def ask(self, owner: object, loading: str, method: str, arguments: list[Any], reply: Reply) -> None:
        """See ModelServer."""
        try:
            match method, arguments:
                case "load_model", [str() as name, str() as config, dict() as files]:
                    _check_files(name, files)
                    self._run(self._state().control.load(name, config, files, caller=loading), reply)
                case "unload_model", [str() as name, bool() as dependents]:
                    self._run(self._state().control.unload(name, dependents), reply)
                case "is_model_ready", [str() as name, str() as version]:
                    reply(OK, self._is_ready(name, version))
                case str(), _ if method in QUERIES:
                    reply(OK, self._query(method, arguments))
                case _:
                    reply(OK, self._ask_metrics(owner, method, arguments))
        except InferenceError as exc:
            reply(int(exc.code), exc.message)

    def measure(self, owner: object, metric: int, operation: str, value: float) -> None:
        """See ModelServer. The stub checks the arguments, so a remaining error is only logged."""
        try:
            self._metrics.measure(owner, metric, operation, value)
        except InferenceError as exc:
            if owner not in self._warned:  # once, because the same model will repeat it often
                self._warned.add(owner)
                _LOG.warning("a metric of a model: %s", exc.message)

    def gone(self, owner: object) -> None:
        """See ModelServer."""
        self._metrics.drop_owner(owner)
        self._warned.discard(owner)

    def _ask_metrics(self, owner: object, method: str, arguments: list[Any]) -> Any:
        metrics = self._metrics
        match method, arguments:
            case "metric_family", [name, description, kind]:
                return metrics.family(owner, name, description, kind)
            case "metric", [family, labels, buckets]:
                return metrics.metric(owner, family, labels, buckets)
            case "add_observations", [metric, counts, total]:
                return metrics.add_observations(owner, metric, counts, total)
            case "metric_value", [metric]:
                return metrics.value(owner, metric)
            case "drop_family", [family]:
                return metrics.drop_family(owner, family)
            case "drop_metric", [metric]:
                return metrics.drop_metric(owner, metric)
        raise InferenceError(f"there is no method {method[:40]!r} with such arguments", Code.INVALID_ARG)

    def _query(self, method: str, arguments: list[object]) -> bool | int | bytes:
        try:
            return self.query(method, tuple(arguments))
        except TypeError as exc:
            raise InferenceError(f"these are no arguments of {method}", Code.INVALID_ARG) from exc

    def _is_ready(self, name: str, version: str) -> bool:
        number = parse_version(version)
        try:
            return self._table.resolve(name, number).is_ready
        except InferenceError:
            return False

    def _run(self, step: Awaitable[object], reply: Reply) -> None:
        async def run() -> None:
            try:
                await step
            except InferenceError as exc:
                reply(int(exc.code), exc.message)
            else:
                reply(OK, None)

        self._tasks.create_task(run(), name="what a model asked for")


def _check_files(name: str, files: Mapping[object, object]) -> None:
    if any(type(path) is not str or type(content) is not bytes for path, content in files.items()):
        raise InferenceError(
            f"failed to load model '{name}', files should be a dictionary of file paths and file contents",
            Code.INVALID_ARG,
        )
