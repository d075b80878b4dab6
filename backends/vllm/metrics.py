# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Shows statistics of the vLLM engine on the server's metrics page, with the names and buckets of Triton's backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

_FIRST_TOKEN_S = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_NEXT_TOKEN_S = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_REQUEST_S = [1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]
_COMPLETIONS = [1.0, 2.0, 5.0, 10.0, 20.0]


class EngineMetrics:
    """The metrics of one engine."""

    def __init__(self, labels: dict[str, str], max_model_len: int) -> None:
        self._labels = labels
        # A metric ends with the object of its family.
        self._families: list[pb_utils.MetricFamily] = []
        kinds = pb_utils.MetricFamily
        self._prompt_tokens = self._add(
            "vllm:prompt_tokens_total", "Number of prefill tokens processed.", kinds.COUNTER
        )
        self._generation_tokens = self._add(
            "vllm:generation_tokens_total", "Number of generation tokens processed.", kinds.COUNTER
        )
        self._preemptions = self._add(
            "vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", kinds.COUNTER
        )
        self._running = self._add(
            "vllm:num_requests_running", "Number of requests currently running on GPU.", kinds.GAUGE
        )
        self._waiting = self._add(
            "vllm:num_requests_waiting", "Number of requests waiting to be processed.", kinds.GAUGE
        )
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN_S
        )
        self._next_token = self._histogram(
            "vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.", _NEXT_TOKEN_S
        )
        self._request = self._histogram(
            "vllm:e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", _REQUEST_S
        )
        lengths = steps_of_1_2_5(max_model_len)
        self._request_prompt = self._histogram(
            "vllm:request_prompt_tokens", "Number of prefill tokens processed.", lengths
        )
        self._request_generation = self._histogram(
            "vllm:request_generation_tokens", "Number of generation tokens processed.", lengths
        )
        self._completions = self._histogram(
            "vllm:request_params_n", "Histogram of the n request parameter.", _COMPLETIONS
        )

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Count one iteration of the engine: vLLM's SchedulerStats and IterationStats, each may be None."""
        if scheduler is not None:
            self._running.set(scheduler.num_running_reqs)
            self._waiting.set(scheduler.num_waiting_reqs)
        if iteration is None:
            return
        self._prompt_tokens.increment(iteration.num_prompt_tokens)
        self._generation_tokens.increment(iteration.num_generation_tokens)
        self._preemptions.increment(iteration.num_preempted_reqs)
        _observe(self._first_token, iteration.time_to_first_tokens_iter)
        # vLLM before 0.11 has the other name.
        latencies = getattr(iteration, "inter_token_latencies_iter", None)
        _observe(self._next_token, iteration.time_per_output_tokens_iter if latencies is None else latencies)
        _observe(self._completions, iteration.n_params_iter)
        for request in iteration.finished_requests:
            self._request.observe(request.e2e_latency)
            self._request_prompt.observe(request.num_prompt_tokens)
            self._request_generation.observe(request.num_generation_tokens)

    def _add(self, name: str, description: str, kind: Any, **options: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family.Metric(labels=self._labels, **options)

    def _histogram(self, name: str, description: str, buckets: list[float]) -> Any:
        return self._add(name, description, pb_utils.MetricFamily.HISTOGRAM, buckets=buckets)


def stat_logger_factory(base: Any, labels: dict[str, str]) -> Callable[[Any, int], Any]:
    """What AsyncLLM takes as one of its `stat_loggers`; `base` is vLLM's StatLoggerBase."""

    class StatLogger(base):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._metrics = EngineMetrics(labels, vllm_config.model_config.max_model_len)

        # Later versions of vLLM give further statistics.
        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            self._metrics.record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            pass

    return StatLogger


def steps_of_1_2_5(largest: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 and so on, up to `largest`."""
    steps: list[float] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > largest:
                return steps
            steps.append(factor * power)
        power *= 10


def _observe(metric: Any, values: list[float]) -> None:
    for value in values:
        metric.observe(value)
