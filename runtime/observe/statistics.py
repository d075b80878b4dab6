# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the requests and times of one model version. (pure)

All counters only grow, in counts and nanoseconds; clients compute differences. Every request records its numbers here,
so they are plain integers without locks: the event loop's thread records and reads all of them. The statistics
endpoints and the metrics page show them: see statistics_entry.py and model_families.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from pyruntime.runtime.observe.families import Histogram
from pyruntime.runtime.observe.summaries import Latencies
from pyruntime.utils.errors import Code, InferenceError

# Responses of a decoupled model are counted by their index in the stream, up to this one. A model that streams tokens
# sends thousands, and each index has a row of six numbers in the statistics.
RESPONSE_INDEXES_MAX = 256

# Memory that a model or an instance uses: a TRITONSERVER_MemoryType, the number of the device, and bytes.
MemoryUsage = tuple[int, int, int]


class FailureReason(Enum):
    """Why a request failed, in Triton's terms.

    REJECTED: the queue was full. CANCELED: the client cancelled it. BACKEND: the model answered with an error, or
    died. OTHER: the request was refused, or never reached its model.
    """

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class BatchStatistics:
    """The executions of one batch size. Times are sums over `count` executions, in nanoseconds."""

    __slots__ = ("compute_infer_ns", "compute_input_ns", "compute_output_ns", "count")

    def __init__(self) -> None:
        self.count = self.compute_input_ns = self.compute_infer_ns = self.compute_output_ns = 0


class ResponseStatistics:
    """The responses of a decoupled model with one index: all first ones, all second ones, and so on.

    `infer_ns` is the time from the previous response, or from the beginning of execute, until the model sent this one;
    `output_ns` is the time from then until the client's frontend had it. An end of the stream without a response counts
    as `empty`.
    """

    __slots__ = (
        "cancel_count",
        "cancel_ns",
        "compute_infer_ns",
        "compute_output_ns",
        "empty_count",
        "empty_ns",
        "fail_count",
        "fail_ns",
        "success_count",
        "success_ns",
    )

    def __init__(self) -> None:
        self.compute_infer_ns = self.compute_output_ns = 0
        self.success_count = self.success_ns = self.fail_count = self.fail_ns = 0
        self.empty_count = self.empty_ns = self.cancel_count = self.cancel_ns = 0

    def success(self, infer_ns: int, output_ns: int) -> None:
        """A response with outputs."""
        self._computed(infer_ns, output_ns)
        self.success_count += 1
        self.success_ns += infer_ns + output_ns

    def fail(self, infer_ns: int, output_ns: int) -> None:
        """A response that is an error."""
        self._computed(infer_ns, output_ns)
        self.fail_count += 1
        self.fail_ns += infer_ns + output_ns

    def empty(self, infer_ns: int) -> None:
        """The end of the request, without a response."""
        self.compute_infer_ns += infer_ns
        self.empty_count += 1
        self.empty_ns += infer_ns

    def cancel(self, infer_ns: int) -> None:
        """The end of a cancelled request."""
        self.cancel_count += 1
        self.cancel_ns += infer_ns

    def _computed(self, infer_ns: int, output_ns: int) -> None:
        self.compute_infer_ns += infer_ns
        self.compute_output_ns += output_ns


class CacheStatistics:
    """The hits and misses in the response cache. Times are sums, in nanoseconds."""

    __slots__ = ("hit_count", "hit_ns", "miss_count", "miss_ns")

    def __init__(self) -> None:
        self.hit_count = self.hit_ns = self.miss_count = self.miss_ns = 0


