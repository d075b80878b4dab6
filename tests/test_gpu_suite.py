# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tests that scripts/test-gpu runs on a machine with a GPU can be collected on every machine."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.e2e.harness.frameworks import FRAMEWORKS

ROOT = Path(__file__).parent.parent
FRAMEWORK_TESTS = "tests/e2e/test_gpu_frameworks.py"


@pytest.fixture(scope="module")
def collected():
    """The names of tests marked `gpu`, by file, of the files that the script finds."""
    marked = [path for path in ROOT.glob("tests/**/test_*.py") if "mark.gpu" in path.read_text()]
    files = [str(path.relative_to(ROOT)) for path in marked if path != Path(__file__)]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    tests = defaultdict(list)
    for file, name in re.findall(r"^(tests/\S+)::(\S+)$", found.stdout, re.MULTILINE):
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
