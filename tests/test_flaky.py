# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `.ci/run` does with tests that failed (`scripts/flaky.py`), and what a run says of its tiers."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from .plugins.outcomes import tier_of

ROOT = Path(__file__).resolve().parents[1]
FLAKY = runpy.run_path(str(ROOT / "scripts/flaky.py"))
FLAKY_MAX = FLAKY["FLAKY_MAX"]

# Fails at its first execution only.
ONCE = """
from pathlib import Path

def test_once(tmp_path):
    mark = Path(__file__).with_name("mark")
    seen = mark.exists()
    mark.touch()
    assert seen, "not yet seen"
"""
ALWAYS = "def test_always():\n    assert False, 'never'\n"


class TestVerdict:
    def test_a_test_that_passes_again_is_flaky_and_the_run_passes(self):
        lines, passed = FLAKY["verdict"]({"a.py::test": "why"}, {})
        assert passed
        assert lines == ["FLAKY a.py::test", "    why"]

    def test_a_test_that_fails_again_fails_the_run(self):
        lines, passed = FLAKY["verdict"]({"a.py::test": "why", "b.py::test": "how"}, {"b.py::test": "how"})
        assert not passed
        assert lines == ["FAILED TWICE b.py::test", "FLAKY a.py::test", "    why"]

    @pytest.mark.parametrize(("count", "expected"), [(FLAKY_MAX, True), (FLAKY_MAX + 1, False)])
    def test_more_than_some_flaky_tests_fail_the_run(self, count, expected):
        assert FLAKY["verdict"]({f"{number}.py::test": "" for number in range(count)}, {})[1] is expected


@pytest.mark.processes
class TestRuns:
    @pytest.fixture
    def judge(self, tmp_path):
        """Runs tests, and then judges the run; returns the exit status and the output."""
        (tmp_path / "conftest.py").write_text(
            "import runpy\n"
            f"outcomes = runpy.run_path({str(ROOT / 'tests/plugins/outcomes.py')!r})\n"
            "pytest_addoption = outcomes['add_options']\n"
            "pytest_terminal_summary = outcomes['pytest_terminal_summary']\n"
            "pytest_sessionfinish = outcomes['pytest_sessionfinish']\n"
            "pytest_configure = outcomes['pytest_configure']\n"
        )

        def run(*command):
            return subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300)

        def judge(*options, **files):
            for name, text in files.items():
                (tmp_path / f"test_{name}.py").write_text(text)
            assert run("-m", "pytest", "-q", "--failures", "failures.json").returncode == 1
            judged = run(str(ROOT / "scripts/flaky.py"), "failures.json", "kept", *options)
            return judged.returncode, judged.stdout

        return judge

    def test_a_flaky_test_is_named_with_its_first_output(self, judge, tmp_path):
        """And the run passes; what both runs printed is kept."""
        status, output = judge(once=ONCE)
        assert status == 0, output
        assert "FLAKY test_once.py::test_once" in output
        assert "not yet seen" in output
        assert "not yet seen" in (tmp_path / "kept/first.txt").read_text()
        assert "1 passed" in (tmp_path / "kept/again.txt").read_text()

    def test_options_are_those_of_the_first_run(self, judge, tmp_path):
        """So a test fails or passes for the same reasons as before."""
        status, output = judge("--setup-show", once=ONCE)
        assert status == 0, output
        assert "SETUP " in (tmp_path / "kept/again.txt").read_text()

    def test_a_test_that_fails_again_fails_the_run(self, judge):
        status, output = judge(once=ONCE, always=ALWAYS)
        assert status == 1
        assert "FAILED TWICE test_always.py::test_always" in output
        assert "FLAKY test_once.py::test_once" in output


def test_a_run_without_a_failed_test_is_not_excused(tmp_path):
    """Such as one that an error of a plugin ended."""
    (tmp_path / "failures.json").write_text(json.dumps({}))
    assert FLAKY["main"](str(tmp_path / "failures.json"), str(tmp_path / "kept")) == 1


@pytest.mark.parametrize(
    ("nodeid", "tier"),
    [
        ("tests/e2e/test_infer.py::TestA::test_b[c/d]", "tests/e2e"),
        ("tests/runtime/http/test_head.py::test_a", "tests/runtime"),
        ("tests/test_docs.py::test_a", "tests"),
    ],
)
def test_a_tier_is_a_folder_of_tests(nodeid, tier):
    assert tier_of(nodeid) == tier
