# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the metrics of the server itself: all families but those that models create.

It reads them when a client requests the page; only devices and the event loop are measured all the time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

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
from pyruntime.runtime.observe.model_families import FAMILIES, ModelReading, Samples, labels_of, model_samples
from pyruntime.runtime.observe.summaries import TURN_S

# A part of the page, in bytes: as much as some fifty models have, whose text takes no longer to join than that of one
# takes to write.
PART_BYTES = 128 << 10

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

    def lines(self) -> Iterator[str]:
        """The families as text of the metrics page: in parts, each of which takes about as long as one model.

        What a model has is read at one moment. One that is unloaded meanwhile has its last numbers.
        """
        state = self._state
        state.settle()
        config = state.settings.metrics_config
        samples: dict[BuiltIn, list[str]] = {family: [] for family in (*FAMILIES, *_OWN_FAMILIES)}
        for model in (*state.models(), *state.table.down.values()):
            labels = labels_of(model.spec, model.version)
            reading = ModelReading(labels, model.statistics, model.pending, model.load_s)
            for family, text in chain(model_samples(reading, config), _own_samples(model)):
                samples[family].append(text)
            yield ""
        yield from _texts_of(FAMILIES, samples)
        pinned, pinned_used = self._pinned_memory()
        yield cache_lines(None if self._cache is None else self._cache.usage)
        yield built_in.PINNED_TOTAL.lines([built_in.PINNED_TOTAL.sample("", pinned)])
        yield built_in.PINNED_USED.lines([built_in.PINNED_USED.sample("", pinned_used)])
        yield self._devices.lines()
        yield from _texts_of(_OWN_FAMILIES, samples)
        yield self._own_lines()

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

    async def _turn_summaries(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            for model in self._state.models():
                if model.statistics.latencies is not None:
                    model.statistics.latencies.turn()


_OWN_FAMILIES = (
    built_in.STUB_RESTARTS,
    built_in.INSTANCES,
    built_in.QUEUED_REQUESTS,
    *(family for family, _ in _LEVEL_FAMILIES),
    built_in.SHARED_MEMORY,
    built_in.COPIED_BYTES,
)


def _texts_of(families: Iterable[BuiltIn], samples: Mapping[BuiltIn, list[str]]) -> Iterator[str]:
    """Families with their samples, in parts of PART_BYTES or a little more."""
    texts, size = [], 0
    for family in families:
        texts.append(family.lines(samples[family]))
        size += len(texts[-1])
        if size >= PART_BYTES:
            yield "".join(texts)
            texts, size = [], 0
    yield "".join(texts)


def _own_samples(model: ModelVersion) -> Samples:
    """The samples of a version in families of our own."""
    labels = {"model": model.spec.name, "version": str(model.version)}
    own = labels_text(labels)
    if model.spec.ensemble is not None:  # it has no instances
        yield built_in.COPIED_BYTES, built_in.COPIED_BYTES.sample(own, model.statistics.copied_bytes)
    else:
        for instance in model.instances:
            text = labels_text({**labels, "instance": instance.name})
            yield built_in.STUB_RESTARTS, built_in.STUB_RESTARTS.sample(text, instance.restarts)
        counts = Counter({**Counter(map(state_of, model.instances)), "leaving": len(model.leaving)})
        for state in ("ready", "starting", "down", "leaving"):
            yield built_in.INSTANCES, built_in.INSTANCES.sample(labels_text({**labels, "state": state}), counts[state])
    yield built_in.QUEUED_REQUESTS, built_in.QUEUED_REQUESTS.sample(own, len(model.scheduler))
    for name, level in model.scheduler.levels().items():
        text = labels_text({**labels, "level": name})
        for family, read in _LEVEL_FAMILIES:
            yield family, family.sample(text, read(level))
    regions = {
        "requests": model.memory.region.used_bytes,
        "responses": sum(instance.response_bytes for instance in (*model.instances, *model.leaving)),
    }
    for region, size in regions.items():
        yield built_in.SHARED_MEMORY, built_in.SHARED_MEMORY.sample(labels_text({**labels, "region": region}), size)


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
