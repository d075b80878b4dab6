# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the metrics of the server itself: all families but those that models create.

It reads them when a client requests the page; only devices and the event loop are measured all the time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.caching.cache import CacheUsage, ResponseCache
from pyruntime.runtime.execution.executor import state_of
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.observe import built_in
from pyruntime.runtime.observe.built_in import BuiltIn
from pyruntime.runtime.observe.devices import Devices
from pyruntime.runtime.observe.exposition import labels_text
from pyruntime.runtime.observe.level_statistics import LevelStatistics
from pyruntime.runtime.observe.loop_lag import LoopLag
from pyruntime.runtime.observe.model_families import ModelReading, labels_of, model_lines
from pyruntime.runtime.observe.summaries import TURN_S

_LEVEL_FAMILIES: tuple[tuple[BuiltIn, Callable[[LevelStatistics], float]], ...] = (
    (built_in.LEVEL_QUEUED, lambda level: level.waiting),
    (built_in.LEVEL_TAKEN, lambda level: level.taken_count),
    (built_in.LEVEL_WAIT, lambda level: level.wait_s),
    (built_in.LEVEL_REJECTED, lambda level: level.rejected_count),
    (built_in.LEVEL_TIMED_OUT, lambda level: level.timed_out_count),
)


class ServerMetrics:
    """See the module. `connections` counts the open ones, by protocol; `cache` is the server's, None if it has none.

    `pinned_memory` returns the size of the pool of pinned memory and what is in use. `machine`: see Devices.
    """

    def __init__(
        self,
        state: ServerState,
        connections: Callable[[], Mapping[str, int]],
        cache: ResponseCache | None,
        pinned_memory: Callable[[], tuple[int, int]],
    ) -> None:
        settings = state.settings
        self._state = state
        self._connections = connections
        self._cache = cache
        self._pinned_memory = pinned_memory
        self._devices = Devices(settings.allow_cpu_metrics, settings.allow_gpu_metrics)
        self.machine = self._devices.machine
        self._lag = LoopLag()

    async def run(self) -> None:
        """Measure devices and the event loop, until cancelled."""
        settings = self._state.settings
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._devices.run(settings.metrics_interval_ms / 1000), name="read devices")
            tasks.create_task(self._lag.run(), name="probe the event loop")
            if settings.metrics_config.summary_latencies:
                tasks.create_task(self._turn_summaries(), name="turn summaries")

    def lines(self) -> str:
        """The families as text of the metrics page."""
        self._state.settle()
        pinned, pinned_used = self._pinned_memory()
        models = [*self._state.models(), *self._state.table.down.values()]
        readings = [
            ModelReading(labels_of(model.spec, model.version), model.statistics, model.pending, model.load_s)
            for model in models
        ]
        return "".join(
            (
                model_lines(readings, self._state.settings.metrics_config),
                cache_lines(None if self._cache is None else self._cache.usage),
                built_in.PINNED_TOTAL.lines([built_in.PINNED_TOTAL.sample("", pinned)]),
                built_in.PINNED_USED.lines([built_in.PINNED_USED.sample("", pinned_used)]),
                self._devices.lines(),
                self._own_model_lines(models),
                self._own_lines(),
            )
        )

    def _own_lines(self) -> str:
        connections = [
            built_in.CONNECTIONS.sample(labels_text({"protocol": protocol}), count)
            for protocol, count in self._connections().items()
        ]
        pools = [
            built_in.GPU_POOL.sample(labels_text({"gpu_uuid": uuid, "state": state}), size)
            for uuid, sizes in self._state.gpu_leases.usage().items()
            for state, size in zip(("leased", "kept"), sizes, strict=True)
        ]
        in_flight = built_in.IN_FLIGHT.sample("", self._state.in_flight)
        pending_bytes = built_in.PENDING_BYTES.sample("", self._state.pending_bytes.used)
        return (
            built_in.CONNECTIONS.lines(connections)
            + built_in.IN_FLIGHT.lines([in_flight])
            + (built_in.GPU_POOL.lines(pools) if pools else "")
            + built_in.PENDING_BYTES.lines([pending_bytes])
            + self._lag.lines()
        )

    def _own_model_lines(self, models: Sequence[ModelVersion]) -> str:
        restarts, states, queued, shared, copied = [], [], [], [], []
        for model in models:
            labels = {"model": model.spec.name, "version": str(model.version)}
            if model.spec.ensemble is not None:  # it has no instances
                copied.append(built_in.COPIED_BYTES.sample(labels_text(labels), model.statistics.copied_bytes))
            else:
                restarts += [
                    built_in.STUB_RESTARTS.sample(labels_text({**labels, "instance": instance.name}), instance.restarts)
                    for instance in model.instances
                ]
                counts = Counter({**Counter(map(state_of, model.instances)), "leaving": len(model.leaving)})
                states += [
                    built_in.INSTANCES.sample(labels_text({**labels, "state": state}), counts[state])
                    for state in ("ready", "starting", "down", "leaving")
                ]
            queued.append(built_in.QUEUED_REQUESTS.sample(labels_text(labels), len(model.scheduler)))
            regions = {
                "requests": model.memory.region.used_bytes,
                "responses": sum(instance.response_bytes for instance in (*model.instances, *model.leaving)),
            }
            shared += [
                built_in.SHARED_MEMORY.sample(labels_text({**labels, "region": region}), size)
                for region, size in regions.items()
            ]
        return (
            built_in.STUB_RESTARTS.lines(restarts)
            + built_in.INSTANCES.lines(states)
            + built_in.QUEUED_REQUESTS.lines(queued)
            + _level_lines(models)
            + built_in.SHARED_MEMORY.lines(shared)
            + built_in.COPIED_BYTES.lines(copied)
        )

    async def _turn_summaries(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            for model in self._state.models():
                if model.statistics.latencies is not None:
                    model.statistics.latencies.turn()


def _level_lines(models: Sequence[ModelVersion]) -> str:
    """The families of priority levels."""
    levels = [
        (labels_text({"model": model.spec.name, "version": str(model.version), "level": name}), level)
        for model in models
        for name, level in model.scheduler.levels().items()
    ]
    return "".join(
        family.lines([family.sample(labels, read(level)) for labels, level in levels])
        for family, read in _LEVEL_FAMILIES
    )


def cache_lines(usage: CacheUsage | None) -> str:
    """The families of a response cache; none if its usage is not known."""
    if usage is None:
        return ""
    values = (
        usage.used,
        usage.entries,
        usage.hits,
        usage.misses,
        usage.hits + usage.misses,
        usage.evictions,
        usage.lookup_ns // 1000,
        usage.insertion_ns // 1000,
    )
    return "".join(
        family.lines([family.sample("", value)]) for family, value in zip(built_in.LOCAL_CACHE, values, strict=True)
    )
