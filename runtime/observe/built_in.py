# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The built-in metric families: Triton's, with its order and descriptions, and our own. (pure)

Our own begin with `pyruntime_`. Models cannot use any of these names, even if the family is not on the page.
"""

from __future__ import annotations

from typing import NamedTuple

from pyruntime.runtime.observe.exposition import family_head, number_text

_SUFFIXES = {"histogram": ("", "_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


class BuiltIn(NamedTuple):
    """One family."""

    name: str
    kind: str
    description: str

    @property
    def head(self) -> str:
        """The lines in front of its samples."""
        return family_head(self.name, self.description, self.kind)

    def sample(self, labels: str, value: float) -> str:
        """The line of one sample of a counter or a gauge."""
        return f"{self.name}{{{labels}}} {number_text(value)}\n" if labels else f"{self.name} {number_text(value)}\n"

    def lines(self, samples: list[str]) -> str:
        """The whole family; "" without samples."""
        return self.head + "".join(samples) if samples else ""


def _counter(name: str, description: str) -> BuiltIn:
    return BuiltIn(name, "counter", description)


def _gauge(name: str, description: str) -> BuiltIn:
    return BuiltIn(name, "gauge", description)


def _summary(name: str, description: str) -> BuiltIn:
    return BuiltIn(name, "summary", description)


# Requests, by model and version.

REQUEST_SUCCESS = _counter("nv_inference_request_success", "Number of successful inference requests, all batch sizes")
REQUEST_FAILURE = _counter("nv_inference_request_failure", "Number of failed inference requests, all batch sizes")
INFERENCE_COUNT = _counter("nv_inference_count", "Number of inferences performed (does not include cached requests)")
EXECUTION_COUNT = _counter(
    "nv_inference_exec_count", "Number of model executions performed (does not include cached requests)"
)
REQUEST_DURATION = _counter(
    "nv_inference_request_duration_us",
    "Cumulative inference request duration in microseconds (includes cached requests)",
)
QUEUE_DURATION = _counter(
    "nv_inference_queue_duration_us", "Cumulative inference queuing duration in microseconds (includes cached requests)"
)
INPUT_DURATION = _counter(
    "nv_inference_compute_input_duration_us",
    "Cumulative compute input duration in microseconds (does not include cached requests)",
)
INFER_DURATION = _counter(
    "nv_inference_compute_infer_duration_us",
    "Cumulative compute inference duration in microseconds (does not include cached requests)",
)
OUTPUT_DURATION = _counter(
    "nv_inference_compute_output_duration_us",
    "Cumulative inference compute output duration in microseconds (does not include cached requests)",
)
PENDING_COUNT = _gauge(
    "nv_inference_pending_request_count", "Instantaneous number of pending requests awaiting execution per-model."
)
LOAD_DURATION = _gauge("nv_model_load_duration_secs", "Model load time in seconds")

# Only for models that use the response cache.

CACHE_HITS = _counter("nv_cache_num_hits_per_model", "Number of cache hits per model")
CACHE_HIT_DURATION = _counter("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds")
CACHE_MISSES = _counter("nv_cache_num_misses_per_model", "Number of cache misses per model")
CACHE_MISS_DURATION = _counter(
    "nv_cache_miss_duration_per_model", "Total cache miss (insert+lookup) duration per model, in microseconds"
)
CACHE_HIT_SUMMARY = _summary(
    "nv_cache_hit_summary_per_model", "Summary of cache hit counts/durations per model, in microseconds."
)
CACHE_MISS_SUMMARY = _summary(
    "nv_cache_miss_summary_per_model", "Summary of cache miss counts/durations per model, in microseconds."
)

# Only for the response cache `local`. Triton's library of that name makes the same families itself.

CACHE_UTILIZATION = _gauge("nv_cache_util", "Cache utilization [0.0 - 1.0]")
CACHE_ENTRIES = _gauge("nv_cache_num_entries", "Number of responses stored in response cache")
CACHE_LOOKUP_HITS = _gauge("nv_cache_num_hits", "Number of cache hits in response cache")
CACHE_LOOKUP_MISSES = _gauge("nv_cache_num_misses", "Number of cache misses in response cache")
CACHE_LOOKUPS = _gauge("nv_cache_num_lookups", "Number of cache lookups in response cache")
CACHE_EVICTIONS = _gauge("nv_cache_num_evictions", "Number of cache evictions in response cache")
CACHE_LOOKUP_DURATION = _gauge(
    "nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds"
)
CACHE_INSERTION_DURATION = _gauge("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds")
LOCAL_CACHE = (
    CACHE_UTILIZATION,
    CACHE_ENTRIES,
    CACHE_LOOKUP_HITS,
    CACHE_LOOKUP_MISSES,
    CACHE_LOOKUPS,
    CACHE_EVICTIONS,
    CACHE_LOOKUP_DURATION,
    CACHE_INSERTION_DURATION,
)

# Only if --metrics-config enables them.

FIRST_RESPONSE = BuiltIn(
    "nv_inference_first_response_histogram_ms",
    "histogram",
    "Duration from request to first response in milliseconds",
)
REQUEST_SUMMARY = _summary(
    "nv_inference_request_summary_us",
    "Summary of inference request duration in microseconds (includes cached requests)",
)
QUEUE_SUMMARY = _summary(
    "nv_inference_queue_summary_us", "Summary of inference queuing duration in microseconds (includes cached requests)"
)
INPUT_SUMMARY = _summary(
    "nv_inference_compute_input_summary_us",
    "Cumulative compute input duration in microseconds (does not include cached requests)",
)
INFER_SUMMARY = _summary(
    "nv_inference_compute_infer_summary_us",
    "Cumulative compute inference duration in microseconds (does not include cached requests)",
)
OUTPUT_SUMMARY = _summary(
    "nv_inference_compute_output_summary_us",
    "Cumulative inference compute output duration in microseconds (does not include cached requests)",
)

# The machine.

PINNED_TOTAL = _gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes")
PINNED_USED = _gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes")
GPU_UTILIZATION = _gauge("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)")
GPU_MEMORY_TOTAL = _gauge("nv_gpu_memory_total_bytes", "GPU total memory, in bytes")
GPU_MEMORY_USED = _gauge("nv_gpu_memory_used_bytes", "GPU used memory, in bytes")
GPU_POWER_USAGE = _gauge("nv_gpu_power_usage", "GPU power usage in watts")
GPU_POWER_LIMIT = _gauge("nv_gpu_power_limit", "GPU power management limit in watts")
GPU_ENERGY = _counter("nv_energy_consumption", "GPU energy consumption in joules since the Triton Server started")
CPU_UTILIZATION = _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]")
CPU_MEMORY_TOTAL = _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes")
CPU_MEMORY_USED = _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes")

# Our own.

STUB_RESTARTS = _counter(
    "pyruntime_stub_restarts_total", "Number of times that the stub of an instance was started again"
)
INSTANCES = _gauge(
    "pyruntime_instances",
    "Number of instances in a state: ready, starting (again), down after too many deaths, or leaving",
)
QUEUED_REQUESTS = _gauge("pyruntime_queued_requests", "Number of requests that no instance has been given yet")
LEVEL_QUEUED = _gauge(
    "pyruntime_level_queued_requests",
    "Number of requests of a priority level that no instance has been given yet; levels above 32 are one, 'more'",
)
LEVEL_TAKEN = _counter(
    "pyruntime_level_dequeued_requests_total", "Number of requests of a priority level that were given to an instance"
)
LEVEL_WAIT = _counter(
    "pyruntime_level_queue_seconds_total",
    "How long the requests of a priority level that were given to an instance had queued, in seconds",
)
LEVEL_REJECTED = _counter(
    "pyruntime_level_rejected_requests_total", "Number of requests of a priority level that found its queue full"
)
LEVEL_TIMED_OUT = _counter(
    "pyruntime_level_timed_out_requests_total",
    "Number of requests of a priority level that queued longer than its policy permits: rejected or delayed",
)
SHARED_MEMORY = _gauge(
    "pyruntime_shared_memory_bytes", "Shared memory that a model's requests and its instances' responses use, in bytes"
)
COPIED_BYTES = _counter(
    "pyruntime_ensemble_copied_bytes_total",
    "Bytes of tensors between the steps of an ensemble that had to be copied, because only the server could read them",
)
GPU_POOL = _gauge(
    "pyruntime_gpu_pool_bytes",
    "Memory of a GPU for tensors between models: leased by models, or kept for them, in bytes",
)
CONNECTIONS = _gauge("pyruntime_connections", "Number of open connections of clients")
IN_FLIGHT = _gauge("pyruntime_requests_in_flight", "Number of requests of clients that are not answered yet")
PENDING_BYTES = _gauge(
    "pyruntime_pending_bytes", "Bytes of requests that --max-pending-bytes limits: they are not in request memory yet"
)
LOOP_LAG = BuiltIn(
    "pyruntime_event_loop_lag_seconds", "histogram", "How late the event loop is for its timers, in seconds"
)

FAMILIES = tuple(family for family in list(globals().values()) if isinstance(family, BuiltIn))
# The names that a model cannot use.
SAMPLE_NAMES = frozenset(family.name + suffix for family in FAMILIES for suffix in _SUFFIXES.get(family.kind, ("",)))
