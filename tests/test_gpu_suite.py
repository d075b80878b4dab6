# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tests that scripts/test-gpu runs on a machine with a GPU can be collected on every machine."""

import re
import subprocess
import sys
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

import pytest

from tests.e2e.harness.frameworks import FRAMEWORKS

ROOT = Path(__file__).parent.parent
FRAMEWORK_TESTS = "tests/e2e/test_gpu_frameworks.py"


@pytest.fixture(scope="module")
def suite():
    """The module of the script that runs the parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return import_module("gpu_suite")


@pytest.fixture(scope="module")
def collected():
    """The names of tests marked `gpu`, by file, of the files that the script finds."""
    marked = [path for path in ROOT.glob("tests/**/test_*.py") if "mark.gpu" in path.read_text()]
    files = [str(path.relative_to(ROOT)) for path in marked if path != Path(__file__)]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    tests = defaultdict(list)
    for file, name in re.findall(r"^(tests/[^:]+)::(.+)$", found.stdout, re.MULTILINE):
        tests[file].append(name)
    assert set(tests) == set(files)
    return tests


@pytest.mark.processes
def test_all_frameworks(collected):
    """Each framework has all tests that the stand-in has."""
    names = collected[FRAMEWORK_TESTS]
    of = {framework: {name for name in names if f"[{framework}" in name} for framework in FRAMEWORKS}
    assert sum(map(len, of.values())) == len(names)
    alike = [{name.replace(f"[{framework}", "[") for name in tests} for framework, tests in of.items()]
    assert alike[0]
    assert all(tests == alike[0] for tests in alike)


@pytest.mark.processes
def test_the_contract(collected):
    """The driver is tested by what the stand-in is tested by."""
    assert all("[driver]" in name for name in collected["tests/utils/gpu/test_contract.py"])


@pytest.mark.processes
def test_parts(suite, collected):
    """Each test is in one part, and the benchmark is a part of its own."""
    commands = suite.parts(ROOT, stand_in=False)
    assert commands.pop("benchmark")[1:] == ["benchmarks/gpu.py"]
    assert {f"flat-{name}" for name in FRAMEWORKS} | FRAMEWORKS.keys() <= commands.keys()
    found = Counter()
    for command in commands.values():
        listed = subprocess.run([*command, "--collect-only", "-qqq"], cwd=ROOT, capture_output=True, text=True)
        assert listed.returncode == 0, listed.stdout + listed.stderr
        for file, count in re.findall(r"^(tests/\S+): (\d+)$", listed.stdout, re.MULTILINE):
            found[file] += int(count)
    assert found == {file: len(names) for file, names in collected.items()}


PASSES, FAILS = ("import sys; sys.exit(0)", "import sys; print('said', flush=True); sys.exit(3)")


def python(code):
    return [sys.executable, "-c", code]


@pytest.mark.processes
def test_one_fails(suite, capfd):
    """The others are run, and what each said is in the report."""
    commands = {"first": python(FAILS), "second": python(PASSES)}
    first, second = suite.run_all(commands, None)
    assert (first.passed, first.result) == (False, "FAILED with status 3")
    assert (second.passed, second.result) == (True, "done")
    assert capfd.readouterr().out == "\n## first\n\nsaid\n\n## second\n\n"


@pytest.mark.processes
def test_time_is_over(suite):
    """The part that runs is interrupted, so that it can say what it had, and the others are named."""
    waits = "import signal; signal.pause()"
    first, second = suite.run_all({"first": python(waits), "second": python(PASSES)}, 1)
    assert not first.passed
    assert first.result == "STOPPED: the time is over"
    assert second == ("second", False, suite.NOT_RUN, 0)


@pytest.mark.processes
def test_status(suite, monkeypatch, capfd):
    """It fails if a part did, after it has printed the table of all."""
    monkeypatch.setattr(suite, "parts", lambda root, stand_in: {"first": python(FAILS), "second": python(PASSES)})
    for arguments, status in (([], 1), (["second"], 0)):
        monkeypatch.setattr(sys, "argv", ["gpu_suite.py", *arguments])
        assert suite.main() == status
        assert "| second | done |" in capfd.readouterr().out


def test_counts(suite, tmp_path):
    """What pytest had is counted."""
    path = tmp_path / "counts.xml"
    assert suite.count(path) == ""
    path.write_text('<testsuites><testsuite tests="9" skipped="2" failures="1" errors="3"/></testsuites>')
    assert suite.count(path) == "3 passed, 4 failed, 2 skipped"


def test_the_script_keeps_the_status():
    """The pipe into the report does not hide it."""
    script = (ROOT / "scripts/test-gpu").read_text()
    assert "set -euo pipefail" in script
    assert script.rstrip().endswith('scripts/gpu_suite.py "$@" 2>&1 | tee "$report"')