class ModelStatistics:
    """The counters of one model version.

    `success_count` counts successful requests, `failures` failed ones by reason, `inference_count` the rows of the
    successful ones, and `execution_count` the executed batches. The times of a batch count in full for every request in
    it. `latencies` and `first_responses` are None unless the settings enable these metrics; `cache` is None for models
    without a response cache. `memory_usage` returns the memory that the version uses, as far as known. `copied_bytes`
    is how much of the tensors between the steps of an ensemble had to be copied. `by_gpu` has, by UUIDs, the part of
    these counters that belongs to instances on GPUs.
    """

    __slots__ = (
        "batches",
        "by_gpu",
        "cache",
        "compute_infer_ns",
        "compute_input_ns",
        "compute_output_ns",
        "copied_bytes",
        "execution_count",
        "failure_ns",
        "failures",
        "first_responses",
        "inference_count",
        "last_inference_ms",
        "latencies",
        "memory_usage",
        "queue_ns",
        "responses",
        "success_count",
        "success_ns",
    )

    def __init__(
        self,
        latencies: Latencies | None = None,
        first_responses: Histogram | None = None,
        cache: CacheStatistics | None = None,
        memory_usage: Callable[[], Iterable[MemoryUsage]] = tuple,
    ) -> None:
        self.latencies = latencies
        self.first_responses = first_responses
        self.cache = cache
        self.memory_usage = memory_usage
        self.success_count = self.success_ns = self.failure_ns = 0
        self.queue_ns = self.compute_input_ns = self.compute_infer_ns = self.compute_output_ns = 0
        self.inference_count = self.execution_count = self.last_inference_ms = 0
        self.copied_bytes = 0
        self.failures = dict.fromkeys(FailureReason, 0)
        self.batches: dict[int, BatchStatistics] = {}
        self.responses: dict[int, ResponseStatistics] = {}
        self.by_gpu: dict[str, ModelStatistics] = {}

    def on_gpu(self, uuid: str) -> ModelStatistics:
        """The counters that instances on a GPU record their numbers in; these have them, too."""
        found = self.by_gpu.get(uuid)
        if found is None:
            found = self.by_gpu[uuid] = _GpuStatistics(self)
        return found

    @property
    def elsewhere(self) -> ModelStatistics:
        """The part of the executions and their times that does not belong to instances on GPUs, at this moment."""
        rest = ModelStatistics()
        for name in _OF_INSTANCES:
            setattr(rest, name, getattr(self, name) - sum(getattr(each, name) for each in self.by_gpu.values()))
        return rest

    @property
    def failure_count(self) -> int:
        """The number of failed requests, for all reasons."""
        return sum(self.failures.values())

    def success(self, rows: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, total_ns: int) -> None:
        """One request of `rows` rows was answered `total_ns` after it arrived."""
        self.success_count += 1
        self.success_ns += total_ns
        self.inference_count += rows
        self.queue_ns += queue_ns
        self.compute_input_ns += input_ns
        self.compute_infer_ns += infer_ns
        self.compute_output_ns += output_ns
        if self.latencies is not None:
            self.latencies.observe(total_ns, queue_ns, input_ns, infer_ns, output_ns)

    def executed(
        self,
        count: int,
        rows: int,
        queue_ns: int,
        total_ns: int,
        batch_size: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
        now_ms: int,
    ) -> None:
        """An instance executed a batch of `batch_size` rows, and `count` requests to it succeeded, of `rows` rows.

        `queue_ns` and `total_ns` are sums over these requests, the other times are those of the batch. The caller has
        told `latencies` of the requests, if that is not None. Otherwise as `success` and `execution`.
        """
        self.success_count += count
        self.success_ns += total_ns
        self.inference_count += rows
        self.queue_ns += queue_ns
        self.compute_input_ns += count * input_ns
        self.compute_infer_ns += count * infer_ns
        self.compute_output_ns += count * output_ns
        # As `execution`, which costs a call.
        self.execution_count += 1
        self.last_inference_ms = now_ms
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchStatistics()
        batch.count += 1
        batch.compute_input_ns += input_ns
        batch.compute_infer_ns += infer_ns
        batch.compute_output_ns += output_ns

    def counted(self, count: int, rows: int, sums: Sequence[int], now_ms: int) -> None:
        """`count` requests of `rows` rows each succeeded, each of them in a batch of its own.

        `sums` are the sums of the times of `success`, in the order of its parameters, and then of those of `execution`.
        `latencies` must be None.
        """
        queue_ns, input_ns, infer_ns, output_ns, total_ns, batch_input_ns, batch_infer_ns, batch_output_ns = sums
        self.success_count += count
        self.success_ns += total_ns
        self.inference_count += count * rows
        self.queue_ns += queue_ns
        self.compute_input_ns += input_ns
        self.compute_infer_ns += infer_ns
        self.compute_output_ns += output_ns
        self.execution(rows, batch_input_ns, batch_infer_ns, batch_output_ns, now_ms, count)

    def cache_hit(self, queue_ns: int, hit_ns: int, total_ns: int) -> None:
        """One request was answered from the cache, `total_ns` after it arrived. It does not count as an inference."""
        assert self.cache is not None  # only models with a cache call this
        self.cache.hit_count += 1
        self.cache.hit_ns += hit_ns
        self.success_count += 1
        self.success_ns += total_ns
        self.queue_ns += queue_ns
        if self.latencies is not None:
            self.latencies.observe_hit(total_ns, queue_ns, hit_ns)

    def cache_miss(self, miss_ns: int) -> None:
        """One request was not in the cache. `miss_ns` is the time for the lookup and for the insertion."""
        assert self.cache is not None  # only models with a cache call this
        self.cache.miss_count += 1
        self.cache.miss_ns += miss_ns
        if self.latencies is not None:
            self.latencies.cache_miss.observe(miss_ns)

    def failure(self, total_ns: int, reason: FailureReason) -> None:
        """One request was answered with an error `total_ns` after it arrived."""
        self.failures[reason] += 1
        self.failure_ns += total_ns

    def first_response(self, total_ns: int) -> None:
        """The first response to a request was sent `total_ns` after that arrived."""
        if self.first_responses is not None:
            self.first_responses.observe(total_ns / 1e6)

    def response(self, index: int) -> ResponseStatistics | None:
        """The counters for the responses with an index, from 0 on; None beyond RESPONSE_INDEXES_MAX."""
        found = self.responses.get(index)
        if found is None and index < RESPONSE_INDEXES_MAX:
            found = self.responses[index] = ResponseStatistics()
        return found

    def execution(
        self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int, now_ms: int, count: int = 1
    ) -> None:
        """An instance executed `count` batches of `batch_size` rows each; the times are sums over all of them.

        `now_ms` is milliseconds since the epoch.
        """
        self.execution_count += count
        self.last_inference_ms = now_ms
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchStatistics()
        batch.count += count
        batch.compute_input_ns += input_ns
        batch.compute_infer_ns += infer_ns
        batch.compute_output_ns += output_ns


