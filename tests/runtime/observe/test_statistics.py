# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The counters of a model version, as the statistics endpoints show them."""

import pytest

from pyruntime.runtime.observe.families import Histogram
from pyruntime.runtime.observe.statistics import RESPONSE_INDEXES_MAX, FailureReason, ModelStatistics, reason_of
from pyruntime.runtime.observe.statistics_entry import statistics_entry
from pyruntime.runtime.observe.summaries import Latencies
from pyruntime.utils.errors import Code, InferenceError


def test_successes_count_requests_and_rows():
    """Durations are summed and counted by request, inferences by row."""
    statistics = ModelStatistics()
    statistics.success(3, queue_ns=1, input_ns=10, infer_ns=100, output_ns=1000, total_ns=1111)
    statistics.success(1, queue_ns=2, input_ns=20, infer_ns=200, output_ns=2000, total_ns=2222)
    shown = statistics_entry(statistics, "m", 1)
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
    statistics.failure(7, FailureReason.BACKEND)
    statistics.failure(8, FailureReason.REJECTED)
    shown = statistics_entry(statistics, "m", 1)
    assert shown["inference_stats"]["fail"] == {"count": 2, "ns": 15}
    assert shown["inference_stats"]["success"]["count"] == shown["inference_count"] == 0
    assert list(statistics.failures.values()) == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("code", "cancelled", "reason"),
    [
        (Code.INTERNAL, False, FailureReason.BACKEND),
        (Code.CANCELLED, False, FailureReason.CANCELED),
        (Code.INTERNAL, True, FailureReason.CANCELED),
    ],
)
def test_reasons(code, cancelled, reason):
    """A failure of an instance is the backend's, unless the request was cancelled."""
    assert reason_of(InferenceError("no", code), cancelled) is reason


def test_reasons_have_tritons_names():
    """They are the values of a label."""
    assert [reason.value for reason in FailureReason] == ["REJECTED", "CANCELED", "BACKEND", "OTHER"]


def test_latencies_are_recorded_on_request():
    """Every duration of a success has its summary; failures have none."""
    statistics = ModelStatistics(Latencies())
    statistics.success(3, queue_ns=1_000, input_ns=2_000, infer_ns=3_000, output_ns=4_000, total_ns=10_000)
    statistics.failure(7_000, FailureReason.OTHER)
    latencies = statistics.latencies
    found = [
        (summary.count, summary.sum_us)
        for summary in (latencies.request, latencies.queue, latencies.input, latencies.infer, latencies.output)
    ]
    assert found == [(1, 10), (1, 1), (1, 2), (1, 3), (1, 4)]


def test_first_responses_are_recorded_on_request():
    """In milliseconds; without a histogram they are not recorded."""
    ModelStatistics().first_response(1)
    statistics = ModelStatistics(first_responses=Histogram("h", "", [1.0, 10.0]))
    statistics.first_response(1_500_000)
    assert statistics.first_responses.lines("h") == (
        'h_bucket{le="1"} 0\nh_bucket{le="10"} 1\nh_bucket{le="+Inf"} 1\nh_sum 1.5\nh_count 1\n'
    )


def test_responses_are_counted_by_their_place():
    """Each place in the answers of a decoupled model has a row; an end without one was computed, but not put out."""
    statistics = ModelStatistics()
    statistics.response(1).fail(infer_ns=5, output_ns=7)
    statistics.response(0).success(infer_ns=10, output_ns=1)
    statistics.response(0).success(infer_ns=20, output_ns=2)
    statistics.response(0).empty(infer_ns=100)
    statistics.response(0).cancel(infer_ns=1000)
    shown = statistics_entry(statistics, "m", 1)["response_stats"]
    assert list(shown) == ["0", "1"]
    assert shown["0"] == {
        "compute_infer": {"count": 3, "ns": 130},
        "compute_output": {"count": 2, "ns": 3},
        "success": {"count": 2, "ns": 33},
        "fail": {"count": 0, "ns": 0},
        "empty_response": {"count": 1, "ns": 100},
        "cancel": {"count": 1, "ns": 1000},
    }
    assert shown["1"]["fail"] == {"count": 1, "ns": 12}
    assert (shown["1"]["compute_infer"]["ns"], shown["1"]["compute_output"]["ns"]) == (5, 7)


def test_places_have_a_limit():
    """The first ones are kept apart; those that come later are not recorded."""
    statistics = ModelStatistics()
    assert statistics.response(RESPONSE_INDEXES_MAX) is None
    assert statistics.response(RESPONSE_INDEXES_MAX - 1) is not None
    assert list(statistics_entry(statistics, "m", 1)["response_stats"]) == [str(RESPONSE_INDEXES_MAX - 1)]


def test_executions_are_counted_by_batch_size():
    """Every size that was executed has a row, in order, and the last execution is the last inference."""
    statistics = ModelStatistics()
    statistics.execution(8, input_ns=1, infer_ns=10, output_ns=100, now_ms=1_000)
    statistics.execution(2, input_ns=2, infer_ns=20, output_ns=200, now_ms=2_000)
    statistics.execution(8, input_ns=3, infer_ns=30, output_ns=300, now_ms=3_000)
    shown = statistics_entry(statistics, "m", 2)
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


def test_a_batch_counts_as_its_requests():
    """A batch with some of its requests successful counts as these requests, one by one, and as an execution."""
    together, one_by_one = ModelStatistics(), ModelStatistics()
    together.executed(2, 4, queue_ns=30, total_ns=700, batch_size=5, input_ns=1, infer_ns=2, output_ns=3, now_ms=9)
    one_by_one.success(1, queue_ns=10, input_ns=1, infer_ns=2, output_ns=3, total_ns=300)
    one_by_one.success(3, queue_ns=20, input_ns=1, infer_ns=2, output_ns=3, total_ns=400)
    one_by_one.execution(5, input_ns=1, infer_ns=2, output_ns=3, now_ms=9)
    assert statistics_entry(together, "m", 1) == statistics_entry(one_by_one, "m", 1)


def test_parts_of_gpus():
    """The part of a GPU is made once. What no GPU has counted for itself goes to the whole."""
    whole = ModelStatistics()
    part = whole.on_gpu("GPU-a")
    assert whole.on_gpu("GPU-a") is part
    part.first_response(5)
    part.response(0).success(1, 2)
    part.failure(7, FailureReason.BACKEND)
    assert whole.response(0).success_count == 1
    assert (whole.failure_count, part.failure_count) == (1, 0)
    assert whole.elsewhere.success_count == 0


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("success", (2, 3, 4, 5, 6, 7)),
        ("executed", (3, 6, 10, 20, 8, 4, 5, 6, 99)),
        ("counted", (3, 2, range(1, 9), 99)),
        ("execution", (4, 1, 2, 3, 99, 5)),
    ],
)
def test_executions_on_gpus(method, arguments):
    """The whole counts what an instance on a GPU does as if there were no parts, and nothing of it is elsewhere."""
    whole, expected = ModelStatistics(), ModelStatistics()
    part = whole.on_gpu("GPU-a")
    getattr(part, method)(*arguments)
    getattr(expected, method)(*arguments)
    assert statistics_entry(whole, "m", 1) == statistics_entry(expected, "m", 1)
    assert statistics_entry(part, "m", 1)["inference_stats"] == statistics_entry(expected, "m", 1)["inference_stats"]
    assert (part.inference_count, part.execution_count) == (expected.inference_count, expected.execution_count)
    rest = whole.elsewhere
    assert {rest.success_count, rest.inference_count, rest.execution_count, rest.queue_ns} == {0}
