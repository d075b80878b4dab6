# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The choice between native code and Python is one for a process and all that it starts."""

import os
import subprocess
import sys

import pytest

from pyruntime.utils import fast_path


@pytest.fixture(autouse=True)
def as_without_options(monkeypatch):
    # Set first, so that it is as before at the end in any case.
    monkeypatch.setenv(fast_path.VARIABLE, "1")
    monkeypatch.delenv(fast_path.VARIABLE)


def test_native_code_is_the_default():
    """Nobody has to ask for it."""
    assert not fast_path.is_off()
    fast_path.require()


def test_switched_off():
    """No module gets native code then, where Python does the same."""
    fast_path.switch_off()
    assert fast_path.is_off()
    with pytest.raises(ImportError, match=f"^{fast_path.VARIABLE} is set$"):
        fast_path.require()


@pytest.mark.processes
def test_processes_inherit_it():
    """The launcher, stubs and whatever else is started afterwards do without, too."""
    fast_path.switch_off()
    code = "from pyruntime.utils import frames, fast_path; print(fast_path.is_off(), frames.pack.__module__)"
    said = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    assert said.stdout == "True pyruntime.utils.frames\n"
