# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The statistics of a model version: what is recorded is what the protocol shows."""

from pyruntime.runtime.observe.statistics import ModelStatistics


def test_nothing_happened_yet():
    """A version that was never used shows every counter, at zero."""
    zero = {"count": 0, "ns": 0}
    assert ModelStatistics().as_dict("m", 1) == {
        "name": "m",
        "version": "1",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {
            "success": zero,
            "fail": zero,
            "queue": zero,
            "compute_input": zero,
            "compute_infer": zero,
            "compute_output": zero,
            "cache_hit": zero,
            "cache_miss": zero,
        },
        "batch_stats": [],
        "response_stats": {},
        "memory_usage": [],
    }


def test_successes_count_requests_and_rows():
    """Durations are summed and counted by request, inferences by row."""
    statistics = ModelStatistics()
    statistics.success(3, queue_ns=1, input_ns=10, infer_ns=100, output_ns=1000, total_ns=1111)
    statistics.success(1, queue_ns=2, input_ns=20, infer_ns=200, output_ns=2000, total_ns=2222)
    shown = statistics.as_dict("m", 1)
    assert shown["inference_count"] == 4
    assert shown["execution_count"] == 0
    assert shown["inference_stats"] == {
        "success": {"count": 2, "ns": 3333},
        "fail": {"count": 0, "ns": 0},
        "queue": {"count": 2, "ns": 3},
        "compute_input": {"count": 2, "ns": 30},
        "compute_infer": {"count": 2, "ns": 300},
        "compute_output": {"count": 2, "ns": 3000},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }


def test_failures_count_as_nothing_else():
    """A failed request is no inference."""
    statistics = ModelStatistics()
    statistics.failure(total_ns=7)
    statistics.failure(total_ns=8)
    shown = statistics.as_dict("m", 1)
    assert shown["inference_stats"]["fail"] == {"count": 2, "ns": 15}
    assert shown["inference_stats"]["success"]["count"] == shown["inference_count"] == 0


def test_executions_are_counted_by_batch_size():
    """Every size that was executed has a row, in order, and the last execution is the last inference."""
    statistics = ModelStatistics()
    statistics.execution(8, input_ns=1, infer_ns=10, output_ns=100, now_ms=1_000)
    statistics.execution(2, input_ns=2, infer_ns=20, output_ns=200, now_ms=2_000)
    statistics.execution(8, input_ns=3, infer_ns=30, output_ns=300, now_ms=3_000)
    shown = statistics.as_dict("m", 2)
    assert shown["version"] == "2"
    assert shown["execution_count"] == 3
    assert shown["last_inference"] == 3_000
    assert shown["batch_stats"] == [
        {
            "batch_size": 2,
            "compute_input": {"count": 1, "ns": 2},
            "compute_infer": {"count": 1, "ns": 20},
            "compute_output": {"count": 1, "ns": 200},
        },
        {
            "batch_size": 8,
            "compute_input": {"count": 2, "ns": 4},
            "compute_infer": {"count": 2, "ns": 40},
            "compute_output": {"count": 2, "ns": 400},
        },
    ]
