# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of the simulator."""

import argparse
import sys
import time
from itertools import chain
from multiprocessing import Pool

from .run import problems, run_seed
from .seeds import KEPT_SEEDS

# The scenarios that a process runs before it says what it found, and those between two lines of progress.
BLOCK = 200
REPORTED = 10_000


def main():
    parser = argparse.ArgumentParser("simulate", description="Runs the server over a virtual clock, with faults.")
    parser.add_argument("--seed", type=int, help="run this scenario only, and print its trace")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--scenarios", type=int, default=100_000, help="how many scenarios to run (100000)")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run them (2)")
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


def _problems(seeds):
    return len(seeds), list(problems(seeds))


def _run(first, scenarios, jobs):
    began = time.monotonic()
    failed = 0
    done = 0
    blocks = (range(begin, min(begin + BLOCK, first + scenarios)) for begin in range(first, first + scenarios, BLOCK))
    with Pool(jobs) as pool:
        for count, found in pool.imap_unordered(_problems, chain([KEPT_SEEDS], blocks)):
            done += count
            failed += len(found)
            for seed, problem in found:
                print(f"seed {seed}: {problem}", flush=True)
            if done // REPORTED > (done - count) // REPORTED:
                print(f"{done} scenarios in {time.monotonic() - began:.0f} s, {failed} failed", flush=True)
    print(f"seeds {first} to {first + scenarios - 1}: {failed} failed, {time.monotonic() - began:.0f} s")
    return failed > 0
