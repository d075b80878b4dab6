# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The statistics of one model version as the statistics endpoints show them, with the protocol's names. (pure)"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.observe.statistics import CacheStatistics, MemoryUsage, ModelStatistics, ResponseStatistics

# The protocol's type for bytes and nanoseconds is uint64. Backends may report larger or negative numbers.
_UINT64_MAX = (1 << 64) - 1
# The names of TRITONSERVER_MemoryType.
_MEMORY_TYPES = {0: "CPU", 1: "CPU_PINNED", 2: "GPU"}


def statistics_entry(statistics: ModelStatistics, name: str, version: int) -> dict[str, object]:
    """One entry of `model_stats`, with the protocol's names."""
    cache = statistics.cache or CacheStatistics()
    successes = statistics.success_count
    executed = successes - cache.hit_count
    return {
        "name": name,
        "version": str(version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {
            "success": _duration(successes, statistics.success_ns),
            "fail": _duration(statistics.failure_count, statistics.failure_ns),
            "queue": _duration(successes, statistics.queue_ns),
            "compute_input": _duration(executed, statistics.compute_input_ns),
            "compute_infer": _duration(executed, statistics.compute_infer_ns),
            "compute_output": _duration(executed, statistics.compute_output_ns),
            "cache_hit": _duration(cache.hit_count, cache.hit_ns),
            "cache_miss": _duration(cache.miss_count, cache.miss_ns),
        },
        "batch_stats": [
            {
                "batch_size": batch_size,
                "compute_input": _duration(batch.count, batch.compute_input_ns),
                "compute_infer": _duration(batch.count, batch.compute_infer_ns),
                "compute_output": _duration(batch.count, batch.compute_output_ns),
            }
            for batch_size, batch in sorted(statistics.batches.items())
        ],
        "response_stats": {
            str(index): _responses(statistics.responses[index]) for index in sorted(statistics.responses)
        },
        "memory_usage": _memory_usage(statistics.memory_usage()),
    }


def _responses(responses: ResponseStatistics) -> dict[str, dict[str, int]]:
    """One value of `response_stats`, with the protocol's names."""
    put_out = responses.success_count + responses.fail_count
    return {
        "compute_infer": _duration(put_out + responses.empty_count, responses.compute_infer_ns),
        "compute_output": _duration(put_out, responses.compute_output_ns),
        "success": _duration(responses.success_count, responses.success_ns),
        "fail": _duration(responses.fail_count, responses.fail_ns),
        "empty_response": _duration(responses.empty_count, responses.empty_ns),
        "cancel": _duration(responses.cancel_count, responses.cancel_ns),
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": min(max(0, ns), _UINT64_MAX)}


def _memory_usage(reported: Iterable[MemoryUsage]) -> list[dict[str, str | int]]:
    sums: dict[tuple[int, int], int] = {}
    for kind, device, size in reported:
        sums[kind, device] = sums.get((kind, device), 0) + size
    return [
        {"type": _MEMORY_TYPES.get(kind, "<invalid>"), "id": device, "byte_size": min(size, _UINT64_MAX)}
        for (kind, device), size in sorted(sums.items())
    ]
