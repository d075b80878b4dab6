# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs of the stand-in, and other processes that use the same ones."""

import json

import pytest

from pyruntime.utils.gpu.inventory import STAND_IN
from pyruntime.utils.gpu.stand_in import StandInGpu
from pyruntime.utils.gpu.visible import VISIBLE
from tests.utils.gpu.peers import Peer


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that writes the machine of the stand-in, which has two GPUs. Returns the path of its file."""
    path = tmp_path / "gpus.json"
    monkeypatch.setenv(STAND_IN, str(path))
    monkeypatch.delenv(VISIBLE, raising=False)

    def write(faults=None, **gpu):
        gpus = [{"uuid": "GPU-1", "total_bytes": 1 << 20, **gpu}, {"uuid": "GPU-2", "name": "Second"}]
        path.write_text(json.dumps({"gpus": gpus, "faults": faults or {}}))
        return str(path)

    write()
    return write


@pytest.fixture
def peers():
    """A function that starts another process with a GPU."""
    started = []

    def start(ordinal=0):
        started.append(Peer(ordinal))
        return started[-1]

    yield start
    for peer in started:
        peer.end()


@pytest.fixture
def stand_in(machine):
    """A GPU of the stand-in."""
    return StandInGpu(machine())