# The counters that Triton has for each GPU.
_OF_INSTANCES = (
    "success_count",
    "success_ns",
    "inference_count",
    "execution_count",
    "queue_ns",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
)


class _GpuStatistics(ModelStatistics):
    """The part of the counters of a version that belongs to its instances on one GPU: those in _OF_INSTANCES."""

    __slots__ = ("_whole",)

    def __init__(self, whole: ModelStatistics) -> None:
        super().__init__(whole.latencies, whole.first_responses, whole.cache)
        self._whole = whole

    def success(self, rows: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, total_ns: int) -> None:
        self._whole.success(rows, queue_ns, input_ns, infer_ns, output_ns, total_ns)
        self._succeeded(1, rows, queue_ns, input_ns, infer_ns, output_ns, total_ns)

    def executed(
        self,
        count: int,
        rows: int,
        queue_ns: int,
        total_ns: int,
        batch_size: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
        now_ms: int,
    ) -> None:
        self._whole.executed(count, rows, queue_ns, total_ns, batch_size, input_ns, infer_ns, output_ns, now_ms)
        self._succeeded(count, rows, queue_ns, count * input_ns, count * infer_ns, count * output_ns, total_ns)
        self.execution_count += 1

    def counted(self, count: int, rows: int, sums: Sequence[int], now_ms: int) -> None:
        self._whole.counted(count, rows, sums, now_ms)
        self._succeeded(count, count * rows, *sums[:5])
        self.execution_count += count

    def failure(self, total_ns: int, reason: FailureReason) -> None:
        self._whole.failure(total_ns, reason)

    def first_response(self, total_ns: int) -> None:
        self._whole.first_response(total_ns)

    def response(self, index: int) -> ResponseStatistics | None:
        return self._whole.response(index)

    def execution(
        self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int, now_ms: int, count: int = 1
    ) -> None:
        self._whole.execution(batch_size, input_ns, infer_ns, output_ns, now_ms, count)
        self.execution_count += count

    def _succeeded(
        self, count: int, rows: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, total_ns: int
    ) -> None:
        """`count` requests of `rows` rows in all succeeded; the times are sums over them."""
        self.success_count += count
        self.success_ns += total_ns
        self.inference_count += rows
        self.queue_ns += queue_ns
        self.compute_input_ns += input_ns
        self.compute_infer_ns += infer_ns
        self.compute_output_ns += output_ns


def reason_of(failure: InferenceError, cancelled: bool) -> FailureReason:
    """The reason why a request failed that an instance had taken; `cancelled` says that its client cancelled it."""
    return FailureReason.CANCELED if cancelled or failure.code is Code.CANCELLED else FailureReason.BACKEND
