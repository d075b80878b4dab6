# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the process of an instance sees of the GPUs."""

import pytest

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.gpus.visibility import check_sight_of_server, sight_of
from pyruntime.utils.errors import LoadError
from pyruntime.utils.gpu.driver import GpuProperties

from ..model_specs import spec_from

GPUS = AvailableGpus(
    tuple(
        GpuProperties(number, uuid, "G", (8, 0), 100, 100, uuid.startswith("MIG"))
        for number, uuid in enumerate(["GPU-a", "GPU-b", "MIG-c"])
    )
)


def sight(kind, number, mode=None):
    parameter = f'parameters {{ key: "VISIBLE_GPUS" value: {{ string_value: "{mode}" }} }}' if mode else ""
    return sight_of(InstanceSpec("m_0", kind, number), spec_from(parameter), GPUS)


def test_own_gpu():
    """One GPU by its UUID, or one slice; it is number 0 there, because it is the only one."""
    assert sight("GPU", 1) == sight("GPU", 1, "own") == ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, 0)
    assert sight("GPU", 2) == ({"CUDA_VISIBLE_DEVICES": "MIG-c"}, 0)


def test_all_gpus():
    """All of them, in the order of the server, with its numbers."""
    assert sight("GPU", 1, "all") == ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,MIG-c"}, 1)


@pytest.mark.parametrize("kind", ["CPU", "MODEL"])
@pytest.mark.parametrize("mode", [None, "all"])
def test_no_gpu(kind, mode):
    """What is not on a GPU sees what the server sees."""
    assert sight(kind, 0, mode) == ({}, 0)


@pytest.mark.parametrize(
    ("number", "mode", "problem"),
    [
        (0, "some", "model 'm' has the parameter VISIBLE_GPUS 'some', which must be 'own' or 'all'"),
        (2, "all", "is on GPU 2, which is a slice of one: a process sees one slice only, so that it must be 'own'"),
    ],
)
def test_refusals(number, mode, problem):
    """What CUDA cannot do is refused when the model is loaded."""
    with pytest.raises(LoadError, match=problem):
        sight("GPU", number, mode)


def test_server():
    """The server's process sees whole GPUs, or the first slice."""
    check_sight_of_server("m", [InstanceSpec("m_0", "GPU", 0), InstanceSpec("m_1", "CPU", 2)], GPUS)
    check_sight_of_server("m", [InstanceSpec("m_0", "GPU", 0)], AvailableGpus(GPUS.all[2:]))
    with pytest.raises(LoadError, match="instance 'm_1' of model 'm' is on GPU 2, a slice of a GPU"):
        check_sight_of_server("m", [InstanceSpec("m_1", "GPU", 2)], GPUS)
