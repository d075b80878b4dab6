# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The statistics of a model version in the protocol's form."""

from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.observe.statistics_entry import statistics_entry


def test_nothing_happened_yet():
    """A version that was never used shows every counter, at zero."""
    zero = {"count": 0, "ns": 0}
    assert statistics_entry(ModelStatistics(), "m", 1) == {
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


def test_times_that_cannot_be():
    """Arbitrary times of a backend are reported as values that the protocol can hold."""
    statistics = ModelStatistics()
    statistics.success(1, -5, 1 << 65, 0, 0, 7)
    statistics.execution(1, -1, 1 << 64, 2, 0)
    statistics.response(0).success(-1, 1 << 64)
    told = statistics_entry(statistics, "m", 1)
    assert (told["inference_stats"]["queue"], told["inference_stats"]["compute_input"]) == (
        {"count": 1, "ns": 0},
        {"count": 1, "ns": (1 << 64) - 1},
    )
    (batch,) = told["batch_stats"]
    assert (batch["compute_input"]["ns"], batch["compute_infer"]["ns"]) == (0, (1 << 64) - 1)
    assert told["response_stats"]["0"]["compute_infer"]["ns"] == 0
    assert told["response_stats"]["0"]["compute_output"]["ns"] == (1 << 64) - 1


def test_memory_usage():
    """Reports about the same memory are added up, kind by kind, and limited to what the protocol can hold."""
    statistics = ModelStatistics()
    statistics.memory_usage = lambda: [
        (2, 3, 4096),
        (1, 0, 1 << 40),
        (2, 3, 4),
        (2, 1, 1),
        (0, 0, (1 << 64) - 1),
        (0, 0, 1),
    ]
    assert statistics_entry(statistics, "m", 1)["memory_usage"] == [
        {"type": "CPU", "id": 0, "byte_size": (1 << 64) - 1},
        {"type": "CPU_PINNED", "id": 0, "byte_size": 1 << 40},
        {"type": "GPU", "id": 1, "byte_size": 1},
        {"type": "GPU", "id": 3, "byte_size": 4100},
    ]
    statistics.memory_usage = lambda: [(7, -1, 5)]
    assert statistics_entry(statistics, "m", 1)["memory_usage"] == [{"type": "<invalid>", "id": -1, "byte_size": 5}]
