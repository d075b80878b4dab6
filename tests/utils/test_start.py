# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The door through which the host starts stubs."""

import os
import subprocess
import sys
import types

import pytest
from multiprocess import forkserver

from pyruntime.utils.start import received, start_stub


class HandedOver:
    def detach(self):
        return 7


def test_received():
    """A descriptor that was handed over is the number that it has here."""
    assert received(HandedOver()) == 7


def test_start_stub_runs_the_stub(monkeypatch):
    """All arguments go to the stub's `run`, and the stub does not keep the forkserver alive."""
    calls = []
    stub = types.ModuleType("pyruntime.stub.main")
    stub.run = lambda *args: calls.append(args)
    monkeypatch.setitem(sys.modules, "pyruntime.stub.main", stub)
    read_fd, write_fd = os.pipe()
    monkeypatch.setattr(forkserver._forkserver, "_forkserver_alive_fd", write_fd)
    start_stub("m_0", 1, 2)
    assert calls == [("m_0", 1, 2)]
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)


@pytest.mark.processes
def test_does_not_import_the_stub():
    """The host names the door, and has nothing of the stub's loaded for it."""
    code = (
        "import sys, pyruntime.utils.start; print([name for name in sys.modules if name.startswith('pyruntime.stub')])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ.copy()
    )
    assert out.stdout.strip() == "[]"
