# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that failed once more, alone and one after the other, and says which of them are flaky.

Usage: flaky.py FAILURES KEPT [OPTION...]

FAILURES is what `pytest --failures` wrote, KEPT a folder for what both runs printed, and options are those of the first
run of pytest.

A test that passes now is flaky: an error of the test, or one that comes seldom, and the next one to be found. The run
fails if a test fails again, or if more tests than FLAKY_MAX failed at first.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# More than chance explains, even on a machine that does other work besides.
FLAKY_MAX = 5


def verdict(first: dict[str, str], again: dict[str, str]) -> tuple[list[str], bool]:
    """The lines that end a run in which the tests `first` failed, and then those of `again`; and whether it passed.

    Both map the name of a test to what it printed. More than FLAKY_MAX tests are not run again.
    """
    if len(first) > FLAKY_MAX:
        count = f"{len(first)} tests failed at first, and {FLAKY_MAX} may: the run fails"
        return [*(f"FAILED {test}" for test in first), count], False
    flaky = [test for test in first if test not in again]
    lines = [f"FAILED TWICE {test}" for test in again]
    for test in flaky:
        lines += [f"FLAKY {test}", *(f"    {line}" for line in first[test].splitlines())]
    return lines, not again


def run_again(tests: list[str], kept: Path, options: Sequence[str] = ()) -> dict[str, str]:
    """Run tests in this order in one process, and return those that fail, with what they printed."""
    report = kept / "again.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--failures", str(report), *options, *tests]
    with (kept / "again.txt").open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    failed: dict[str, str] = json.loads(report.read_text()) if report.exists() else {}
    # Neither "all passed" nor "some failed": nothing was shown.
    if status not in (0, 1) or (status == 1 and not failed):
        return dict.fromkeys(tests, f"pytest ended with the status {status}")
    return failed


def main(failures: str, kept: str, *options: str) -> int:
    """Judge a run that failed; returns the exit status."""
    folder = Path(kept)
    folder.mkdir(parents=True, exist_ok=True)
    first: dict[str, str] = json.loads(Path(failures).read_text())
    (folder / "first.txt").write_text("\n\n".join(f"{test}\n{text}" for test, text in first.items()))
    if not first:
        print("flaky.py: the run failed, but no test did")
        return 1
    again = run_again(list(first), folder, options) if len(first) <= FLAKY_MAX else {}
    lines, passed = verdict(first, again)
    print(*lines, f"What both runs printed: {folder}/first.txt, {folder}/again.txt", sep="\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
