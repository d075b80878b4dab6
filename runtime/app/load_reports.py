# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what is reported of the load of a model: see observe/load_report.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.observe.load_report import (
    NAMED,
    LoadSample,
    RateWindow,
    Values,
    encode_report,
    is_reported,
    reported_gauges,
)
from pyruntime.runtime.observe.machine import Memory
from pyruntime.runtime.observe.metrics import Metrics

# A report is made anew after this time, in seconds. It reads all metrics of models, and every request may ask for one.
REPORT_S_MIN = 0.1


class _Reported:
    """The last report of one model, and when it was made, in seconds."""

    __slots__ = ("at_s", "values", "window")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.values: Values = {}
        self.window = RateWindow()


class LoadReports:
    """See the module. `machine` returns the utilization of the processors and the memory; None for what is not read.

    Counters that native threads keep are complete without ServerState.settle: the response that carries the report is
    an event of the same queue, behind those that count. To handle events here could send responses in the wrong order.
    """

    def __init__(self, metrics: Metrics, machine: Callable[[], tuple[float | None, Memory | None]]) -> None:
        self._metrics = metrics
        self._machine = machine
        self._reported: WeakKeyDictionary[ModelVersion, _Reported] = WeakKeyDictionary()

    def report(self, model: ModelVersion, form: str) -> str:
        """The value of the header of a response of this model. `form` is one of load_report.FORMATS."""
        reported = self._reported.get(model)
        if reported is None:
            reported = self._reported[model] = _Reported()
        now = time.monotonic()
        if not reported.values or now - reported.at_s >= REPORT_S_MIN:
            reported.at_s = now
            reported.values = self._values(model, reported.window, now)
        return encode_report(reported.values, form)

    def _values(self, model: ModelVersion, window: RateWindow, now: float) -> Values:
        values: dict[str, float | int] = {}
        utilization, memory = self._machine()
        if utilization is not None:
            values["cpu_utilization"] = utilization
        if memory is not None and memory.total:
            values["mem_utilization"] = memory.used / memory.total
        statistics = model.statistics
        busy_ns = sum(
            batch.compute_input_ns + batch.compute_infer_ns + batch.compute_output_ns
            for batch in statistics.batches.values()
        )
        rates = window.rates(LoadSample(now, statistics.success_count, statistics.failure_count, busy_ns))
        if model.spec.ensemble is None and model.instances:  # an ensemble has no instances of its own
            busy = sum(not instance.inflight.is_idle for instance in model.instances)
            recently = min(rates.busy, len(model.instances)) if rates is not None else 0.0
            values["application_utilization"] = max(recently, float(busy)) / len(model.instances)
        if rates is not None:
            values["rps_fractional"] = rates.requests
            values["eps"] = rates.failures
        values[f"{NAMED}.queued_requests"] = model.pending
        return values | reported_gauges(self._metrics.gauges(is_reported), model.spec.name, model.version)
