#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of scripts/test-gpu one after the other, and prints what each had. It fails if one of them failed.

Usage: gpu_suite.py [--limit-s SECONDS] [--stand-in] [PART...]

A part is a command of its own, so that one that fails stops no other one, and a machine that is lent for minutes at a
time can have the parts in several goes. What may take longest comes last.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from gpu_report import print_head

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = "tests/utils/gpu/test_contract.py"
FRAMEWORK_TESTS = "tests/e2e/test_gpu_frameworks.py"
FRAMEWORKS = ("torch", "cupy", "jax", "numba")
# How long a part whose time is over may take to end its servers, and to print what it had.
END_S_MAX = 30.0
# Of one test with its fixtures: a server imports a framework in a dozen processes, or has 10 000 requests.
TEST_S_MAX = 300
# Its GPU is main memory, of which tensors of the goals' size take gigabytes.
BENCHMARK_STAND_IN = ("--stand-in", "--mib=4", "--turns=3")
NOT_RUN = "NOT RUN: the time is over"


class Outcome(NamedTuple):
    """What a part had, for the last table of the report."""

    part: str
    passed: bool
    result: str
    spent_s: float


def parts(root: Path, stand_in: bool) -> dict[str, list[str]]:
    """The commands of all parts by their names, in their order. `stand_in`: their tests that need no GPU."""
    frameworks = ("stand-in",) if stand_in else FRAMEWORKS
    marker = "not gpu" if stand_in else "gpu"
    marked = [path for path in sorted(root.glob("tests/**/test_*.py")) if "mark.gpu" in path.read_text()]
    others = {str(path.relative_to(root)) for path in marked} - {CONTRACT, FRAMEWORK_TESTS, "tests/test_gpu_suite.py"}

    def tests(*arguments: str) -> list[str]:
        options = ["-v", "--tb=short", "-p", "no:cacheprovider", f"--timeout={TEST_S_MAX}", "-m", marker]
        return [sys.executable, "-m", "pytest", *options, *arguments]

    return {
        "contract": tests(CONTRACT),
        "benchmark": [sys.executable, "benchmarks/gpu.py", *(BENCHMARK_STAND_IN if stand_in else ())],
        **{name: tests(FRAMEWORK_TESTS, "-k", f"{name} and not flat") for name in frameworks},
        "others": tests(*sorted(others)),
        **{f"flat-{name}": tests(FRAMEWORK_TESTS, "-k", f"{name} and flat") for name in frameworks},
    }


def run_all(commands: dict[str, list[str]], limit_s: float | None) -> Iterable[Outcome]:
    """Run the commands. After `limit_s` seconds, counted from now, one is stopped, and others are not begun."""
    begin = time.monotonic()
    for part, command in commands.items():
        left_s = None if limit_s is None else limit_s - (time.monotonic() - begin)
        if left_s is not None and left_s <= 0:
            yield Outcome(part, False, NOT_RUN, 0)
        else:
            print(f"\n## {part}\n", flush=True)
            yield run(part, command, left_s)


def run(part: str, command: Sequence[str], left_s: float | None) -> Outcome:
    """Run one of them, which prints what it has."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts.xml")
        options = [f"--junitxml={counts}"] if "pytest" in command else []
        # A group of its own: what it leaves running is ended with it.
        process = subprocess.Popen([*command, *options], process_group=0)
        is_over = False
        try:
            process.wait(left_s)
        except subprocess.TimeoutExpired:
            is_over = True
            process.send_signal(signal.SIGINT)  # pytest ends its servers, and prints what failed until now
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S_MAX)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        counted = count(counts)
    spent_s = time.monotonic() - begin
    if is_over:
        return Outcome(part, False, f"STOPPED: the time is over {counted}".rstrip(), spent_s)
    result = counted or "done" if status == 0 else f"FAILED with status {status} {counted}".rstrip()
    return Outcome(part, status == 0, result, spent_s)


def count(path: Path) -> str:
    """How many tests passed, failed and were skipped, by the file that pytest leaves; "" without it."""
    try:
        suite = ElementTree.parse(path).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        return ""
    if suite is None:
        return ""
    tests, skipped, failures, errors = (int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors"))
    failed = failures + errors
    return f"{tests - skipped - failed} passed, {failed} failed, {skipped} skipped"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit-s", type=float, help="stop after so many seconds, and print what there is")
    parser.add_argument("--stand-in", action="store_true", help="check the machinery without a GPU")
    parser.add_argument("parts", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    commands = parts(ROOT, arguments.stand_in)
    unknown = [name for name in arguments.parts if name not in commands]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(commands)}")
    os.environ["PYTHONUNBUFFERED"] = "1"
    print_head()
    chosen = {name: command for name, command in commands.items() if name in (arguments.parts or commands)}
    outcomes = list(run_all(chosen, arguments.limit_s))
    print("\n## All parts\n\n| Part | Result | Seconds |\n| --- | --- | ---: |")
    for each in outcomes:
        print(f"| {each.part} | {each.result} | {each.spent_s:.0f} |")
    return 0 if all(each.passed for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
