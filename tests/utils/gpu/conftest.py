# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs of the stand-in, of which one is small enough to be filled."""

import pytest

from tests.plugins.gpus import StandInMachine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with two GPUs, of which the first is small."""
    gpus = {"uuid": "GPU-1", "total_bytes": 1 << 20}, {"uuid": "GPU-2", "name": "Second"}
    return StandInMachine(tmp_path, monkeypatch, *gpus)


@pytest.fixture
def stand_in(machine):
    """A GPU of the stand-in."""
    return machine.gpu()
