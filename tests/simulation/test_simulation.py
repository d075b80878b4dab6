# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Some thousands of simulated scenarios; `make simulate` runs a hundred thousand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .run import problems, run_seed
from .seeds import KEPT_SEEDS

# The scenarios of one test, and how many such tests there are.
SCENARIOS = 400
BLOCKS = 5

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = "from tests.simulation.run import run_seed; print(*(run_seed(seed).digest for seed in range(40)))"


def failures(seeds):
    return dict(problems(seeds))


def test_kept_seeds():
    """Scenarios that failed once hold all invariants."""
    assert failures(KEPT_SEEDS) == {}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_invariants(block):
    """Whatever clients, stubs and memory do, all invariants hold. Replay: python -m tests.simulation --seed SEED."""
    assert failures(range(block * SCENARIOS, (block + 1) * SCENARIOS)) == {}


def test_same_seed_same_trace():
    """Two runs of a seed do the same things at the same times."""
    for seed in range(40):
        first, second = run_seed(seed), run_seed(seed)
        assert first.trace == second.trace
        assert len(first.trace) > 1


@pytest.mark.processes
def test_same_seed_same_trace_in_other_processes():
    """A trace does not depend on the hashes and addresses of a process."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
