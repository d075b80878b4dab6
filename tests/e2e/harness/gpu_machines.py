# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Machines on whose GPU models of tests compute by a framework: one of the stand-in, or this one.

A file has a fixture `machine` with the names of frameworks as its parameters. All but "stand-in" have the marker `gpu`
there, by which scripts/gpu_suite.py finds the file.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

import pytest

from pyruntime.utils.gpu.visible import VISIBLE
from tests.plugins.gpus import StandInMachine, gpu_of_this_machine

from .frameworks import FRAMEWORKS, STAND_IN_ARRAY

# For models on the first GPU, and for those that read their inputs there.
GROUP = "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n"
READS_GPU = GROUP + 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'


class StandInFramework(StandInMachine):
    """A machine with one GPU of the stand-in, on which a small framework computes. `code` is how models do that."""

    code = STAND_IN_ARRAY

    def __init__(self, folder, patch):
        super().__init__(folder, patch, {"uuid": "GPU-1"})

    def without_main_memory(self):
        """Meanwhile all that copies from the GPU, or to it, fails."""
        return self.failing(read="CUDA_ERROR_NOT_SUPPORTED", write="CUDA_ERROR_UNKNOWN")


class RealFramework:
    """This machine with its first GPU, on which a framework computes. Skips the test without the one or the other."""

    def __init__(self, framework, patch):
        patch.delenv(VISIBLE, raising=False)
        if find_spec(framework) is None:  # its import may warn, which fails a test, and use the GPU
            pytest.skip(f"{framework} is not installed")
        self.code = FRAMEWORKS[framework]
        self._gpu = gpu_of_this_machine(patch)

    def gpus(self):
        """Its GPU as this process, the client, uses it."""
        return [self._gpu]

    def without_main_memory(self):
        """Nothing: the driver cannot be told to refuse copies."""
        return nullcontext()


@contextmanager
def machine_with(framework, tmp_path_factory) -> Iterator[StandInFramework | RealFramework]:
    """The machine of a framework; "stand-in" is the small one on the stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        if framework == "stand-in":
            yield StandInFramework(tmp_path_factory.mktemp("machine"), patch)
        else:
            yield RealFramework(framework, patch)
