# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Renders Triton's metrics of models from their statistics, when a client requests the page. (pure)

Requests record nothing extra for them, except the summaries and histograms that --metrics-config enables. A version
that is no longer served has no lines, and the one that replaces it starts at 0. Executions of instances on GPUs have a
label `gpu_uuid`, as in Triton: a version then has a line for each GPU, and one for all other requests. Labels of
namespaces are omitted, because this server has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
Series = list[tuple[str, ModelReading]]

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


def model_lines(models: Sequence[ModelReading], settings: MetricsSettings) -> str:
    """All families of models."""
    series = [(labels_text(model.labels), model) for model in models]
    by_gpu = [(labels_text(part.labels), part) for model in models for part in _by_gpu(model)]
    families = [_family(built_in.REQUEST_SUCCESS, by_gpu, lambda model: model.statistics.success_count)]
    families.append(built_in.REQUEST_FAILURE.lines([_failures(model) for _, model in series]))
    families += [_family(family, by_gpu, read) for family, read in _COUNTS]
    if settings.counter_latencies:
        families += [_family(family, by_gpu, read) for family, read in _DURATIONS]
        families += [_cache_family(family, series, read) for family, read in _CACHE]
    families += [_family(family, series, read) for family, read in _GAUGES]
    families.append(built_in.FIRST_RESPONSE.lines(_first_responses(series)))
    ranks = [rank for rank, _ in settings.summary_quantiles]
    families += [_summary_family(family, series, read, ranks) for family, read in _SUMMARIES]
    cached = [(labels, model) for labels, model in series if model.statistics.cache is not None]
    families += [_summary_family(family, cached, read, ranks) for family, read in _CACHE_SUMMARIES]
    return "".join(families)


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


def _summary_family(family: BuiltIn, series: Series, read: Callable[[Latencies], Summary], ranks: list[float]) -> str:
    return family.lines(
        [
            read(model.statistics.latencies).lines(family.name, labels, ranks)
            for labels, model in series
            if model.statistics.latencies is not None
        ]
    )


def _cache_family(family: BuiltIn, series: Series, read: Callable[[CacheStatistics], float]) -> str:
    """A family of the models that use the response cache."""
    return family.lines(
        [
            family.sample(labels, read(model.statistics.cache))
            for labels, model in series
            if model.statistics.cache is not None
        ]
    )


def _family(family: BuiltIn, series: Series, read: Read) -> str:
    return family.lines([family.sample(labels, read(model)) for labels, model in series])


def _failures(model: ModelReading) -> str:
    """A sample for every reason, even if it is 0: a rate needs a first sample to start from."""
    return "".join(
        built_in.REQUEST_FAILURE.sample(
            labels_text({**model.labels, "reason": reason.value}), model.statistics.failures[reason]
        )
        for reason in FailureReason
    )


def _first_responses(series: Series) -> list[str]:
    name = built_in.FIRST_RESPONSE.name
    histograms = [model.statistics.first_responses for _, model in series]
    return [histogram.lines(name) for histogram in histograms if histogram is not None]
