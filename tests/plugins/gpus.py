# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Machines with GPUs of the stand-in (utils/gpu/stand_in.py), for tests of one process and of whole servers.

And this machine's GPU, for tests that have the marker `gpu`.
"""

import json
from contextlib import contextmanager

import pytest

from pyruntime.utils.gpu.cuda import CudaGpu
from pyruntime.utils.gpu.driver import GpuMissingError
from pyruntime.utils.gpu.inventory import STAND_IN
from pyruntime.utils.gpu.stand_in import StandInGpu
from pyruntime.utils.gpu.visible import VISIBLE
from tests.utils.gpu.peers import Peer

TWO_GPUS = {"uuid": "GPU-1"}, {"uuid": "GPU-2"}
# Two that have access to each other.
TWO_PEERS = {"uuid": "GPU-1", "peers": ["GPU-2"]}, {"uuid": "GPU-2", "peers": ["GPU-1"]}


class StandInMachine:
    """A machine, as a file describes it: see utils/gpu/machine.py."""

    def __init__(self, folder, patch, *gpus):
        """The processes that this one starts are on this machine, and so is this one, until the end of `patch`."""
        self._path = folder / "gpus.json"
        self.describe(*gpus)
        patch.setenv(STAND_IN, str(self._path))
        patch.delenv(VISIBLE, raising=False)

    def describe(self, *gpus):
        """Have these GPUs, each a dictionary as in the file, and no faults."""
        self._gpus = gpus
        self._write({})

    @contextmanager
    def failing(self, **faults):
        """Have methods of the GPUs fail meanwhile, in all processes: `failing(read="CUDA_ERROR_NOT_SUPPORTED")`."""
        self._write(faults)
        try:
            yield
        finally:
            self._write({})

    def gpu(self, ordinal=0):
        """One of the GPUs, as this process uses it: a stub, or a client."""
        return StandInGpu(str(self._path), ordinal)

    def gpus(self):
        """All of them."""
        return [self.gpu(ordinal) for ordinal in range(len(self._gpus))]

    def _write(self, faults):
        """Replace the file at one moment: others read it at any time."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"gpus": self._gpus, "faults": faults}))
        new.replace(self._path)


def gpu_of_this_machine(patch):
    """The first GPU of this machine, as this process uses it by NVIDIA's driver. Skips the test where there is none.

    The processes that this one starts use the driver, too, until the end of `patch`.
    """
    patch.delenv(STAND_IN, raising=False)
    try:
        return CudaGpu()
    except GpuMissingError as exc:
        pytest.skip(f"no GPU: {exc}")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with two GPUs, which all processes of the test are on."""
    return StandInMachine(tmp_path, monkeypatch, *TWO_GPUS)


@pytest.fixture
def peers():
    """`peers(ordinal=0)`: another process that uses one of the GPUs, until the test ends."""
    started = []

    def start(ordinal=0):
        started.append(Peer(ordinal))
        return started[-1]

    yield start
    for peer in started:
        peer.end()
