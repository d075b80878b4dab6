# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of the simulator."""

import argparse
import os
import sys
import time

from .run import run_seed
from .seeds import KEPT_SEEDS
from .workers import run_all

# The scenarios between two lines of progress.
REPORTED = 10_000


def main():
    processors = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser("simulate", description="Runs the server over a virtual clock, with faults.")
    parser.add_argument("--seed", type=int, help="run this scenario only, and print its trace")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--scenarios", type=int, default=100_000, help="how many scenarios to run (100000)")
    parser.add_argument("--jobs", type=int, default=processors, help="how many processes run them (all processors)")
    options = parser.parse_args()
    if options.seed is not None:
        sys.exit(_show(options.seed))
    sys.exit(_run(options.first, options.scenarios, options.jobs))


def _show(seed):
    outcome = run_seed(seed)
    for at_ns, *what in outcome.trace:
        print(f"{(at_ns - outcome.trace[0][0]) / 1e9:12.6f}", *what)
    print(f"seed {seed}: {outcome.problem or 'ok'}, digest {outcome.digest}")
    return bool(outcome.problem)


def _run(first, scenarios, jobs):
    began = time.monotonic()
    failed = []
    done = 0
    for count, found in run_all([*KEPT_SEEDS, *range(first, first + scenarios)], jobs):
        done += count
        for seed, problem in found:
            failed.append(seed)
            print(f"seed {seed}: {problem}", flush=True)
        if done // REPORTED > (done - count) // REPORTED:
            print(f"{done} scenarios, {_rate(done, began)}, {len(failed)} failed", flush=True)
    print(f"seeds {first} to {first + scenarios - 1} and {len(KEPT_SEEDS)} kept ones: {_rate(done, began)}")
    print(f"{len(failed)} failed: {' '.join(map(str, sorted(failed)))}" if failed else "none failed")
    return bool(failed)


def _rate(done, began):
    seconds = time.monotonic() - began
    return f"{seconds:.0f} s, {done / seconds:.0f} seeds/s"
