# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every seed that fails is named, whatever becomes of the process that runs it."""

import os
import signal

import pytest

from . import workers

pytestmark = pytest.mark.processes


@pytest.fixture
def outcome(monkeypatch):
    """A function that runs seeds. Some end their process, never end, or have a problem."""

    def problems(seeds):
        for seed in seeds:
            if seed in (107, 230):
                os._exit(3)
            if seed == 400:
                signal.pause()
            if seed in (5, 108):
                yield seed, "a problem"

    monkeypatch.setattr(workers, "problems", problems)

    def run(seeds, jobs):
        counts, found = zip(*workers.run_all(seeds, jobs), strict=True)
        return sum(counts), dict(pair for pairs in found for pair in pairs)

    return run


def test_problems(outcome):
    """All seeds run, and those with a problem are named."""
    assert outcome(range(100), 2) == (100, {5: "a problem"})


def test_ended_process(outcome):
    """A scenario that ends its process is named, and the others run nevertheless."""
    ended = "its process ended with 3"
    assert outcome(range(300), 1) == (300, {5: "a problem", 107: ended, 108: "a problem", 230: ended})


def test_hanging_process(outcome, monkeypatch):
    """A scenario that never ends is named."""
    monkeypatch.setattr(workers, "SCENARIO_S_MAX", 0.1)
    assert outcome([400], 2) == (1, {400: "its process ended with -9"})
