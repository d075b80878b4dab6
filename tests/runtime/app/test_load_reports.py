# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What is reported of a model, of the machine, and how often it is read."""

import json
from types import SimpleNamespace

import pytest

from pyruntime.runtime.app import load_reports as module
from pyruntime.runtime.app.load_reports import REPORT_S_MIN, LoadReports
from pyruntime.runtime.observe.machine import Memory
from pyruntime.runtime.observe.metrics import Metrics
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics


class Model:
    """A version that serves, with instances that are idle or not."""

    def __init__(self, *idle, ensemble=None):
        self.spec = SimpleNamespace(name="m", ensemble=ensemble)
        self.version = 1
        self.statistics = ModelStatistics()
        self.pending = 0
        self.instances = [SimpleNamespace(inflight=SimpleNamespace(is_idle=each)) for each in idle]

    def worked(self, count, each_s):
        for _ in range(count):
            self.statistics.success(1, 0, 0, 0, 0, 0)
        self.statistics.execution(1, 0, int(count * each_s * 1e9), 0, 0, count)


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


def report_of(reports, model):
    document = json.loads(reports.report(model, "json").removeprefix("JSON "))
    return document | document.pop("named_metrics")


def nothing_read():
    return None, None


def test_machine(clock):
    """Processors and memory are there as far as they are read."""
    model = Model(True)
    found = report_of(LoadReports(Metrics(), lambda: (0.25, Memory(100, 40))), model)
    assert (found["cpu_utilization"], found["mem_utilization"]) == (0.25, 0.4)
    none = report_of(LoadReports(Metrics(), nothing_read), model)
    assert none.keys() == {"application_utilization", "queued_requests"}


def test_rates(clock):
    """They come with the second report, and are of the time in between."""
    reports, model = LoadReports(Metrics(), nothing_read), Model(True, True)
    assert "rps_fractional" not in report_of(reports, model)
    clock.now += 2
    model.worked(10, 0.1)
    model.statistics.failure(1, FailureReason.BACKEND)
    found = report_of(reports, model)
    assert (found["rps_fractional"], found["eps"], found["application_utilization"]) == (5.5, 0.5, 0.25)


@pytest.mark.parametrize(("idle", "utilization"), [((True, True), 0.0), ((False, True), 0.5), ((False, False), 1.0)])
def test_work_that_goes_on(clock, idle, utilization):
    """An instance that executes now is busy, however long that takes."""
    assert report_of(LoadReports(Metrics(), nothing_read), Model(*idle))["application_utilization"] == utilization


def test_more_than_all(clock):
    """Times that overlap make no more than all instances busy."""
    reports, model = LoadReports(Metrics(), nothing_read), Model(True)
    report_of(reports, model)
    clock.now += 1
    model.worked(10, 1)
    assert report_of(reports, model)["application_utilization"] == 1.0


def test_an_ensemble(clock):
    """It has no instances of its own that could be busy."""
    found = report_of(LoadReports(Metrics(), nothing_read), Model(False, ensemble=object()))
    assert "application_utilization" not in found


def test_how_often(clock):
    """Metrics are not read for each response of a busy model, and each model has a report of its own."""
    reports, model, other = LoadReports(Metrics(), nothing_read), Model(True), Model(True)
    assert report_of(reports, model)["queued_requests"] == 0
    model.pending = other.pending = 7
    clock.now += REPORT_S_MIN / 2
    assert report_of(reports, model)["queued_requests"] == 0
    assert report_of(reports, other)["queued_requests"] == 7
    clock.now += REPORT_S_MIN
    assert report_of(reports, model)["queued_requests"] == 7
