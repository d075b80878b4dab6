# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What one model version has done so far, as the statistics endpoints tell it. (pure)

Only counters that grow, in nanoseconds and counts; a scrape takes differences. Recording is on the path of every
request, hence plain integers and no locks: everything is recorded and read on the one event loop.
"""

from __future__ import annotations

from typing import Any


class BatchStatistics:
    """The executions of one batch size. Times are sums over `count` executions, in nanoseconds."""

    __slots__ = ("compute_infer_ns", "compute_input_ns", "compute_output_ns", "count")

    def __init__(self) -> None:
        self.count = self.compute_input_ns = self.compute_infer_ns = self.compute_output_ns = 0


class ModelStatistics:
    """The counters of one model version.

    `success_count` and `failure_count` count requests, `inference_count` the rows of the successful ones, and
    `execution_count` the batches that instances executed. A batch's times count in full for every request in it.
    """

    __slots__ = (
        "batches",
        "compute_infer_ns",
        "compute_input_ns",
        "compute_output_ns",
        "execution_count",
        "failure_count",
        "failure_ns",
        "inference_count",
        "last_inference_ms",
        "queue_ns",
        "success_count",
        "success_ns",
    )

    def __init__(self) -> None:
        self.success_count = self.success_ns = self.failure_count = self.failure_ns = 0
        self.queue_ns = self.compute_input_ns = self.compute_infer_ns = self.compute_output_ns = 0
        self.inference_count = self.execution_count = self.last_inference_ms = 0
        self.batches: dict[int, BatchStatistics] = {}

    def success(self, rows: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, total_ns: int) -> None:
        """One request of `rows` rows was answered `total_ns` after it arrived."""
        self.success_count += 1
        self.success_ns += total_ns
        self.inference_count += rows
        self.queue_ns += queue_ns
        self.compute_input_ns += input_ns
        self.compute_infer_ns += infer_ns
        self.compute_output_ns += output_ns

    def failure(self, total_ns: int) -> None:
        """One request was answered with an error `total_ns` after it arrived."""
        self.failure_count += 1
        self.failure_ns += total_ns

    def execution(self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int, now_ms: int) -> None:
        """An instance executed one batch of `batch_size` rows; `now_ms` is the time of day, since the epoch."""
        self.execution_count += 1
        self.last_inference_ms = now_ms
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchStatistics()
        batch.count += 1
        batch.compute_input_ns += input_ns
        batch.compute_infer_ns += infer_ns
        batch.compute_output_ns += output_ns

    def as_dict(self, name: str, version: int) -> dict[str, Any]:
        """One entry of `model_stats`, by the names of the protocol."""
        successes = self.success_count
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _duration(successes, self.success_ns),
                "fail": _duration(self.failure_count, self.failure_ns),
                "queue": _duration(successes, self.queue_ns),
                "compute_input": _duration(successes, self.compute_input_ns),
                "compute_infer": _duration(successes, self.compute_infer_ns),
                "compute_output": _duration(successes, self.compute_output_ns),
                "cache_hit": _duration(0, 0),
                "cache_miss": _duration(0, 0),
            },
            "batch_stats": [
                {
                    "batch_size": batch_size,
                    "compute_input": _duration(batch.count, batch.compute_input_ns),
                    "compute_infer": _duration(batch.count, batch.compute_infer_ns),
                    "compute_output": _duration(batch.count, batch.compute_output_ns),
                }
                for batch_size, batch in sorted(self.batches.items())
            ],
            "response_stats": {},
            "memory_usage": [],
        }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
