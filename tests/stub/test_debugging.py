# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/test_debugging.py has the terminal, with a server at it."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


def run(code, **variables):
    """The output of a process without a terminal that refuses breakpoint(); the last line of its errors if it fails."""
    code = f"from pyruntime.stub import debugging\ndebugging.refuse_breakpoints()\n{code}\nprint('after')\n"
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
    )
    return done.stdout or done.stderr.splitlines()[-1]


@pytest.fixture(autouse=True)
def _nobody_debugs_the_tests(monkeypatch):
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)


def test_breakpoint_says_how_it_works():
    """breakpoint() raises what helps its author."""
    assert run("breakpoint()") == (
        "RuntimeError: breakpoint() needs a terminal: start the server with --debug and the name of this model"
    )


@pytest.mark.parametrize(("value", "printed"), [("0", "after\n"), ("builtins.print", "\nafter\n")])
def test_another_debugger(value, printed):
    """A PYTHONBREAKPOINT that the operator has set stays in effect."""
    assert run("breakpoint()", PYTHONBREAKPOINT=value) == printed
