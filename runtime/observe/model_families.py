# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Renders Triton's metrics of models from their statistics, when a client requests the page. (pure)

Requests record nothing extra for them, except the summaries and histograms that --metrics-config enables. A version
that is no longer served has no lines, and the one that replaces it starts at 0. Executions of instances on GPUs have a
label `gpu_uuid`, as in Triton: a version then has a line for each GPU, and one for all other requests. Labels of
namespaces are omitted, because this server has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.observe import built_in
from pyruntime.runtime.observe.built_in import BuiltIn
from pyruntime.runtime.observe.exposition import labels_text
from pyruntime.runtime.observe.families import Histogram
from pyruntime.runtime.observe.statistics import CacheStatistics, FailureReason, MemoryUsage, ModelStatistics
from pyruntime.runtime.observe.summaries import Latencies, Summary
from pyruntime.runtime.settings import MetricsSettings

# The default buckets for the time until the first response, in milliseconds.
FIRST_RESPONSE_BOUNDS_MS = (100.0, 500.0, 2000.0, 5000.0)


@dataclass(frozen=True, slots=True)
class ModelReading:
    """A version that serves, with its current numbers. `pending` is the number of requests that wait for execution."""

    labels: Mapping[str, str]
    statistics: ModelStatistics
    pending: int
    load_s: float


Read = Callable[[ModelReading], float]

_SUCCESS: tuple[BuiltIn, Read] = (built_in.REQUEST_SUCCESS, lambda model: model.statistics.success_count)
_COUNTS: tuple[tuple[BuiltIn, Read], ...] = (
    (built_in.INFERENCE_COUNT, lambda model: model.statistics.inference_count),
    (built_in.EXECUTION_COUNT, lambda model: model.statistics.execution_count),
)
_DURATIONS: tuple[tuple[BuiltIn, Read], ...] = (
    (built_in.REQUEST_DURATION, lambda model: model.statistics.success_ns // 1000),
    (built_in.QUEUE_DURATION, lambda model: model.statistics.queue_ns // 1000),
    (built_in.INPUT_DURATION, lambda model: model.statistics.compute_input_ns // 1000),
    (built_in.INFER_DURATION, lambda model: model.statistics.compute_infer_ns // 1000),
    (built_in.OUTPUT_DURATION, lambda model: model.statistics.compute_output_ns // 1000),
)
_CACHE: tuple[tuple[BuiltIn, Callable[[CacheStatistics], float]], ...] = (
    (built_in.CACHE_HITS, lambda cache: cache.hit_count),
    (built_in.CACHE_HIT_DURATION, lambda cache: cache.hit_ns // 1000),
    (built_in.CACHE_MISSES, lambda cache: cache.miss_count),
    (built_in.CACHE_MISS_DURATION, lambda cache: cache.miss_ns // 1000),
)
_CACHE_SUMMARIES: tuple[tuple[BuiltIn, Callable[[Latencies], Summary]], ...] = (
    (built_in.CACHE_HIT_SUMMARY, lambda latencies: latencies.cache_hit),
    (built_in.CACHE_MISS_SUMMARY, lambda latencies: latencies.cache_miss),
)
_GAUGES: tuple[tuple[BuiltIn, Read], ...] = (
    (built_in.PENDING_COUNT, lambda model: model.pending),
    (built_in.LOAD_DURATION, lambda model: model.load_s),
)
_SUMMARIES: tuple[tuple[BuiltIn, Callable[[Latencies], Summary]], ...] = (
    (built_in.REQUEST_SUMMARY, lambda latencies: latencies.request),
    (built_in.QUEUE_SUMMARY, lambda latencies: latencies.queue),
    (built_in.INPUT_SUMMARY, lambda latencies: latencies.input),
    (built_in.INFER_SUMMARY, lambda latencies: latencies.infer),
    (built_in.OUTPUT_SUMMARY, lambda latencies: latencies.output),
)


def new_statistics(
    spec: ModelSpec,
    version: int,
    settings: MetricsSettings,
    *,
    has_cache: bool = False,
    memory_usage: Callable[[], Iterable[MemoryUsage]] = tuple,
) -> ModelStatistics:
    """The statistics of a version, with the summaries and histograms that the settings enable.

    `has_cache` says that requests to it go through a response cache. For `memory_usage` see ModelStatistics.
    """
    latencies = Latencies() if settings.summary_latencies else None
    histogram = None
    if settings.histogram_latencies:
        bounds = FIRST_RESPONSE_BOUNDS_MS if spec.first_response_bounds_ms is None else spec.first_response_bounds_ms
        histogram = Histogram(built_in.FIRST_RESPONSE.name, labels_text(labels_of(spec, version)), list(bounds))
    return ModelStatistics(latencies, histogram, CacheStatistics() if has_cache else None, memory_usage)


def labels_of(spec: ModelSpec, version: int) -> dict[str, str]:
    """The labels of a version's metrics. Those from its configuration begin with "_"."""
    tags = {f"_{key}": text for key, text in spec.metric_tags.items()}
    return {"model": spec.name, "version": str(version), **tags}


FAMILIES: tuple[BuiltIn, ...] = (
    built_in.REQUEST_SUCCESS,
    built_in.REQUEST_FAILURE,
    *(family for family, _ in (*_COUNTS, *_DURATIONS)),
    *(family for family, _ in _CACHE),
    *(family for family, _ in _GAUGES),
    built_in.FIRST_RESPONSE,
    *(family for family, _ in (*_SUMMARIES, *_CACHE_SUMMARIES)),
)

Samples = Iterator[tuple[BuiltIn, str]]


def model_samples(model: ModelReading, settings: MetricsSettings) -> Samples:
    """The samples of a version, each with its family: one of FAMILIES."""
    labels = labels_text(model.labels)
    yield built_in.REQUEST_FAILURE, _failures(model)
    for part in _by_gpu(model):
        part_labels = labels_text(part.labels)
        for family, read in (_SUCCESS, *_COUNTS, *(_DURATIONS if settings.counter_latencies else ())):
            yield family, family.sample(part_labels, read(part))
    for family, read in _GAUGES:
        yield family, family.sample(labels, read(model))
    statistics = model.statistics
    if statistics.first_responses is not None:
        yield built_in.FIRST_RESPONSE, statistics.first_responses.lines(built_in.FIRST_RESPONSE.name)
    if statistics.cache is not None and settings.counter_latencies:
        for family, read_cache in _CACHE:
            yield family, family.sample(labels, read_cache(statistics.cache))
    if statistics.latencies is not None:
        ranks = [rank for rank, _ in settings.summary_quantiles]
        for family, read_summary in (*_SUMMARIES, *(() if statistics.cache is None else _CACHE_SUMMARIES)):
            yield family, read_summary(statistics.latencies).lines(family.name, labels, ranks)


def _by_gpu(model: ModelReading) -> list[ModelReading]:
    """The counters of a version for each GPU that its instances are on, and last those of everything else."""
    statistics = model.statistics
    if not statistics.by_gpu:
        return [model]
    parts = [
        replace(model, labels={**model.labels, "gpu_uuid": uuid}, statistics=part)
        for uuid, part in statistics.by_gpu.items()
    ]
    return [*parts, replace(model, statistics=statistics.elsewhere)]


def _failures(model: ModelReading) -> str:
    """A sample for every reason, even if it is 0: a rate needs a first sample to start from."""
    return "".join(
        built_in.REQUEST_FAILURE.sample(
            labels_text({**model.labels, "reason": reason.value}), model.statistics.failures[reason]
        )
        for reason in FailureReason
    )
