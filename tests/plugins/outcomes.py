# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a run has to say besides which tests passed: how long each tier took, and, for `.ci/run`, what failed and how.

A tier is a folder of tests/. Its time is that of its tests, in all processes together, so tiers sum up to the time of
the run times the number of processes.
"""

import json
from collections import Counter
from pathlib import Path

import pytest


class Outcomes:
    """Sums the reports of all tests; with several processes the one that starts the others gets them all."""

    def __init__(self):
        self.seconds = Counter()
        self.tests = Counter()
        self.failed = {}

    def add(self, report):
        tier = tier_of(report.nodeid)
        self.seconds[tier] += report.duration
        self.tests[tier] += report.when == "setup"
        if report.failed:
            text = "\n".join([report.longreprtext, *(part for _, part in report.sections)])
            self.failed[report.nodeid] = "\n".join(filter(None, [self.failed.get(report.nodeid), text]))

    def lines(self):
        """A table of tiers, the slowest first."""
        for tier, seconds in self.seconds.most_common():
            yield f"{seconds:8.1f} s  {self.tests[tier]:6} tests  {tier}"


def tier_of(nodeid):
    """`tests/e2e` for `tests/e2e/test_a.py::test_b`, `tests` for a file that lies there itself."""
    parts = Path(nodeid.partition("::")[0]).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def add_options(parser):
    parser.addoption("--failures", metavar="FILE", help="write the tests that failed, and what they printed, as JSON")


def pytest_configure(config):
    config.stash[_OUTCOMES] = Outcomes()
    config.pluginmanager.register(_Recorder(config.stash[_OUTCOMES]))


class _Recorder:
    def __init__(self, outcomes):
        self._outcomes = outcomes

    def pytest_runtest_logreport(self, report):
        self._outcomes.add(report)


def pytest_terminal_summary(terminalreporter, config):
    outcomes = config.stash[_OUTCOMES]
    if len(outcomes.tests) > 1:
        terminalreporter.section("time of each tier")
        for line in outcomes.lines():
            terminalreporter.write_line(line)


def pytest_sessionfinish(session):
    path = session.config.getoption("--failures")
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps(session.config.stash[_OUTCOMES].failed))


_OUTCOMES = pytest.StashKey[Outcomes]()
